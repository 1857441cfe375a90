"""REST routes of Pulsar features that this broker does not have: functions, IO connectors, packages.

Admin tools call these routes before they use a feature.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError

METHODS = ("GET", "POST", "PUT", "DELETE")
WITHOUT_WORKER = (
    "/admin/v2/functions",
    "/admin/v2/worker",
    "/admin/v2/worker-stats",
    "/admin/v3/functions",
    "/admin/v3/sources",
    "/admin/v3/sinks",
)
PACKAGES = "/admin/v3/packages"


def routes() -> list[Route]:
    found: list[Route] = []
    for method in METHODS:
        for base in WITHOUT_WORKER:
            found += [route(method, base, refuse_functions), route(method, base + "/{rest:path}", refuse_functions)]
        found += [route(method, PACKAGES + "/{rest:path}", refuse_packages)]
    return found


async def refuse_functions(_call: Call) -> Response:
    """Return 409, because the broker has no functions worker."""
    raise AdminError(409, "Functions, sources and sinks cannot be used: this broker has no functions worker")


async def refuse_packages(_call: Call) -> Response:
    """Return 503, because the broker has no package storage."""
    raise AdminError(503, "Packages cannot be used: this broker has no package storage")
