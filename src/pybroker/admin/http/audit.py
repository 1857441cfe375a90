"""The audit log: one line of the logger `pybroker.audit` for each REST call that may change something, successful or refused.

Invariant: a line contains no secret: bodies and headers are not used, and no token of the query. Frequent operations of clients are
not logged: published messages, leases of readers, plans.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.routing import Route
from starlette.types import Scope

from pybroker.runtime import logs

_LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
_TRAFFIC = ("/topics/", "/admin/v3/entries/")
_SECRET = frozenset({"token"})


def is_act(method: str, route_path: str) -> bool:
    """Whether calls of that route are written down; its path is empty when the call came to none."""
    return method not in _LOOKING and route_path != "" and not route_path.startswith(_TRAFFIC)


def write_down(scope: Scope, role: str | None, address: str, status: int) -> None:
    """A call of a route has been answered with that status."""
    query = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] not in _SECRET]
    fields: dict[str, object] = {"role": "-" if role is None else role, "address": address, "method": scope["method"]}
    fields["path"] = scope["path"]
    if query:
        fields["query"] = urlencode(query)
    logs.audit("rest.acted", **fields, status=status, outcome=_outcome(status))


def _outcome(status: int) -> str:
    if not status:
        return "unanswered"
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"


def route_path(scope: Scope) -> str:
    """The path of the route that the call has come to, with its parameters; empty when there is none of its method."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) and scope["method"] in (route.methods or ()) else ""
