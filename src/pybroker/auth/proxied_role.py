"""The role of a client that connects through a Pulsar proxy, and the rules for the roles of proxy and client.

Source: Pulsar's `proxyRoles`. A proxy authenticates with its own role, and names the role of its client, the original
principal.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

ORIGINAL_PRINCIPAL_HEADER = "x-original-principal"


class ProxiedRole(NamedTuple):
    """The role of a client, and the role of the proxy through which it connects. For authorization, both roles need the
    permission; everything else belongs to the role of the client.
    """

    role: str
    proxy_role: str


Principal: TypeAlias = str | ProxiedRole | None
"""What authorization checks: a role, the roles of client and proxy, or None without authentication."""


def principal_of(role: str | None, proxy_role: str | None) -> Principal:
    return role if role is None or proxy_role is None else ProxiedRole(role, proxy_role)


def roles_of(principal: Principal) -> tuple[str | None, ...]:
    """Return the roles of `principal`, each of which must have a permission: the proxy's, if there is one, then the
    client's.
    """
    return (principal.proxy_role, principal.role) if isinstance(principal, ProxiedRole) else (principal,)


def client_role(principal: Principal) -> str | None:
    return principal.role if isinstance(principal, ProxiedRole) else principal


def refusal_of_roles(
    proxy_roles: Collection[str], role: str | None, original: str, *, may_be_equal: bool = False
) -> str:
    """Return why the combination of the authenticated `role` and the `original` principal is invalid; empty if it is
    valid.

    With `may_be_equal`, a role outside `proxy_roles` may name itself as the original principal, as REST clients may.
    """
    if role in proxy_roles:
        if not original.strip():
            return "originalPrincipal must be provided when connecting with a proxy role."
        if original in proxy_roles:
            return "originalPrincipal cannot be a proxy role."
    elif original.strip() and not (may_be_equal and original == role):
        return "cannot specify originalPrincipal when connecting without valid proxy role."
    return ""
