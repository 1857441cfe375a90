"""Audit log: the logger `pybroker.audit` writes one line per REST call that can change something, successful or not.

A line contains no body, header or query token. Published messages, read leases and plans are not logged, because they
are frequent.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.routing import Route
from starlette.types import Scope

from pybroker.auth.authentication_provider import Identity
from pybroker.runtime import logs

_LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
_TRAFFIC = ("/topics/", "/admin/v3/entries/")
_SECRET = frozenset({"token"})


def is_act(method: str, route_path: str) -> bool:
    """Return whether calls of the route are written to the audit log. `route_path` is "" for an unknown path."""
    return method not in _LOOKING and route_path != "" and not route_path.startswith(_TRAFFIC)


def write_down(scope: Scope, identity: Identity, address: str, status: int) -> None:
    query = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] not in _SECRET]
    fields: dict[str, object] = {"role": "-" if identity.role is None else identity.role}
    if identity.proxy_role is not None:
        fields["proxy_role"] = identity.proxy_role
    fields |= {"address": address, "method": scope["method"], "path": scope["path"]}
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
    route = scope.get("route")
    return route.path if isinstance(route, Route) and scope["method"] in (route.methods or ()) else ""
