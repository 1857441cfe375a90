"""The ZooKeeper client: sockets, timers and futures around the rules of `session.py`.

Operation: one task keeps a connection to one of the servers. Requests are written at once, all of one loop iteration
together, and answered in their order. Without a connection they wait, up to `operation_timeout_ms` and
`max_outstanding_requests`.

Concurrency: everything on one event loop. Listeners and watches are called from the loop's read callback, before later
responses: after an event for a node, a read returns the announced state or a newer one.

Limitations: no one-time watches, no read-only mode; SASL with DIGEST-MD5 only.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar, cast

from pybroker.runtime.tasks import TaskOwner
from pybroker.zookeeper import operations as wire
from pybroker.zookeeper.addresses import ServerAddresses
from pybroker.zookeeper.digest_md5 import DigestLogin, SaslCredentials
from pybroker.zookeeper.errors import (
    AuthFailed,
    ConnectionLoss,
    DamagedAnswer,
    NodeExists,
    NoNode,
    NotSent,
    TooLarge,
    ZooKeeperError,
    error_of,
)
from pybroker.zookeeper.jute import Reader, pack_buffer, pack_text
from pybroker.zookeeper.operations import (
    ANY_VERSION,
    OPEN_ACL,
    Acl,
    ChangeOp,
    ChangeResult,
    CreateMode,
    NodeEvent,
    NodeEventType,
    Operation,
    ReadOp,
    ReadResult,
    Stat,
)
from pybroker.zookeeper.session import (
    Answer,
    AuthAnswered,
    Due,
    Established,
    LoginDue,
    Refused,
    Session,
    SessionEvent,
    SessionState,
    SessionTicket,
)

_Result = TypeVar("_Result")
SessionListener = Callable[[SessionEvent], None]
EventListener = Callable[[NodeEvent], None]

_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0
_MIN_CONNECT_MS = 500
_MAX_CONNECT_MS = 10_000
_CONNECT_SHARE = 1 / 6
_CLOSE_DEADLINE_S = 2.0
_CLIENT_NONCE_BITS = 192
_PARENT_ATTEMPTS = 5  # a container may be deleted between the creations of parent and child


def boot_time_ms() -> float:
    """Return the time in milliseconds of a clock that also counts while the machine sleeps; of the monotonic clock on a
    system without that clock.
    """
    return (time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)) * 1000


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Limits and credentials of a client. `acl`: the access control list of all nodes that the client creates."""

    session_timeout_ms: int = 30_000
    operation_timeout_ms: int = 30_000
    """The longest time for which a request waits for a connection."""
    max_request_bytes: int = 0xFFFFF - 1024
    """Larger requests raise TooLarge: the server would close the connection (its `jute.maxbuffer`)."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """A larger response only fails its own request."""
    max_outstanding_requests: int = 10_000
    tls: ssl.SSLContext | None = None
    credentials: tuple[tuple[str, bytes], ...] = ()
    """Scheme and data of each identity, such as ("digest", b"user:password")."""
    sasl: SaslCredentials | None = None
    """The credentials for DIGEST-MD5, by which each connection logs in before it is used."""
    acl: tuple[Acl, ...] = OPEN_ACL
    clock_ms: Callable[[], float] = boot_time_ms


class _Request:
    __slots__ = ("answer", "body", "decode", "operation", "path", "wait_deadline_ms")

    def __init__(
        self,
        operation: Operation,
        body: bytes,
        path: str,
        decode: Callable[[Reader], Any],
        answer: asyncio.Future[Any],
    ) -> None:
        self.operation = operation
        self.body = body
        self.path = path
        self.decode = decode
        self.answer = answer
        self.wait_deadline_ms = 0.0


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Mark an exception as retrieved: there need not be a caller that waits for it."""
    if not done.cancelled():
        done.exception()


