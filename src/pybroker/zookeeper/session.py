"""The rules of one ZooKeeper session, without IO: bytes and times in, bytes and events out. `client.py` drives it.

A session lives in the servers and moves between connections. The server forgets it when it has received nothing for the
negotiated timeout, and deletes its ephemeral nodes. A client without a connection is not notified. So it must decide by
its own clock that the session is lost, and earlier than the server.

Deadline: `confirmed_ms` is the time at which the newest *answered* request was sent. The server received that request
later, so it keeps the session at least until `confirmed_ms` + timeout. The session counts as lost at 5/6 of the timeout
after it.

    CONNECTING --> CONNECTED <--> SUSPENDED        SUSPENDED, CONNECTED --> LOST (by the clock, or by the server)
                       ^------------- LOST         any state --> CLOSED

Invariants: responses have the order of their requests. A request either gets a response, or is returned by
`disconnected`. After LOST is reported, the former session is not used.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from pybroker.zookeeper.errors import DamagedAnswer
from pybroker.zookeeper.jute import Reader, pack_buffer
from pybroker.zookeeper.operations import NodeEvent, Operation, read_event

PING_SHARE: Final = 1 / 6
"""Share of the timeout after which an idle connection sends a ping."""
SILENCE_SHARE: Final = 1 / 2
"""Share of the timeout after which a connection with an unanswered request is closed, to try another server."""
LOST_SHARE: Final = 5 / 6
"""Share of the timeout after which the session counts as lost. Java brokers use the same value."""
MAX_FRAME_BYTES: Final = 1 << 30
"""A longer frame means that the peer is not a ZooKeeper server."""

_CONNECT = Struct(">iqiq")  # protocol version, last zxid, timeout, session id; then password and read-only flag
_CONNECTED = Struct(">iiq")  # protocol version, timeout, session id; then password
_REQUEST = Struct(">iii")  # length, xid, operation
_ANSWER = Struct(">iqi")  # xid, zxid, error code
_LENGTH = Struct(">i")
_NO_PASSWORD = bytes(16)
_XID_EVENT = -1
_XID_PING = -2
_XID_AUTH = -4
_XID_SET_WATCHES = -8
_SPECIAL_XIDS: Final = {
    Operation.PING: _XID_PING,
    Operation.AUTH: _XID_AUTH,
    Operation.SET_WATCHES: _XID_SET_WATCHES,
}
_MAX_XID = (1 << 31) - 1


class SessionState(Enum):
    """The state of a session, as in the diagram of the module."""

    CONNECTING = "connecting"
    """No session exists yet."""
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The session exists, without a connection."""
    LOST = "lost"
    """The session is over. The client requests a new one."""
    CLOSED = "closed"


class SessionEvent(Enum):
    """A change of the session that listeners are notified of. The package docstring describes each."""

    SUSPENDED = "suspended"
    RECONNECTED = "reconnected"
    LOST = "lost"
    RENEWED = "renewed"


class Answer(NamedTuple):
    """The response to a request. `body` is None if the response was larger than the limit and was dropped. `token` is
    the token of the request.
    """

    token: object
    code: int
    body: bytes | None


class Established(NamedTuple):
    """The server accepted the connection. `event` is None for the first session."""

    event: SessionEvent | None


class LoginDue(NamedTuple):
    """The server accepted the connection. The caller sends the requests of the login, then calls `opened`."""


class Refused(NamedTuple):
    """The server does not know the session any more; the next connection requests a new one. `event` is None if the
    session was lost before.
    """

    event: SessionEvent | None


class AuthAnswered(NamedTuple):
    """The response to one of the credentials. The server closes the connection if it does not accept them."""

    is_accepted: bool


Received: TypeAlias = Answer | NodeEvent | Established | LoginDue | Refused | AuthAnswered | SessionEvent


class Due(Enum):
    """The action that a connection needs now, as `due` returns it."""

    NOTHING = "nothing"
    PING = "ping"
    GIVE_UP_CONNECTION = "give up connection"


class FrameReader:
    """Splits received bytes into frames. Of a frame above the limit, only the first bytes are kept."""

    KEPT_BYTES = _ANSWER.size

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = b""
        self._head = b""
        self._bytes_to_drop = 0

    def feed(self, data: bytes) -> list[tuple[bytes, bool]]:
        """Add received bytes. Return each frame that is complete now, and whether it was truncated. Raises
        DamagedAnswer for an impossible length.
        """
        frames: list[tuple[bytes, bool]] = []
        data = self._buffer + data if self._buffer else data
        position, end = 0, len(data)
        while True:
            if self._bytes_to_drop:
                dropped = min(self._bytes_to_drop, end - position)
                position += dropped
                self._bytes_to_drop -= dropped
                if self._bytes_to_drop:
                    break
                frames.append((self._head, True))
            if end - position < 4:
                break
            (size,) = _LENGTH.unpack_from(data, position)
            if not 0 <= size <= MAX_FRAME_BYTES:
                raise DamagedAnswer(
                    f"the server sent a frame of {size} bytes: it is not a ZooKeeper server, or its response is damaged"
                )
            start = position + 4
            if size > self._max_bytes:
                if end - start < self.KEPT_BYTES:
                    break
                self._head = data[start : start + self.KEPT_BYTES]
                position, self._bytes_to_drop = start + self.KEPT_BYTES, size - self.KEPT_BYTES
                continue
            if end - start < size:
                break
            frames.append((data[start : start + size], False))
            position = start + size
        self._buffer = data[position:]
        return frames


