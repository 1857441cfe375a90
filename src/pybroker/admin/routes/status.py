"""`/status.html`: OK while the file `statusFilePath` exists; removing it takes a broker out of a balancer."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, route, text_response
from pybroker.errors import AdminError


def routes() -> list[Route]:
    return [route("GET", "/status.html", get_status)]


async def get_status(call: Call) -> Response:
    path = call.config.status_file_path
    # One stat of a local file: not worth a thread.
    if not path or not Path(path).exists():  # noqa: ASYNC240
        raise AdminError(404, "Status file is not there (statusFilePath)")
    return text_response("OK")
