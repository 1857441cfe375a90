"""Every WebSocket path, and the statistics of its sessions, by every client: the answers are in `clients.py`.

A path of the service without a row fails the test.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from tests.protocol.authorization_matrix.clients import (
    POOR_PROXY,
    PROXY,
    SECRET,
    Client,
    client,
    client_of,
    expected_answers,
)
from tests.protocol.authorization_matrix.http_exchange import HttpExchange
from tests.support import credentials
from tests.support.memory_broker import memory_broker
from tests.support.websockets import session

from pybroker.embedding.embedded_broker import EmbeddedBroker, embed
from pybroker.websocket.websocket_service import WebSocketService


class Row(NamedTuple):
    """A permission, the status of an allowed request, and the status without the permission."""

    permission: str
    allowed: int
    refused: int = 0


T = "{domain}/{tenant}/{namespace}/{topic}"
ROWS = {
    f"/ws/v2/producer/{T}": Row("produce", 101, 403),
    f"/ws/v2/consumer/{T}/{{subscription}}": Row("C", 101, 403),
    f"/ws/v2/reader/{T}": Row("C", 101, 403),
    "/ws/v3/consumer/{subscription}": Row("C", 101, 403),
    "/ws/v2/producer/{rest:path}": Row("-", 400),
    "/ws/v2/consumer/{rest:path}": Row("-", 400),
    "/ws/v2/reader/{rest:path}": Row("-", 400),
    "/ws/v3/consumer/{rest:path}": Row("-", 400),
    "/admin/v2/proxy-stats/metrics": Row("S", 200, 401),
    "/admin/v2/proxy-stats/stats": Row("S", 200, 401),
    f"/admin/v2/proxy-stats/{T}/stats": Row("A", 404, 401),
}
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
NAMES = {"domain": "persistent", "tenant": "acme", "namespace": "ns", "topic": "t", "rest": "a/b/c/d/e/f"}
NAMESPACE = "/admin/v2/namespaces/acme/ns"
GRANTS = {"producer": ["produce"], "consumer": ["consume"], "alice": ["produce", "consume"]}


async def call(
    broker: EmbeddedBroker, method: str, path: str, caller: Client, body: object = None, **headers: str
) -> int:
    async with HttpExchange(int(broker.admin_url.rpartition(":")[2])) as http:
        return (await http.send(method, path, body, {**caller.headers, **headers})).status


@asynccontextmanager
async def secured_service() -> AsyncIterator[EmbeddedBroker]:
    """Yield a broker with the WebSocket service, and the roles of the matrix."""
    root = client_of("super")
    settings: dict[str, Any] = {
        "webSocketServiceEnabled": True,
        "authenticationEnabled": True,
        "authenticationProviders": "token",
        "tokenSecretKey": credentials.data_url(SECRET),
        "authorizationEnabled": True,
        "superUserRoles": f"super,{PROXY}",
        "proxyRoles": f"{PROXY},{POOR_PROXY}",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{root.token}",
    }
    async with embed(**settings) as broker:
        for tenant, administrator in (("acme", "admin"), ("other", "other")):
            document = {"adminRoles": [administrator], "allowedClusters": ["standalone"]}
            assert await call(broker, "PUT", f"/admin/v2/tenants/{tenant}", root, document) == 204
        assert await call(broker, "PUT", NAMESPACE, root) == 204
        for role, actions in GRANTS.items():
            assert await call(broker, "POST", f"{NAMESPACE}/permissions/{role}", root, actions) == 204
        yield broker


async def test_every_websocket_path_has_a_row() -> None:
    async with memory_broker() as broker:
        assert {route.path for route in WebSocketService(broker.service).routes()} == set(ROWS)


async def test_every_websocket_path_with_every_client() -> None:
    wrong = []
    async with secured_service() as broker:
        for path, row in ROWS.items():
            for name, answer in expected_answers()[row.permission].items():
                names = {**NAMES, "subscription": f"s-{name}"}
                url = re.sub(r"\{(\w+)(?::path)?\}", r"{\1}", path).format_map(names)
                query = "?topics=persistent://acme/ns/t" if path.startswith("/ws/v3") else ""
                fields = HANDSHAKE if path.startswith("/ws/") else {}
                status = await call(broker, "GET", url + query, client(name, row.permission), **fields)
                expected = {"ok": row.allowed, "no": row.refused}.get(answer, 401)
                if status != expected:
                    wrong.append(f"{path} ({row.permission}) by {name}: {status}, expected {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "permission"),
    [
        ("v2/producer/persistent/acme/ns/t", "produce"),
        ("v2/consumer/persistent/acme/ns/t/s", "consume"),
        ("v2/reader/persistent/acme/ns/t", "consume"),
        ("v3/consumer/s?topics=persistent://acme/ns/t,persistent://acme/ns/u", "consume"),
        ("v3/consumer/s?topicsPattern=persistent://acme/ns/t.*", "consume"),
    ],
)
async def test_revoked_permission_ends_session(path: str, permission: str) -> None:
    headers = client_of("alice").headers
    async with secured_service() as broker:
        assert await call(broker, "PUT", "/admin/v2/persistent/acme/ns/t", client_of("super")) == 204
        async with session(broker.admin_url, path, additional_headers=headers) as opened:
            await revoke(broker)
            code, reason = await opened.close_code()
    assert (code, f"the permission {permission} on namespace acme/ns is missing" in reason) == (1008, True), reason


async def revoke(broker: EmbeddedBroker) -> None:
    assert await call(broker, "DELETE", f"{NAMESPACE}/permissions/alice", client_of("super")) == 204
