"""A ZooKeeper server in a simulation: sessions that expire, and connections that delay, lose and end, all by the seed.

The broker's own client and store run on it, byte for byte: `connect` takes the place of the loop's `create_connection`.

What must hold, as on a real server: requests of a connection happen in their order and are answered in it; an event reaches a
client before the answer to any later read; watches belong to a connection; a session that was not heard for its time-out ends, and
its client is not told. A request may happen although its answer is lost, and the connection with it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Any

from tests.simulate.zookeeper_tree import Refused, ZooKeeperTree, failed_multi

from pybroker.zookeeper.errors import NoNode
from pybroker.zookeeper.jute import Reader, pack_buffer, pack_int, pack_text
from pybroker.zookeeper.operations import (
    ANY_VERSION,
    OPEN_ACL,
    CreateMode,
    NodeEvent,
    NodeEventType,
    Operation,
    create_body,
    pack_acl,
)

_LENGTH = Struct(">i")
_ANSWER = Struct(">iqi")
_CONNECT = Struct(">iqiq")
_EVENT_XID = -1
_STATE_CONNECTED = 3
MIN_TIMEOUT_MS = 1000
LONGEST_TICK_S = 0.5
"""How much longer than its time-out a session may last."""
CONTAINERS_S = 2.0


class _Session:
    def __init__(self, number: int, timeout_ms: int) -> None:
        self.number = number
        self.timeout_ms = timeout_ms
        self.expires_s = 0.0


class _Connection(asyncio.Transport):
    """One connection, both ends. Bytes of each direction arrive in their order."""

    def __init__(self, server: ZooKeeperModel, protocol: asyncio.Protocol, owner: object) -> None:
        super().__init__()
        self._server = server
        self._client = contextvars.copy_context()  # what the client's end does, it does in its own name
        self.protocol = protocol
        self.owner = owner
        self.session: _Session | None = None
        self.persistent: set[str] = set()
        self.recursive: set[str] = set()
        self.is_over = False
        self._received = b""
        self._arrives_s = {True: 0.0, False: 0.0}
        self._transit: dict[bool, deque[bytes]] = {True: deque(), False: deque()}

    # --- the client's end

    def write(self, data: Any) -> None:
        if self.is_over:
            raise RuntimeError("the handler is closed")  # as uvloop does
        self._send(bytes(data), to_server=True)

    def abort(self) -> None:
        self.end()

    def close(self) -> None:
        self.end()

    def is_closing(self) -> bool:
        return self.is_over

    # --- the network between

    def end(self) -> None:
        """Both sides find it closed; what is on its way is lost."""
        if not self.is_over:
            self.is_over = True
            self._server.connections.pop(self, None)
            self._server.loop.call_soon(self.protocol.connection_lost, None, context=self._client)

    def _send(self, data: bytes, *, to_server: bool) -> None:
        server = self._server
        if self.is_over:
            return
        thaws_s = server.thaws_s.get(self.owner, 0)
        at_s = max(self._arrives_s[to_server], server.loop.time() + server.delay_s(), thaws_s)
        self._arrives_s[to_server] = at_s
        self._transit[to_server].append(data)
        self._call_at(at_s, to_server=to_server)

    def _call_at(self, at_s: float, *, to_server: bool) -> None:
        context = self._server.context if to_server else self._client
        self._server.loop.call_at(at_s, self._arrive, to_server, context=context)

    def _arrive(self, to_server: bool) -> None:
        """Let the next bytes arrive: timers of one moment have no order."""
        if self.is_over:
            return
        thaws_s = self._server.thaws_s.get(self.owner, 0)
        if thaws_s > self._server.loop.time():  # the network was frozen meanwhile
            self._call_at(thaws_s, to_server=to_server)
            return
        data = self._transit[to_server].popleft()
        if to_server:
            self._at_server(data)
        else:
            self.protocol.data_received(data)

    def _at_server(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and not self.is_over:
            end = 4 + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame, self._received = self._received[4:end], self._received[end:]
            self._server.received(self, frame)

    # --- the server's end

    def answer(self, body: bytes) -> None:
        self._send(_LENGTH.pack(len(body)) + body, to_server=False)


class ZooKeeperModel:
    """One server. `chance` decides delays; faults are what a scenario calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: Random) -> None:
        self.loop = loop
        self.context = contextvars.copy_context()
        self.tree = ZooKeeperTree()
        self.connections: dict[_Connection, None] = {}
        self.thaws_s: dict[object, float] = {}
        self.refuses_until_s = 0.0
        self.lost_answers = 0
        """So many of the next changes happen, and their connection ends instead of the answer."""
        self.lost_sessions: list[int] = []
        self.on_event: Callable[[int, NodeEvent], None] = lambda session, event: None
        """Called with the session and the event of each change, at the moment at which the server performs it."""
        self._chance = chance
        self._sessions: dict[int, _Session] = {}
        self._numbers = 0
        loop.call_later(CONTAINERS_S, self._drop_containers, context=self.context)

    def prepare(self, cluster: str) -> None:
        """As `pybroker metadata init`, in short."""
        for path in ("/admin", "/admin/clusters", f"/admin/clusters/{cluster}"):
            self.create_node(path, b"{}" if path.endswith(cluster) else b"")

    def create_node(self, path: str, value: bytes = b"") -> None:
        """Create a node as another client does. Does nothing if it exists."""
        if path not in self.tree.nodes:
            body = create_body(path, value, CreateMode.PERSISTENT, pack_acl(OPEN_ACL))
            self._report(self.tree.perform(Operation.CREATE, body, 0).events)

    def delete_node(self, path: str) -> None:
        """Delete a node as another client does. Does nothing without it."""
        if path in self.tree.nodes:
            body = pack_text(path) + pack_int(ANY_VERSION)
            self._report(self.tree.perform(Operation.DELETE, body, 0).events)

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str = "", port: int = 0, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """As `loop.create_connection`; `host` names the client for faults."""
        await asyncio.sleep(self.delay_s())
        if self.loop.time() < self.refuses_until_s:
            raise ConnectionRefusedError(host)
        protocol = factory()
        connection = _Connection(self, protocol, host)
        self.connections[connection] = None
        protocol.connection_made(connection)
        return connection, protocol

    def delay_s(self) -> float:
        return self._chance.choice((0.0001, 0.0005, 0.001, 0.003, 0.02))

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, owner: object = None) -> None:
        """End the connections of one client, or all."""
        for connection in list(self.connections):
            if owner in (None, connection.owner):
                connection.end()

    def freeze(self, owner: object, for_s: float) -> None:
        """Nothing of that client's connections arrives anywhere for so long."""
        self.thaws_s[owner] = self.loop.time() + for_s

    def refuse(self, for_s: float) -> None:
        self.refuses_until_s = self.loop.time() + for_s
        self.cut()

    # --- requests ----------------------------------------------------------------------------------------------------

    def received(self, connection: _Connection, frame: bytes) -> None:
        if connection.session is None:
            self._greet(connection, frame)
            return
        session = connection.session
        if session.number not in self._sessions:
            connection.end()
            return
        self._heard(session)
        reader = Reader(frame)
        xid, operation = reader.integer(), reader.integer()
        body = frame[8:]
        code, answer = 0, b""
        match operation:
            case Operation.PING | Operation.SYNC | Operation.AUTH:
                pass
            case Operation.CLOSE_SESSION:
                self._end_session(session)
            case Operation.ADD_WATCH:
                path, is_recursive = reader.text(), reader.integer()
                (connection.recursive if is_recursive else connection.persistent).add(path)
            case Operation.SET_WATCHES:
                reader.long()
                for _ in range(3):
                    reader.texts()
                connection.persistent.update(reader.texts())
                connection.recursive.update(reader.texts())
            case Operation.REMOVE_WATCHES:
                path = reader.text()
                code = 0 if path in connection.persistent | connection.recursive else NoNode.code
                connection.persistent.discard(path)
                connection.recursive.discard(path)
            case _:
                code, answer = self._perform(operation, body, session)
                if self.lost_answers and operation not in (Operation.GET, Operation.EXISTS, Operation.CHILDREN):
                    self.lost_answers -= 1
                    connection.end()
        connection.answer(_ANSWER.pack(xid, self.tree.zxid, code) + answer)

    def _perform(self, operation: int, body: bytes, session: _Session) -> tuple[int, bytes]:
        try:
            done = self.tree.perform(operation, body, session.number)
        except Refused as refused:
            is_multi = refused.index is not None
            return (0, failed_multi(refused)) if is_multi else (refused.error.code, b"")
        for event in done.events:
            self.on_event(session.number, event)
        self._report(done.events)
        return 0, done.body

    def _greet(self, connection: _Connection, frame: bytes) -> None:
        reader = Reader(frame)
        _, _, timeout_ms, number = reader.unpack(_CONNECT)
        if number:
            session = self._sessions.get(number)
        else:
            self._numbers += 1
            session = self._sessions[self._numbers] = _Session(self._numbers, max(timeout_ms, MIN_TIMEOUT_MS))
        if session is None:
            connection.answer(pack_int(0) + pack_int(0) + bytes(8) + pack_buffer(bytes(16)) + b"\0")
            return
        for other in list(self.connections):
            if other.session is session:
                other.end()  # the session has moved
        connection.session = session
        self._heard(session)
        number_bytes = session.number.to_bytes(8, "big")
        connection.answer(pack_int(0) + pack_int(session.timeout_ms) + number_bytes + pack_buffer(bytes(16)) + b"\0")

    def _report(self, events: list[NodeEvent]) -> None:
        for event in events:
            for connection in list(self.connections):
                if _is_watched(connection, event):
                    number = pack_int(event.type) + pack_int(_STATE_CONNECTED) + pack_text(event.path)
                    connection.answer(_ANSWER.pack(_EVENT_XID, -1, 0) + number)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _heard(self, session: _Session) -> None:
        tick_s = self._chance.uniform(0, LONGEST_TICK_S)
        session.expires_s = self.loop.time() + session.timeout_ms / 1000 + tick_s
        self.loop.call_at(session.expires_s, self._check, session, context=self.context)

    def _check(self, session: _Session) -> None:
        if session.number in self._sessions and self.loop.time() >= session.expires_s:
            self.lost_sessions.append(session.number)
            self._end_session(session)
            for connection in list(self.connections):
                if connection.session is session:
                    connection.end()

    def _end_session(self, session: _Session) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self._report(self.tree.end_session(session.number))

    def has_session(self, number: int) -> bool:
        return number in self._sessions

    def _drop_containers(self) -> None:
        self._report(self.tree.drop_containers())
        self.loop.call_later(CONTAINERS_S, self._drop_containers, context=self.context)


def _is_watched(connection: _Connection, event: NodeEvent) -> bool:
    if event.path in connection.persistent:
        return True
    if event.type is NodeEventType.CHILDREN_CHANGED:
        return False
    path = event.path
    while path:
        if path in connection.recursive:
            return True
        path = path.rpartition("/")[0]
    return "/" in connection.recursive