class _Accepted(NamedTuple):
    session_id: int
    password: bytes
    timeout_ms: int


class SessionTicket(NamedTuple):
    """The values with which a later process can end the session of this process. The password is a secret."""

    session_id: int
    password: bytes


class Session:
    """The state of one client's session and of its current connection."""

    def __init__(self, timeout_ms: int, max_answer_bytes: int, *, needs_login: bool = False) -> None:
        """`needs_login`: each connection must log in before other requests are sent."""
        self._needs_login = needs_login
        self._requested_timeout_ms = timeout_ms
        self._max_answer_bytes = max_answer_bytes
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.timeout_ms = timeout_ms
        """The negotiated timeout, after the first session was established."""
        self.last_zxid = 0
        self.confirmed_ms = 0.0
        self._password = _NO_PASSWORD
        self._next_xid = 1
        self._had_session = False
        # Of the current connection.
        self._frames = FrameReader(max_answer_bytes)
        self._is_connecting = False
        self._accepted = _Accepted(0, _NO_PASSWORD, 0)
        self._connect_sent_ms = 0.0
        self._last_sent_ms = 0.0
        self._pending: deque[tuple[int, float, object]] = deque()  # xid, sent, token
        self._pings: deque[float] = deque()

    @property
    def ticket(self) -> SessionTicket:
        return SessionTicket(self.session_id, self._password)

    def resume(self, ticket: SessionTicket) -> None:
        """Continue the session of `ticket` with the first connection. If the server has ended it, the next connection
        begins a new session.
        """
        assert self.state is SessionState.CONNECTING, "before the first connection"
        self.session_id, self._password = ticket

    # --- connections -------------------------------------------------------------------------------------------------

    def connect(self, now_ms: float) -> bytes:
        """Begin a connection. Return the first bytes to send, which request the current session, or a new one if there
        is none.
        """
        assert not self._pending, "disconnected comes first"
        assert self.state is not SessionState.CONNECTED
        self._frames = FrameReader(self._max_answer_bytes)
        self._is_connecting = True
        self._connect_sent_ms = self._last_sent_ms = now_ms
        body = (
            _CONNECT.pack(0, self.last_zxid, self._requested_timeout_ms, self.session_id)
            + pack_buffer(self._password)
            + b"\0"
        )
        return _LENGTH.pack(len(body)) + body

    def disconnected(self) -> tuple[list[object], SessionEvent | None]:
        """Handle the end of the connection. Return the tokens of requests without a response, and SUSPENDED if the
        session was connected, otherwise None.
        """
        tokens = [token for _, _, token in self._pending]
        self._pending.clear()
        self._pings.clear()
        self._is_connecting = False
        if self.state is not SessionState.CONNECTED:
            return tokens, None
        self.state = SessionState.SUSPENDED
        return tokens, SessionEvent.SUSPENDED

    def request(self, operation: Operation, body: bytes, token: object, now_ms: float) -> bytes:
        """Encode a request. Its response is returned with the same `token`, which is None for the client's own
        requests, such as pings.
        """
        assert self.state is SessionState.CONNECTED or operation is Operation.SASL
        self._last_sent_ms = now_ms
        xid = _SPECIAL_XIDS.get(operation)
        if xid is None:
            xid = self._next_xid
            self._next_xid = 1 if xid == _MAX_XID else xid + 1
            self._pending.append((xid, now_ms, token))
        elif operation is Operation.PING:
            self._pings.append(now_ms)
        return _REQUEST.pack(len(body) + 8, xid, operation) + body

    @staticmethod
    def farewell() -> bytes:
        """Return the request that ends the connection's session on the server, for a session that this client has given
        up.
        """
        return _REQUEST.pack(8, 0, Operation.CLOSE_SESSION)

    def close(self) -> None:
        self.state = SessionState.CLOSED

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # --- received bytes ----------------------------------------------------------------------------------------------

    def received(self, data: bytes, now_ms: float) -> list[Received]:
        """Decode received bytes. If the session is lost, return only LOST. Raises DamagedAnswer. The caller must end the
        connection after LOST and after DamagedAnswer.
        """
        lost = self.check(now_ms)
        if lost is not None:
            return [lost]
        if self.state is SessionState.CLOSED:
            return []
        results: list[Received] = []
        for frame, is_cut in self._frames.feed(data):
            if self._is_connecting:
                results.append(self._handshake(frame))
                if isinstance(results[-1], Refused):
                    break
            else:
                self._take(frame, is_cut, results)
        return results

    def _handshake(self, frame: bytes) -> Received:
        reader = Reader(frame)
        _, timeout_ms, session_id = reader.unpack(_CONNECTED)
        password = reader.buffer()
        self._is_connecting = False
        if timeout_ms <= 0:
            was_lost = self.state is SessionState.LOST
            return Refused(None if was_lost or not self.session_id else self._lose())
        self._accepted = _Accepted(session_id, password, timeout_ms)
        return LoginDue() if self._needs_login else self.opened()

    def opened(self) -> Established:
        """Use the accepted connection for requests. Return the event: RECONNECTED for the same session, RENEWED for
        another session, None for the first one. If a login is needed, the caller calls this after the login; otherwise
        `received` calls it.
        """
        is_same = self._accepted.session_id == self.session_id
        self.session_id, self._password, self.timeout_ms = self._accepted
        self.confirmed_ms = self._connect_sent_ms
        self.state = SessionState.CONNECTED
        had_session, self._had_session = self._had_session, True
        if not had_session:
            return Established(None)
        return Established(SessionEvent.RECONNECTED if is_same else SessionEvent.RENEWED)

    def _take(self, frame: bytes, is_cut: bool, results: list[Received]) -> None:
        reader = Reader(frame)
        xid, zxid, code = reader.unpack(_ANSWER)
        if zxid > 0 and xid != _XID_EVENT:
            self.last_zxid = max(self.last_zxid, zxid)
        if xid == _XID_EVENT:
            event = None if is_cut else read_event(reader)
            if event is not None:
                results.append(event)
        elif xid == _XID_PING:
            if self._pings:
                self._confirm(self._pings.popleft())
        elif xid == _XID_AUTH:
            results.append(AuthAnswered(code == 0))
        elif xid == _XID_SET_WATCHES:
            if code:
                raise DamagedAnswer(f"the ZooKeeper server refused to set the watches again: error {code}")
        else:
            if not self._pending or self._pending[0][0] != xid:
                raise DamagedAnswer(
                    f"the ZooKeeper server responded to request {xid}, although an older request has no response yet"
                )
            _, sent_ms, token = self._pending.popleft()
            if self.state is SessionState.CONNECTED:
                self._confirm(sent_ms)
            results.append(Answer(token, code, None if is_cut else frame[_ANSWER.size :]))

    def _confirm(self, sent_ms: float) -> None:
        self.confirmed_ms = max(self.confirmed_ms, sent_ms)

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def has_session(self) -> bool:
        return self.state in (SessionState.CONNECTED, SessionState.SUSPENDED)

    @property
    def lost_at_ms(self) -> float:
        return self.confirmed_ms + self.timeout_ms * LOST_SHARE

    def holds(self, now_ms: float) -> bool:
        """Return whether the session certainly exists at `now_ms` (the client's clock)."""
        return self.has_session and now_ms < self.lost_at_ms

    def check(self, now_ms: float) -> SessionEvent | None:
        """Return LOST if the session has timed out by `now_ms`; the caller must then end the connection."""
        return self._lose() if self.has_session and now_ms >= self.lost_at_ms else None

    def due(self, now_ms: float) -> Due:
        """Return the action that the connection needs at `now_ms`, such as a ping. Call `check` first."""
        if self.state is not SessionState.CONNECTED:
            return Due.NOTHING
        oldest_ms = self._oldest_unanswered_ms()
        if oldest_ms is not None and now_ms >= oldest_ms + self.timeout_ms * SILENCE_SHARE:
            return Due.GIVE_UP_CONNECTION
        return Due.PING if now_ms >= self._last_sent_ms + self.timeout_ms * PING_SHARE else Due.NOTHING

    def next_check_ms(self) -> float | None:
        """Return when to call `check` and `due` next, in milliseconds of the client's clock; None without a session."""
        if not self.has_session:
            return None
        if self.state is SessionState.SUSPENDED:
            return self.lost_at_ms
        times = [self.lost_at_ms, self._last_sent_ms + self.timeout_ms * PING_SHARE]
        oldest_ms = self._oldest_unanswered_ms()
        if oldest_ms is not None:
            times.append(oldest_ms + self.timeout_ms * SILENCE_SHARE)
        return min(times)

    def _oldest_unanswered_ms(self) -> float | None:
        sent = [self._pending[0][1]] if self._pending else []
        if self._pings:
            sent.append(self._pings[0])
        return min(sent, default=None)

    def _lose(self) -> SessionEvent:
        self.state = SessionState.LOST
        self.session_id, self._password = 0, _NO_PASSWORD
        return SessionEvent.LOST
