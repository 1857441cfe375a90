"""A connection of the server on a transport in memory, with handlers of the test and without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from tests.support.raw_client import encode, frame

from pybroker.broker.service import BrokerService
from pybroker.config import BrokerConfig
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner
from pybroker.server.connection import Connection
from pybroker.server.handler import Handler
from pybroker.server.server_context import ServerContext
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.session import SessionState

Type = pb.BaseCommand.Type
Handlers = Mapping[pb.BaseCommand.Type, Handler[Connection]]


class ManualClock(Clock):
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


class MemoryTransport(asyncio.Transport):
    """Keeps the written bytes. A client that does not read is simulated by `unread_bytes`."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        super().__init__({"peername": (host, 4711)})
        self.written = b""
        self.is_reading_paused = False
        self.is_closed = False
        self.aborted = asyncio.Event()
        self.unread_bytes = 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True
        self.aborted.set()

    @property
    def is_aborted(self) -> bool:
        return self.aborted.is_set()

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        assert not self.is_reading_paused, "paused twice"
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused, "resumed without a pause"
        self.is_reading_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    @property
    def commands(self) -> list[pb.BaseCommand]:
        """The commands that the server has sent."""
        found, data = [], self.written
        while data:
            size = int.from_bytes(data[:4], "big")
            command_size = int.from_bytes(data[4:8], "big")
            found.append(pb.BaseCommand.FromString(data[8 : 8 + command_size]))
            data = data[4 + size :]
        return found


def _connect(connection: Connection, command: pb.BaseCommand) -> None:
    """Open the session without checks."""
    connection.context.introduced(connection)
    connection.session.move_to(SessionState.CONNECTED)
    connection.session.protocol_version = command.connect.protocol_version
    connection.accept_messages()


def _ping(connection: Connection, command: pb.BaseCommand) -> None:
    connection.send(replies.PONG)


def _nothing(connection: Connection, command: pb.BaseCommand) -> None:
    pass


BASE: Handlers = {
    Type.CONNECT: Handler("connect", inline=_connect),
    Type.PING: Handler("ping", inline=_ping),
    Type.PONG: Handler("pong", inline=_nothing),
}


class Server:
    """The shared context of connections, without a broker behind it."""

    def __init__(self, handlers: Handlers | None = None, max_clients: int = 1000, **settings: Any) -> None:
        self.clock = ManualClock()
        self.runtime = Runtime(BrokerConfig(**settings), self.clock)
        broker = SimpleNamespace(
            runtime=self.runtime,
            descriptors=SimpleNamespace(max_clients=max_clients),
            broker_context=SimpleNamespace(tasks=TaskOwner("server"), pumps=SimpleNamespace(may_dispatch=None)),
        )
        self.context = ServerContext(cast(BrokerService, broker), {**BASE, **(handlers or {})})

    def connect(self, host: str = "10.0.0.1", *, is_introduced: bool = True) -> Peer:
        """Open a connection; with CONNECT unless `is_introduced` is False."""
        peer = Peer(self.context, host)
        if is_introduced:
            peer.feed(connect())
            peer.transport.written = b""
        return peer


class Peer:
    """A client of `Server`: feeds bytes and reads the answers."""

    def __init__(self, context: ServerContext, host: str) -> None:
        self.transport = MemoryTransport(host)
        self.connection = Connection(context)
        self.connection.connection_made(self.transport)

    def feed(self, data: bytes) -> None:
        """Deliver `data` in as many reads as the buffers need."""
        while data and not self.transport.is_closed:
            buffer = self.connection.get_buffer(-1)
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))
            data = data[len(part) :]

    @property
    def answers(self) -> list[pb.BaseCommand]:
        """The sent commands, including those in the outbox."""
        self.connection._outbox.flush()
        return self.transport.commands

    @property
    def state(self) -> SessionState:
        return self.connection.session.state

    def lose(self) -> None:
        """End the connection, as the event loop does."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)


def connect() -> bytes:
    return frame(encode(Type.CONNECT, client_version="test", protocol_version=21))


def ping() -> bytes:
    return frame(encode(Type.PING))


def task_handler(run: Callable[[Connection, pb.BaseCommand], Any]) -> Handlers:
    """A handler of LOOKUP that runs as a task."""
    return {Type.LOOKUP: Handler("lookupTopic", task=run)}


def lookup(request_id: int) -> bytes:
    return frame(encode(Type.LOOKUP, topic="t", request_id=request_id))
