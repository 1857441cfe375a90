"""Connections whose authentication waits for its provider count as unauthenticated until they are authenticated."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Self

import pytest
from tests.support.async_client import AsyncClient, BinaryPort, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import CLOSED

from pybroker.auth.authentication_provider import (
    AuthenticationProvider,
    AuthenticationState,
    Challenge,
    Identity,
    ProviderEnvironment,
    RemoteClient,
)
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
LIMIT = 3


class Waiting(AuthenticationProvider):
    """Waits for `answer` before it accepts a client. A client with the credentials `steps` gets a challenge."""

    method = "waiting"
    answer: ClassVar[asyncio.Event]
    asked: ClassVar[int]

    @classmethod
    def create(cls, environment: ProviderEnvironment) -> Self:
        cls.answer, cls.asked = asyncio.Event(), 0
        return cls()

    def new_state(self, client: RemoteClient) -> AuthenticationState:
        return _Steps()


class _Steps(AuthenticationState):
    async def authenticate(self, data: bytes) -> Identity | Challenge:
        if data == b"steps":
            return Challenge(b"next")
        Waiting.asked += 1
        await Waiting.answer.wait()
        return Identity("app", Waiting.method, None)


SETTINGS: dict[str, Any] = {"authentication_enabled": True, "authentication_providers": (f"{__name__}:Waiting",)}


async def begun(port: BinaryPort, data: bytes = b"x") -> AsyncClient:
    """Return a connection that has sent CONNECT."""
    client = await port.open()
    client.send(Type.CONNECT, client_version="test", protocol_version=21, auth_method_name="waiting", auth_data=data)
    return client


async def asked(broker: MemoryBroker, count: int) -> None:
    await broker.until(lambda: Waiting.asked == count)


async def test_waiting_authentications_never_exceed_the_limit_of_unauthenticated_connections() -> None:
    async with memory_broker(**SETTINGS, max_connections_before_connect=LIMIT) as broker, binary_port(broker) as port:
        clients = []
        for count in range(1, 2 * LIMIT + 1):
            clients.append(await begun(port))
            await asked(broker, count)
            assert len(list(port.connections)) <= LIMIT
        for displaced in clients[:LIMIT]:
            assert await displaced.next() == CLOSED
        Waiting.answer.set()
        for admitted in clients[LIMIT:]:
            assert (await admitted.next())["type"] == "CONNECTED"
        context = next(iter(port.connections)).context
        assert not len(context.unauthenticated)


async def test_authenticated_clients_leave_room_for_others() -> None:
    async with memory_broker(**SETTINGS, max_connections_before_connect=LIMIT) as broker, binary_port(broker) as port:
        Waiting.answer.set()
        clients = [await begun(port) for _ in range(2 * LIMIT)]
        for each in clients:
            assert (await each.next())["type"] == "CONNECTED"


async def test_silent_connections_are_displaced_before_those_that_sent_credentials() -> None:
    async with memory_broker(**SETTINGS, max_connections_before_connect=LIMIT) as broker, binary_port(broker) as port:
        early = await begun(port)
        await asked(broker, 1)
        silent = [await port.open() for _ in range(LIMIT + 1)]
        for displaced in silent[:2]:
            assert await displaced.next() == CLOSED
        Waiting.answer.set()
        assert (await early.next())["type"] == "CONNECTED"


@pytest.mark.parametrize("limit", ["broker_max_connections", "broker_max_connections_per_ip"])
async def test_connections_authenticated_at_the_same_time_do_not_exceed_the_limit(limit: str) -> None:
    settings: dict[str, Any] = {**SETTINGS, limit: 1}
    async with memory_broker(**settings) as broker, binary_port(broker) as port:
        clients = [await begun(port) for _ in range(3)]
        await asked(broker, 3)
        Waiting.answer.set()
        answers = sorted([(await each.next())["type"] for each in clients])
        assert answers == ["CONNECTED", "ERROR", "ERROR"]


async def test_time_for_connect_does_not_end_a_running_check_but_a_missing_response() -> None:
    async with memory_broker(**SETTINGS, connect_command_timeout_ms=5000) as broker, binary_port(broker) as port:
        checked, challenged = await begun(port), await begun(port, b"steps")
        assert (await challenged.next())["type"] == "AUTH_CHALLENGE"
        await asked(broker, 1)
        for each in port.connections:
            each.waits_since_s -= 5
        next(iter(port.connections)).context.close_unauthenticated()
        assert await challenged.next() == CLOSED
        Waiting.answer.set()
        assert (await checked.next())["type"] == "CONNECTED"
