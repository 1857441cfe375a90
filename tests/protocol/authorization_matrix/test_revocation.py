"""Connected clients whose role loses its permission in each possible way: the broker closes their producers, consumers,
topic list watchers and event streams, also of clients that connect through a Pulsar proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.protocol.authorization_matrix.clients import NAMESPACE, TOPIC, client_of, secured_broker
from tests.protocol.authorization_matrix.http_exchange import HOST, HttpExchange
from tests.support.async_client import AsyncClient, binary_port
from tests.support.memory_broker import START_MS, MemoryBroker

from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
ON_NAMESPACE = f"/namespaces/{NAMESPACE}/permissions"
ON_TOPIC = f"/{TOPIC.replace('://', '/')}/permissions"
BOTH = ["produce", "consume"]


@dataclass(frozen=True)
class Case:
    """The role of a client, the calls that grant its permission, and the call that revokes it."""

    role: str
    granting: tuple[tuple[str, str, object], ...]
    revoking: tuple[str, str, object]
    proxy: str = ""
    can_list: bool = True
    """Permissions of a single topic do not allow to watch the topics of the namespace."""


def without(administrator: str) -> dict[str, list[str]]:
    return {
        "adminRoles": [role for role in ("admin", "boss") if role != administrator],
        "allowedClusters": ["standalone"],
    }


def of_permission(role: str, path: str, proxy: str = "", client_role: str = "", *, can_list: bool = True) -> Case:
    grant, revoke = ("POST", f"{path}/{role}", BOTH), ("DELETE", f"{path}/{role}", None)
    return Case(client_role or role, (grant,), revoke, proxy, can_list)


CASES = {
    "permission of the namespace": of_permission("alice", ON_NAMESPACE),
    "permission of the topic": of_permission("alice", ON_TOPIC, can_list=False),
    "administrator of the tenant": Case(
        "boss", (("POST", "/tenants/acme", without("nobody")),), ("POST", "/tenants/acme", without("boss"))
    ),
    "superuser": Case(
        "operator",
        (("POST", "/brokers/configuration/superUserRoles/super,proxy,operator", None),),
        ("POST", "/brokers/configuration/superUserRoles/super,proxy", None),
    ),
    "permission of a proxy's client": of_permission("alice", ON_NAMESPACE, "proxy"),
    "permission of a proxy": of_permission("poor-proxy", ON_NAMESPACE, "poor-proxy", "super"),
    "superuser that is a proxy": Case(
        "super",
        (),
        ("POST", "/brokers/configuration/superUserRoles/super", None),
        "proxy",
    ),
}


async def call(broker: MemoryBroker, method: str, path: str, body: object) -> None:
    async with HttpExchange(broker.port) as http:
        answer = await http.send(method, f"/admin/v2{path}", body, client_of("super").headers)
    assert answer.status in {200, 204}, answer


@asynccontextmanager
async def event_stream(broker: MemoryBroker, headers: dict[str, str]) -> AsyncIterator[asyncio.StreamReader]:
    """Open a live connection of the console, and yield it after its first event."""
    reader, writer = await asyncio.open_connection(HOST, broker.port)
    fields = {"Host": HOST, "Accept": "text/event-stream", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"GET /admin/v3/console/live/{TOPIC.replace('://', '/')} HTTP/1.1\r\n{lines}\r\n".encode())
    assert b" 200 " in await reader.readline()
    await reader.readuntil(b"event: begin")
    try:
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


async def attached(sender: AsyncClient, case: Case) -> None:
    """Create a producer and a consumer, and watch the topics of the namespace."""
    assert "error" not in await sender.request(Type.PRODUCER, topic=TOPIC, producer_id=1)
    assert "error" not in await sender.answer(sender.subscribe(TOPIC))
    if case.can_list:
        pattern = f"persistent://{NAMESPACE}/.*"
        watched = await sender.request(
            Type.WATCH_TOPIC_LIST, namespace=str(NAMESPACE), watcher_id=1, topics_pattern=pattern
        )
        assert "error" not in watched, watched


@pytest.mark.parametrize("what", CASES)
async def test_revoked_permission_closes_what_the_client_has_open(what: str) -> None:
    case = CASES[what]
    async with secured_broker(console_sample_interval_ms=100) as broker, binary_port(broker) as port:
        for each in case.granting:
            await call(broker, *each)
        caller = client_of(case.role, case.proxy)
        sender = await port.open()
        sender.send(Type.CONNECT, client_version="test", protocol_version=21, **caller.connect_fields)
        assert (await sender.next())["type"] == "CONNECTED"
        await attached(sender, case)
        async with event_stream(broker, caller.headers) as stream, asyncio.timeout(10):
            await call(broker, *case.revoking)
            closed = {(await sender.next())["type"] for _ in range(2)}
            assert closed == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}
            assert not any(each.topic_watchers for each in port.connections)
            await stream.readuntil(b"event: end")
        refused = await sender.request(Type.PRODUCER, topic=TOPIC, producer_id=1)
        assert refused["error"] == "AuthorizationError"


async def test_expired_credentials_end_an_event_stream() -> None:
    async with secured_broker(console_sample_interval_ms=100) as broker:
        headers = client_of("super", exp=START_MS // 1000 + 30).headers
        async with event_stream(broker, headers) as stream, asyncio.timeout(10):
            broker.clock.now_ms += 60_000
            await stream.readuntil(b"the credentials have expired")
