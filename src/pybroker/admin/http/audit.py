"""Audit log of REST calls: the logger `pybroker.audit` writes one line `rest.acted` per call that can change something,
successful or not, and records `access.refused` for calls that are refused with 401 or 403.

A line contains no body, header or query token. Published messages, read leases and plans are logged only if they are
refused, because they are frequent.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.routing import Route
from starlette.types import Scope

from pybroker.auth.authentication import Identity
from pybroker.auth.refused_accesses import Cause, Interface, RefusedAccess, cause_of
from pybroker.errors import AdminError
from pybroker.runtime import logs

UNAUTHENTICATED, FORBIDDEN = 401, 403
REFUSED_STATUSES = frozenset({UNAUTHENTICATED, FORBIDDEN})

_LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
_TRAFFIC = ("/topics/", "/admin/v3/entries/")
_SECRET = frozenset({"token"})


def is_act(method: str, route_path: str) -> bool:
    """Return whether calls of the route are written to the audit log. `route_path` is "" for an unknown path."""
    return method not in _LOOKING and route_path != "" and not route_path.startswith(_TRAFFIC)


def refused_access(
    scope: Scope, identity: Identity | None, address: str, status: int, failure: Exception | None
) -> RefusedAccess:
    """Return the audit record of a request that is refused with `status`. `identity` is None if the client is not
    authenticated. `failure` is the error that refused the request, if there is one.
    """
    is_unknown = identity is None and status == UNAUTHENTICATED
    cause = cause_of(failure) or (Cause.AUTHENTICATION if is_unknown else Cause.AUTHORIZATION)
    reason = failure.reason if isinstance(failure, AdminError) else "" if failure is None else str(failure)
    principal = None if identity is None else identity.principal
    return RefusedAccess(Interface.HTTP, cause, principal, address, scope["method"], scope["path"], str(status), reason)


def write_down(scope: Scope, identity: Identity, address: str, status: int) -> None:
    role = identity.role
    query = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] not in _SECRET]
    fields: dict[str, object] = {"role": "-" if role is None else role, "address": address, "method": scope["method"]}
    if identity.proxy_role is not None:
        fields["proxy_role"] = identity.proxy_role
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
    route = scope.get("route")
    return route.path if isinstance(route, Route) and scope["method"] in (route.methods or ()) else ""
