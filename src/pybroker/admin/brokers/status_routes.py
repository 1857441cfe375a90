"""Health probes and load balancer checks without credentials.

`/live` answers whether to restart the process: it succeeds whenever the event loop runs, because a restart solves no
other problem, least of all a full disk. `/ready` answers whether clients can be sent here. `/status.html` is Pulsar's,
and OK while the file `statusFilePath` exists; deleting it removes a broker from a load balancer.
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
        route("GET", "/ready", get_ready, answers={503: "Not now, and why"}),
    ]


async def get_live(_call: Call) -> Response:
    """`ok` as long as the broker answers at all."""
    return text_response("ok")


async def get_status(call: Call) -> Response:
    """`OK` while the file `statusFilePath` exists and the broker neither starts nor stops."""
    if not call.broker.presence.takes_clients:
        raise AdminError(404, "The broker is starting or stopping")
    path = call.config.status_file_path
    # One stat of a local file needs no thread.
    if not path or not Path(path).exists():  # noqa: ASYNC240
        raise AdminError(404, "Status file is not there (statusFilePath)")
    return text_response("OK")
