"""Health probes and load balancer checks, without credentials.

`/live` succeeds while the event loop runs, so a failure means that the process needs a restart. `/ready` shows whether
clients can connect. `/status.html` is Pulsar's check: OK while the file `statusFilePath` exists.
"""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.brokers.broker_routes import get_ready
from pybroker.admin.calls.call import Call, text_response
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError


def routes() -> list[Route]:
    return [
        route("GET", "/status.html", get_status),
        route("GET", "/live", get_live),
        route("GET", "/ready", get_ready, answers={503: "Not ready; the text is the reason"}),
    ]


async def get_live(_call: Call) -> Response:
    """Return `ok` while the event loop runs."""
    return text_response("ok")


async def get_status(call: Call) -> Response:
    """Return `OK` if the file `statusFilePath` exists and the broker is neither starting nor stopping; otherwise 404."""
    if not call.broker.presence.takes_clients:
        raise AdminError(404, "The broker is not ready: it is starting or stopping")
    path = call.config.status_file_path
    # A local stat is fast enough for the event loop.
    if not path or not Path(path).exists():  # noqa: ASYNC240
        raise AdminError(404, "The broker is out of service: its status file (statusFilePath) does not exist")
    return text_response("OK")
