"""A whole broker without a socket: both protocols on ports that are given to it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.async_client import AsyncClient, Type
from tests.support.memory_network import MemoryNetwork

from pybroker.admin.server import HttpServer
from pybroker.broker_assembly import Stores, build
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.config import BrokerConfig
from pybroker.errors import CannotListen
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime
from pybroker.server.bind_addresses import BindAddress, bind_addresses
from pybroker.server.command_table import command_table
from pybroker.server.listener import Listener
from pybroker.server.server_context import ServerContext
from pybroker.wire.broker_entry_metadata import entry_time_ms

BINARY, HTTP = 6650, 8080


class HandClock(Clock):
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return 784_111_777_000 + int(self.now_ms)


class Doors:
    """The ports of a broker that lives in memory alone."""

    def __init__(self, listener: Listener, http: HttpServer, network: MemoryNetwork, clock: HandClock) -> None:
        self.listener = listener
        self.http = http
        self.network = network
        self.clock = clock

    async def client(self) -> AsyncClient:
        return AsyncClient(*await self.network.ports[BINARY].connect())

    async def get(self, path: str) -> tuple[list[str], Any]:
        reader, writer = await self.network.ports[HTTP].connect()
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return head.decode().split("\r\n"), json.loads(body)


@asynccontextmanager
async def doors(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Doors]:
    monkeypatch.setattr(socket, "create_server", _no_socket)
    ports = {"broker_service_port": BINARY, "web_service_port": HTTP}
    config = BrokerConfig(**{**ports, "managed_ledger_cache_size_mb": 1, **settings})
    network, clock = MemoryNetwork(), HandClock()
    runtime = Runtime(config, clock, network=network)
    stores = Stores(MemoryMetadataStore(), MemoryLedgerStore(entry_time_ms), MemoryCursorStore())
    service = await build(runtime, stores)
    service.presence.addresses = AdvertisedAddresses(config, BoundPorts(BINARY, None, HTTP, None), "broker.example")
    service.presence.ready = True
    listener = Listener(ServerContext(service, command_table()))
    listener.bind(bind_addresses(config), None)
    http = HttpServer(service, None, clock)
    await listener.start()
    await http.start()
    try:
        yield Doors(listener, http, network, clock)
    finally:
        await listener.close()
        await http.close()
        await service.close()
    assert not network.ports


def _no_socket(*_: object, **__: Any) -> None:
    raise AssertionError("a socket was asked for")


async def test_a_message_and_a_request_pass_a_broker_that_has_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    async with doors(monkeypatch) as broker:
        client = await broker.client()
        client.send(Type.CONNECT, client_version="test", protocol_version=21)
        assert (await client.next())["type"] == "CONNECTED"
        topic = "persistent://public/default/t"
        assert (await client.request(Type.PRODUCER, topic=topic, producer_id=1))["type"] == "PRODUCER_SUCCESS"
        head, topics = await broker.get("/admin/v2/persistent/public/default")
        assert head[0] == "HTTP/1.1 200 OK"
        assert topics == [topic]
        assert "date: Sun, 06 Nov 1994 08:49:37 GMT" in head, "the time of day comes from the clock that it was given"
        await client.close()


async def test_who_says_nothing_is_late_by_the_clock_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async with doors(monkeypatch, connect_command_timeout_ms=5000) as broker:
        reader, _writer = await broker.network.ports[BINARY].connect()
        context = broker.listener.context
        broker.clock.now_ms += 4999
        context.close_unauthenticated()
        await asyncio.sleep(0)
        assert len(context.connections) == 1
        broker.clock.now_ms += 1
        context.close_unauthenticated()
        assert await reader.read() == b""
        await context.all_closed.wait()


async def test_a_port_that_is_taken_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with doors(monkeypatch) as broker:
        second = Listener(broker.listener.context)
        with pytest.raises(CannotListen, match=r"6650.*brokerServicePort"):
            second.bind([BindAddress("127.0.0.1", BINARY, False, "brokerServicePort")], None)


async def test_a_broker_that_stops_accepts_nobody_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with doors(monkeypatch) as broker:
        port = broker.network.ports[BINARY]
        broker.listener.stop_reading()
        with pytest.raises(ConnectionRefusedError):
            await port.connect()