class Watch:
    """A persistent watch of a node, and of all nodes below it if it is recursive. It stays across sessions, until it is
    removed.
    """

    def __init__(
        self,
        path: str,
        listener: EventListener,
        *,
        is_recursive: bool,
        added: asyncio.Future[None],
        remove: Callable[[Watch], None],
    ) -> None:
        self.path = path
        self.listener = listener
        self.is_recursive = is_recursive
        self.added = added
        """Done when the server has the watch for the first time, or refused it."""
        self._remove = remove

    def covers(self, event: NodeEvent) -> bool:
        if self.is_recursive:
            below = self.path if self.path.endswith("/") else f"{self.path}/"
            is_below = event.path == self.path or event.path.startswith(below)
            return is_below and event.type is not NodeEventType.CHILDREN_CHANGED
        return event.path == self.path

    def remove(self) -> None:
        """End the watch, and ask the server to remove it, without waiting for the response."""
        self._remove(self)


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, received: Callable[[_Link, bytes], None]) -> None:
        self._received = received
        self.transport: asyncio.Transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def write(self, data: bytes) -> None:
        """Send, unless the connection is lost: uvloop refuses data some iterations before it calls `connection_lost`."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._received(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class ZooKeeperClient:
    """A client of one ensemble, with one session after another. Call `start` first; `close` ends the session."""

    def __init__(
        self, addresses: ServerAddresses, options: ClientOptions | None = None, random: Random | None = None
    ) -> None:
        self.addresses = addresses
        self.options = options or ClientOptions()
        self._chroot = addresses.chroot
        self._clock_ms = self.options.clock_ms
        self._random = random or Random()
        self._loop = asyncio.get_running_loop()
        self._session = Session(
            self.options.session_timeout_ms,
            self.options.max_answer_bytes,
            needs_login=self.options.sasl is not None,
        )
        self._login: DigestLogin | None = None  # of the present connection
        self._acl = wire.pack_acl(self.options.acl)
        self._link: _Link | None = None
        self._unwritten: list[bytes] = []
        self._waiting: deque[_Request] = deque()
        self._watches: list[Watch] = []
        self._listeners: list[SessionListener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0
        self._tasks = TaskOwner("zookeeper")
        self._is_started = False
        self._first_session: asyncio.Future[None] = self._loop.create_future()
        self._first_session.add_done_callback(_retrieve)
        self._unanswered_credentials = 0
        self._handshake: asyncio.Future[None] | None = None
        self.last_failure = "no connection was tried yet"
        """Why the last connection ended or could not be opened."""
        self._reason = ""  # why this side ends the connection

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def negotiated_timeout_ms(self) -> int:
        return self._session.timeout_ms

    @property
    def last_zxid(self) -> int:
        """The id (zxid) of the newest change of ZooKeeper that a response to this client included."""
        return self._session.last_zxid

    def holds_session(self) -> bool:
        """Return whether the session certainly exists now. The result is correct even immediately after the process was
        frozen, because it depends on the clock.
        """
        return self._session.holds(self._clock_ms())

    def confirmed_ago_ms(self) -> float:
        """Return the age in milliseconds of the newest request to which the server has responded."""
        return self._clock_ms() - self._session.confirmed_ms

    def listen(self, listener: SessionListener) -> None:
        """Call `listener` for each event of the session. If requests fail because of the event, `listener` is called
        before they raise. `listener` must not raise.
        """
        self._listeners.append(listener)

    async def start(self, deadline_s: float) -> None:
        """Connect, and return when a session exists. Raises ConnectionLoss after `deadline_s` seconds, and AuthFailed;
        the client is then closed.
        """
        assert not self._is_started, "started twice"
        self._is_started = True
        self._tasks.start(self._keep_connected(), "connection")
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(self._first_session)
        except TimeoutError as error:
            await self.close()
            raise ConnectionLoss(
                f"the client got no session with ZooKeeper at {self.addresses} within {deadline_s:g} s: "
                f"{self.last_failure}"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session, so that its ephemeral nodes disappear at once. No more events follow. Idempotent."""
        self._listeners.clear()
        if self._session.state is SessionState.CONNECTED and self._link is not None:
            closing = self._submit(Operation.CLOSE_SESSION, b"", "", wire.read_nothing)
            self._flush()
            with suppress(ZooKeeperError, TimeoutError):
                async with asyncio.timeout(_CLOSE_DEADLINE_S):
                    await closing
        self._session.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        self._fail_waiting("the client is closed")
        self._first_session.cancel()
        for watch in self._watches:
            watch.added.cancel()

    @property
    def session_ticket(self) -> SessionTicket:
        return self._session.ticket

    @staticmethod
    async def end_session(
        addresses: ServerAddresses, options: ClientOptions, ticket: SessionTicket, deadline_s: float
    ) -> None:
        """End the session of another process that does not run any more, so that its ephemeral nodes disappear at once.
        Does nothing if the session has ended. Raises ConnectionLoss if no server responds within `deadline_s` seconds,
        and AuthFailed.
        """
        client = ZooKeeperClient(addresses, options)
        client._session.resume(ticket)
        await client.start(deadline_s)
        await client.close()

    # --- operations --------------------------------------------------------------------------------------------------

    async def get(self, path: str) -> tuple[bytes, Stat]:
        return await self._submit(Operation.GET, wire.path_and_no_watch(self._full(path)), path, wire.read_value)

    async def exists(self, path: str) -> Stat | None:
        try:
            return await self._submit(Operation.EXISTS, wire.path_and_no_watch(self._full(path)), path, wire.read_stat)
        except NoNode:
            return None

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, in no order. Raises NoNode."""
        body = wire.path_and_no_watch(self._full(path))
        return await self._submit(Operation.CHILDREN, body, path, wire.read_children)

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT, *, makes_parents: bool = False
    ) -> tuple[str, Stat]:
        """Create a node. Return its path, which is longer than `path` for a sequential node, and its stat.
        `makes_parents`: create missing parents as containers. Raises NodeExists, and NoNode if the parent is missing.
        """
        for attempt in range(_PARENT_ATTEMPTS):
            body = wire.create_body(self._full(path), value, mode, self._acl)
            try:
                created, stat = await self._submit(wire.create_operation(mode), body, path, wire.read_created)
            except NoNode:
                parent = path.rpartition("/")[0]
                if not makes_parents or not parent or attempt == _PARENT_ATTEMPTS - 1:
                    raise
                with suppress(NodeExists):
                    await self.create(parent, b"", CreateMode.CONTAINER, makes_parents=True)
            else:
                return self._own(created), stat
        raise AssertionError("a loop of attempts ended without a result")

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the value of a node. Raises NoNode, BadVersion."""
        body = wire.set_body(self._full(path), value, version)
        return await self._submit(Operation.SET, body, path, wire.read_stat)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node. Raises NoNode, BadVersion, NotEmpty."""
        body = wire.path_and_version(self._full(path), version)
        await self._submit(Operation.DELETE, body, path, wire.read_nothing)

    async def multi(self, changes: Sequence[ChangeOp]) -> list[ChangeResult]:
        """Perform all changes or none. Return one result for each change: path and stat of a creation, stat of a
        changed value, otherwise None. Raises the error of the first failing change, with its index.
        """
        body = wire.multi_body([change._replace(path=self._full(change.path)) for change in changes], self._acl)
        try:
            results = await self._submit(Operation.MULTI, body, "", wire.read_multi)
        except ZooKeeperError as error:
            index = error.operation_index
            if index is None or index >= len(changes):
                raise
            exact = error_of(error.code, changes[index].path)
            exact.operation_index = index
            raise exact from error
        return [
            (self._own(each[0]), each[1]) if isinstance(each, tuple) and not isinstance(each, Stat) else each
            for each in results
        ]

    async def multi_read(self, reads: Sequence[ReadOp]) -> list[ReadResult]:
        """Return the result of each read, which is an error for a read that failed. All results are from one moment."""
        body = wire.multi_read_body([read._replace(path=self._full(read.path)) for read in reads])
        paths = [read.path for read in reads]
        return await self._submit(Operation.MULTI_READ, body, "", lambda reader: wire.read_multi_read(reader, paths))

    async def sync(self, path: str) -> None:
        """Return when the server of this client has all changes that were committed before the call."""
        await self._submit(Operation.SYNC, pack_text(self._full(path)), path, wire.read_nothing)

    # --- watches -----------------------------------------------------------------------------------------------------

    def watch(self, path: str, listener: EventListener, *, is_recursive: bool) -> Watch:
        """Call `listener` for each change of the node (and of all nodes below it, if recursive) from now on, also in
        later sessions. The node need not exist. `listener` must not raise. If the server refuses the watch, no events
        come, and the future `Watch.added` raises the error.
        """
        assert all(each.is_recursive == is_recursive for each in self._watches if each.path == path)
        added: asyncio.Future[None] = self._loop.create_future()
        added.add_done_callback(_retrieve)
        watch = Watch(path, listener, is_recursive=is_recursive, added=added, remove=self._remove_watch)
        is_new = all(each.path != path for each in self._watches)
        self._watches.append(watch)
        if not is_new:
            watch.added.set_result(None)
        elif self._session.state is SessionState.CONNECTED:
            self._add_watch(watch)
        return watch

    def _add_watch(self, watch: Watch) -> None:
        body = wire.add_watch_body(self._full(watch.path), is_recursive=watch.is_recursive)
        answer = self._submit(Operation.ADD_WATCH, body, watch.path, wire.read_nothing)
        answer.add_done_callback(lambda done: self._watch_added(watch, done))

    def _watch_added(self, watch: Watch, answer: asyncio.Future[None]) -> None:
        if watch.added.done() or answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            watch.added.set_result(None)
        # after these requests, it is set again together with the other watches
        elif not isinstance(error, ConnectionLoss | NotSent):
            watch.added.set_exception(error)

    def _remove_watch(self, watch: Watch) -> None:
        if watch not in self._watches:
            return
        self._watches.remove(watch)
        watch.added.cancel()
        is_last = all(each.path != watch.path for each in self._watches)
        if is_last and self._session.state is SessionState.CONNECTED:
            body = wire.remove_watches_body(self._full(watch.path))
            self._submit(Operation.REMOVE_WATCHES, body, watch.path, wire.read_nothing).add_done_callback(_retrieve)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _submit(
        self, operation: Operation, body: bytes, path: str, decode: Callable[[Reader], _Result]
    ) -> asyncio.Future[_Result]:
        answer: asyncio.Future[_Result] = self._loop.create_future()
        request = _Request(operation, body, path, decode, answer)
        refusal = self._refusal(request)
        if refusal is not None:
            answer.set_exception(refusal)
        elif self._session.state is SessionState.CONNECTED:
            self._send(request)
        else:
            request.wait_deadline_ms = self._clock_ms() + self.options.operation_timeout_ms
            self._waiting.append(request)
            self._arm_timer()
        return answer

    def _refusal(self, request: _Request) -> ZooKeeperError | None:
        if len(request.body) > self.options.max_request_bytes:
            limit = self.options.max_request_bytes
            return TooLarge(
                f"{request.path}: a request of {len(request.body)} bytes, {limit} are allowed", request.path
            )
        if self._session.state is SessionState.CLOSED or not self._is_started:
            return NotSent(f"{request.path}: the client of ZooKeeper is closed", request.path)
        if self._session.pending_count + len(self._waiting) >= self.options.max_outstanding_requests:
            limit = self.options.max_outstanding_requests
            return NotSent(f"{request.path}: {limit} requests to ZooKeeper have no answer yet", request.path)
        return None

    def _send(self, request: _Request) -> None:
        now_ms = self._clock_ms()
        if self._is_lost(now_ms):
            request.answer.set_exception(NotSent(f"{request.path}: the session with ZooKeeper is lost", request.path))
            return
        self._write(self._session.request(request.operation, request.body, request, now_ms))

    def _write(self, data: bytes) -> None:
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(data)

    def _flush(self) -> None:
        """Write the collected requests, unless the process was frozen meanwhile for longer than the session lasts."""
        data, self._unwritten = self._unwritten, []
        if self._is_lost(self._clock_ms()):
            return  # its requests fail when the connection has ended
        if data and self._link is not None:
            self._link.write(b"".join(data) if len(data) > 1 else data[0])

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(NotSent(f"{request.path}: not sent to ZooKeeper: {reason}", request.path))

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Keep a connection until the client is closed: one server after another, with a growing pause after each round."""
        servers = list(self.addresses.servers)
        self._random.shuffle(servers)
        failures = 0
        while True:
            was_connected = await self._connection(*servers[0])
            servers.append(servers.pop(0))
            failures = 0 if was_connected else failures + 1
            rounds = failures // len(servers)
            if rounds or was_connected:
                pause_s = min(_FIRST_PAUSE_S * 2**rounds, _MAX_PAUSE_S)
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1))

    async def _connection(self, host: str, port: int) -> bool:
        """Open one connection, and return when it has ended. Return whether the server accepted it."""
        try:
            async with asyncio.timeout(self._connect_timeout_s()):
                _, link = await self._loop.create_connection(
                    lambda: _Link(self._received), host, port, ssl=self.options.tls, server_hostname=None
                )
        except (OSError, TimeoutError) as error:
            self.last_failure = f"{host}:{port}: {str(error) or 'no connection in time'}"
            return False
        self._link = link
        self._handshake = handshake = self._loop.create_future()
        try:
            link.write(self._session.connect(self._clock_ms()))
            try:
                async with asyncio.timeout(self._connect_timeout_s()):
                    await asyncio.wait([handshake, link.ended], return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                self.last_failure = f"{host}:{port}: the server does not answer"
                return False
            await link.ended
            self.last_failure = self._reason or f"{host}:{port}: the server closed the connection"
            return handshake.done()
        finally:
            link.transport.abort()
            self._link = None
            self._reason = ""
            self._disconnected()

    def _connect_timeout_s(self) -> float:
        share_ms = self._session.timeout_ms * _CONNECT_SHARE
        return min(max(share_ms, _MIN_CONNECT_MS), _MAX_CONNECT_MS) / 1000

    def _disconnected(self) -> None:
        self._unwritten.clear()
        tokens, event = self._session.disconnected()
        if event is not None:
            self._notify(event)
        self._login = None
        for token in tokens:
            if isinstance(token, DigestLogin):
                continue
            assert isinstance(token, _Request)
            if not token.answer.done():
                token.answer.set_exception(
                    ConnectionLoss(f"{token.path}: the connection to ZooKeeper ended before the answer", token.path)
                )
        self._arm_timer()

    def _end_connection(self, reason: str) -> None:
        if self._link is not None:
            self._reason = self._reason or reason
            self._link.transport.abort()

    def _received(self, link: _Link, data: bytes) -> None:
        if link is not self._link:
            return
        try:
            results = self._session.received(data, self._clock_ms())
        except DamagedAnswer as error:
            self._end_connection(str(error))
            return
        for result in results:
            match result:
                case Answer(token, code, body) if token is self._login:
                    self._login_answered(code, body)
                case Answer(token, code, body):
                    assert isinstance(token, _Request)
                    self._answered(token, code, body)
                case NodeEvent():
                    self._node_changed(result._replace(path=self._own(result.path)))
                case Established(event):
                    self._established(event)
                case LoginDue():
                    self._begin_login()
                case Refused(event):
                    self._end_connection("the server does not know the session any more")
                    if event is not None:
                        self._lost()
                case AuthAnswered(is_accepted):
                    self._credentials_answered(is_accepted)
                case SessionEvent.LOST:
                    self._lost()

    def _answered(self, request: _Request, code: int, body: bytes | None) -> None:
        answer = request.answer
        if answer.done():
            return  # the caller was cancelled
        if body is None:
            limit = self.options.max_answer_bytes
            answer.set_exception(TooLarge(f"{request.path}: an answer of more than {limit} bytes", request.path))
        elif code:
            answer.set_exception(error_of(code, request.path))
        else:
            try:
                answer.set_result(request.decode(Reader(body)))
            except ZooKeeperError as error:
                answer.set_exception(error)

    def _begin_login(self) -> None:
        assert self.options.sasl is not None
        self._login = DigestLogin(self.options.sasl, f"{self._random.getrandbits(_CLIENT_NONCE_BITS):x}")
        self._send_login(b"")

    def _send_login(self, token: bytes) -> None:
        self._write(self._session.request(Operation.SASL, pack_buffer(token), self._login, self._clock_ms()))

    def _login_answered(self, code: int, body: bytes | None) -> None:
        assert self._login is not None
        try:
            if code or body is None:
                raise error_of(code or AuthFailed.code, "")
            token = self._login.step(Reader(body).buffer())
        except ZooKeeperError as error:
            self._end_connection(f"SASL login as {self._login.user}: {error}")
            if not self._first_session.done():
                self._first_session.set_exception(AuthFailed(self._reason))
        else:
            if token is None:
                self._established(self._session.opened().event)
            else:
                self._send_login(token)

    def _established(self, event: SessionEvent | None) -> None:
        """Start to use an accepted connection: send credentials, set watches, call listeners, then send the requests
        that waited.
        """
        now_ms = self._clock_ms()
        self._unanswered_credentials = len(self.options.credentials)
        for scheme, data in self.options.credentials:
            self._write(self._session.request(Operation.AUTH, wire.auth_body(scheme, data), None, now_ms))
        self._set_watches(now_ms)
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_result(None)
        if not self._first_session.done() and not self.options.credentials:
            self._first_session.set_result(None)
        if event is not None:
            self._notify(event)
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if not request.answer.done():
                self._send(request)
        self._arm_timer()

    def _credentials_answered(self, is_accepted: bool) -> None:
        self._unanswered_credentials -= 1
        if not is_accepted:
            self._end_connection("the server refused the credentials")
            if not self._first_session.done():
                self._first_session.set_exception(error_of(AuthFailed.code, ""))
        elif not self._unanswered_credentials and not self._first_session.done():
            self._first_session.set_result(None)

    def _set_watches(self, now_ms: float) -> None:
        by_path = {watch.path: watch for watch in self._watches}
        for path, watch in by_path.items():
            if not watch.added.done():
                self._add_watch(watch)
                continue
            full = [self._full(path)]
            lists = ([], full) if watch.is_recursive else (full, [])
            body = wire.set_watches_body(self._session.last_zxid, *lists)
            self._write(self._session.request(Operation.SET_WATCHES, body, None, now_ms))

    def _node_changed(self, event: NodeEvent) -> None:
        for watch in tuple(self._watches):
            if watch.covers(event):
                watch.listener(event)

    def _lost(self) -> None:
        """Handle the end of the session: call the listeners before any request of the next session is sent."""
        if self._link is not None and self._handshake is not None and self._handshake.done():
            self._link.write(self._session.farewell())  # frees the ephemeral nodes early, if it arrives
        self._end_connection("the session is lost")
        self._notify(SessionEvent.LOST)
        self._fail_waiting("the session is lost")

    def _notify(self, event: SessionEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)

    # --- time --------------------------------------------------------------------------------------------------------

    def _is_lost(self, now_ms: float) -> bool:
        if self._session.check(now_ms) is None:
            return False
        self._lost()
        return True

    def _arm_timer(self) -> None:
        """Schedule the next check. Later activity only defers it, so an armed timer never fires too late."""
        times = [self._session.next_check_ms(), self._waiting[0].wait_deadline_ms if self._waiting else None]
        due_ms = min((each for each in times if each is not None), default=None)
        if due_ms is None or self._session.state is SessionState.CLOSED:
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(0.0, due_ms - self._clock_ms()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock_ms()
        if not self._is_lost(now_ms):
            match self._session.due(now_ms):
                case Due.PING:
                    self._write(self._session.request(Operation.PING, b"", None, now_ms))
                case Due.GIVE_UP_CONNECTION:
                    self._end_connection("the server does not answer")
                case Due.NOTHING:
                    pass
        while self._waiting and self._waiting[0].wait_deadline_ms <= now_ms:
            request = self._waiting.popleft()
            if not request.answer.done():
                reason = f"not sent to ZooKeeper within {self.options.operation_timeout_ms} ms: {self.last_failure}"
                request.answer.set_exception(NotSent(f"{request.path}: {reason}", request.path))
        if self._session.due(now_ms) is not Due.GIVE_UP_CONNECTION:  # the end of the connection arms it again
            self._arm_timer()

    # --- paths -------------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    def _own(self, full: str) -> str:
        return full[len(self._chroot) :] or "/"
