"""The clients of the matrix: their credentials, the broker that knows their roles, and the answers that they expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support import credentials
from tests.support.memory_broker import START_MS, MemoryBroker, memory_broker

from pybroker.model.names import NamespaceName
from pybroker.model.policies import AuthAction, NamespacePolicies, TenantInfo

SECRET = credentials.secret_key()
NAMESPACE = NamespaceName("acme", "ns")
TOPIC = "persistent://acme/ns/t"
PROXY, POOR_PROXY = "proxy", "poor-proxy"
"""A proxy that is a superuser, and a proxy without any permission."""

ANSWERS = """
permission none invalid expired other weak producer consumer admin super proxied proxied-weak poor-proxy no-original
open       ok   ok      ok      ok    ok   ok       ok       ok    ok    ok      ok           ok         ok
-          401  401     401     ok    ok   ok       ok       ok    ok    ok      ok           ok         401
P          401  401     401     no    no   ok       ok       ok    ok    ok      no           no         401
L          401  401     401     no    no   ok       ok       ok    ok    ok      no           no         401
C          401  401     401     no    no   no       ok       ok    ok    ok      no           no         401
produce    401  401     401     no    no   ok       no       ok    ok    ok      no           no         401
somewhere  401  401     401     ok    no   ok       no       ok    ok    ok      no           no         401
both       401  401     401     no    no   no       no       ok    ok    ok      no           no         401
A          401  401     401     no    no   no       no       ok    ok    ok      no           no         401
S          401  401     401     no    no   no       no       no    ok    ok      no           no         401
renewal    401  401     401     no    no   no       no       no    ok    no      no           no         401
"""
"""The answer to each client, by the permission that a call needs.

Permissions have the letters of docs/reference/rest.md. Further permissions: `open` also without credentials; `somewhere`
to produce to any topic; `both` to produce and to consume; `renewal` the role of the new credentials, `super`, which is
not the role of a proxy. Answers: `ok` the client is not refused, `no` its role lacks the permission, `401` its
credentials are refused.

Clients: `other` administers another tenant; `weak` has no permission; `producer` and `consumer` have one on the namespace;
`admin` administers the tenant; `super` is a superuser. A superuser that is a proxy names as original principal the role of
`SUFFICIENT` (`proxied`), `weak` (`proxied-weak`), or none (`no-original`); `poor-proxy` has no permission and names the
role of `SUFFICIENT`.
"""

SUFFICIENT = {"P": "consumer", "L": "producer", "C": "consumer", "produce": "producer", "somewhere": "producer"}
SUFFICIENT |= {"A": "admin", "both": "admin", "S": "super", "renewal": "super", "-": "weak", "open": "weak"}
"""The role with the fewest permissions that is not refused, by permission."""


@dataclass(frozen=True)
class Client:
    """Credentials of one column of the matrix."""

    name: str
    token: str
    """Empty: no credentials."""
    original: str = ""
    """The original principal that a proxy names; empty: none."""

    @property
    def connect_fields(self) -> dict[str, Any]:
        fields = {"auth_method_name": "token", "auth_data": self.token.encode()} if self.token else {}
        return {**fields, "original_principal": self.original} if self.original else fields

    @property
    def headers(self) -> dict[str, str]:
        fields = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {**fields, "X-Original-Principal": self.original} if self.original else fields


def client_of(role: str, proxy: str = "", **claims: Any) -> Client:
    """Return a client with the token of `role`, or of a proxy that names `role`."""
    return Client(role, _token(proxy or role, **claims), role if proxy else "")


def client(name: str, permission: str) -> Client:
    """Return the client of a column, for a call that needs `permission`."""
    sufficient = SUFFICIENT[permission]
    match name:
        case "none":
            return Client(name, "")
        case "invalid":
            return Client(name, credentials.token(credentials.secret_key(), sub="super"))
        case "expired":
            return Client(name, _token("super", exp=START_MS // 1000 - 1))
        case "proxied":
            return Client(name, _token(PROXY), sufficient)
        case "proxied-weak":
            return Client(name, _token(PROXY), "weak")
        case "poor-proxy":
            return Client(name, _token(POOR_PROXY), sufficient)
        case "no-original":
            return Client(name, _token(PROXY))
        case _:
            return Client(name, _token(name))


def _token(role: str, **claims: Any) -> str:
    return credentials.token(SECRET, sub=role, **claims)


def expected_answers() -> dict[str, dict[str, str]]:
    """Return the answers by permission and client."""
    rows = [line.split() for line in ANSWERS.strip().splitlines()]
    columns = rows[0][1:]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows[1:]}


@asynccontextmanager
async def secured_broker(**settings: Any) -> AsyncIterator[MemoryBroker]:
    """Yield a broker with the tenants acme (administrator `admin`) and other, and the topic TOPIC."""
    async with memory_broker(
        authentication_enabled=True,
        authentication_providers=("token",),
        token_secret_key=credentials.data_url(SECRET),
        authorization_enabled=True,
        super_user_roles=("super", PROXY),
        proxy_roles=(PROXY, POOR_PROXY),
        **settings,
    ) as broker:
        resources = broker.service.resources
        for tenant, administrator in ((NAMESPACE.tenant, "admin"), ("other", "other")):
            await resources.create_tenant(tenant, TenantInfo([administrator], ["standalone"]))
            await resources.create_namespace(NamespaceName(tenant, "ns"), NamespacePolicies())
        await resources.update_namespace(NAMESPACE, _grant)
        await broker.topic(TOPIC)
        yield broker


def _grant(policies: NamespacePolicies) -> None:
    granted = policies.auth_policies.namespace_auth
    granted["producer"], granted["consumer"] = [AuthAction.PRODUCE], [AuthAction.CONSUME]
