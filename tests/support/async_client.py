"""The binary protocol of a broker in the test's process, and clients that send single commands, on the test's event
loop.

A test can stop the broker at any point, send the next command, and check the result without depending on time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker
from tests.support.raw_client import CLOSED, all_frames, encode, frame, to_dict

from pybroker.broker.topic.topic import Topic
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.server.bind_addresses import BindAddress
from pybroker.server.command_table import command_table
from pybroker.server.connection import Connection
from pybroker.server.listener import Listener
from pybroker.server.server_context import ServerContext
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand


class AsyncClient:
    """One connection. PINGs are always answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._request_id = 0
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        """Read until the connection ends."""
        frames = all_frames()
        with suppress(ConnectionError):
            while data := await self._reader.read(1 << 16):
                for command, rest in frames.feed(data):
                    if command.type == Type.PING:
                        self.send(Type.PONG)
                    else:
                        self._replies.put_nowait(to_dict(command, rest))
        self._replies.put_nowait(dict(CLOSED))

    def send(self, command_type: pb.BaseCommand.Type, payload: bytes = b"", /, **fields: Any) -> None:
        """Send a command. `payload`: checksum, metadata and message of a SEND."""
        self._writer.write(frame(encode(command_type, **fields), payload))

    def ask(self, command_type: pb.BaseCommand.Type, **fields: Any) -> int:
        """Send a command and return its new request id."""
        self._request_id += 1
        self.send(command_type, request_id=self._request_id, **fields)
        return self._request_id

    def subscribe(self, topic: str, consumer_id: int = 1, sub_type: str = "Shared", **fields: Any) -> int:
        fields = {"subscription": "s", "initialPosition": pb.CommandSubscribe.Earliest, **fields}
        kind = pb.CommandSubscribe.SubType.Value(sub_type)
        return self.ask(Type.SUBSCRIBE, topic=topic, subType=kind, consumer_id=consumer_id, **fields)

    async def next(self) -> dict[str, Any]:
        """Return the broker's next command other than a PING; CLOSED at the end of the connection."""
        async with asyncio.timeout(10):
            return await self._replies.get()

    async def answer(self, request_id: int) -> dict[str, Any]:
        """Return the response to a request. Commands before it are dropped."""
        while (found := await self.next()).get("request_id") != str(request_id):
            pass
        return found

    async def request(self, command_type: pb.BaseCommand.Type, **fields: Any) -> dict[str, Any]:
        return await self.answer(self.ask(command_type, **fields))

    async def closed(self) -> None:
        """Wait until the broker has closed the connection."""
        async with asyncio.timeout(10):
            await self._reading

    async def close(self) -> None:
        self._writer.close()
        await self._reading


class BinaryPort:
    """The port on which a broker in this process accepts connections."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._clients: list[AsyncClient] = []

    @property
    def port(self) -> int:
        assert self._listener.port is not None
        return self._listener.port

    @property
    def connections(self) -> Iterable[Connection]:
        """Return the broker's side of all connections."""
        return self._listener.context.connections

    async def open(self) -> AsyncClient:
        """Return an open connection without CONNECT."""
        client = AsyncClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def connect(self) -> AsyncClient:
        client = await self.open()
        client.send(Type.CONNECT, client_version="test", protocol_version=21)
        assert (await client.next())["type"] == "CONNECTED"
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self._listener.close()


@asynccontextmanager
async def binary_port(broker: MemoryBroker) -> AsyncIterator[BinaryPort]:
    """Serve the binary protocol of `broker`."""
    listener = Listener(ServerContext(broker.service, command_table()))
    listener.bind([BindAddress("127.0.0.1", 0, False, "brokerServicePort")], None)
    await listener.start()
    port = BinaryPort(listener)
    try:
        yield port
    finally:
        await port.close()


async def waiting(broker: MemoryBroker, count: int) -> None:
    """Run the loop until `count` requests wait for subscriptions."""
    await broker.until(lambda: broker.service.broker_context.waiting.subscriptions.count == count)


class HeldSaves:
    """Blocks writes of a topic to the metadata store until `release`, while cursors are created or deleted."""

    def __init__(self, broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = topic.ledger.name
        self._save = StoredInfo.save
        self._open = asyncio.Event()
        self._failure: Exception | None = None
        self.waiting = 0
        self.total = 0

        async def save(document: StoredInfo) -> None:
            await self._held_save(document)

        monkeypatch.setattr(StoredInfo, "save", save)

    async def _held_save(self, document: StoredInfo) -> None:
        if document.path != self._path:
            await self._save(document)
            return
        self.waiting += 1
        self.total += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        await self._save(document)

    def release(self, failure: Exception | None = None) -> None:
        """Let writes continue; the first one fails with `failure`."""
        self._failure = failure
        self._open.set()

    def hold(self) -> None:
        """Block writes from now on."""
        self._open.clear()
