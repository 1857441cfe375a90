"""One WebSocket connection after its handshake: frames in and out, pings, time-outs, and the closing handshake.

Texts are given to the session in order. Back-pressure: the connection is not read while `hold_reading` has a reason, or
while its client does not read more than `MAX_UNSENT_BYTES`. The session sends no messages while `is_writable` is false.

Invariants: after the first close, no text is given to the session and none is sent; `connection_lost` is called once.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from websockets.frames import CloseCode, Opcode
from websockets.protocol import Protocol, Side, State

from pybroker.admin.http.upgrade import Reading, UpgradedConnection
from pybroker.memory.broker_memory import Holding
from pybroker.runtime import logs
from pybroker.websocket.frame_compression import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from websockets.extensions import Extension

    from pybroker.memory.broker_memory import Memory
    from pybroker.runtime.clock import Clock
    from pybroker.runtime.tasks import TaskOwner

MAX_UNSENT_BYTES = 256 * 1024
"""Unsent bytes, such as send acknowledgements, above which the connection is not read."""
FREE_FRAME_BYTES = 64 * 1024
"""Incomplete messages of this size are not counted, because the number of connections limits them."""
CLOSE_TIMEOUT_S = 5.0
"""How long the client may take to answer a close frame."""
MAX_REASON_BYTES = 123
PING = b"PING"

# The library logs errors of clients, which the clients receive anyway.
_silent = logging.getLogger("pybroker.websockets")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
_silent.setLevel(logging.CRITICAL)


class Hold(Enum):
    """Reason why a connection is not read."""

    UNSENT = "the client does not read"
    INBOX = "messages of the client wait"
    MEMORY = "memory"
    FRAME = "memory for a large message"


class TextReceiver(ABC):
    """The session of a connection. Calls come from the event loop and must not raise."""

    @abstractmethod
    def text_received(self, text: bytes) -> None:
        """Handle a complete text, which is valid UTF-8."""

    @abstractmethod
    def binary_received(self) -> None: ...

    @abstractmethod
    def writable(self) -> None:
        """Continue to send messages: the client reads again."""

    @abstractmethod
    def closed(self, code: int, reason: str) -> None:
        """Handle the end of the connection. No method is called afterwards. `code`: the close code; 1006 without a
        close frame.
        """


class Timing(NamedTuple):
    """The intervals of pings and of the idle time-out, in seconds; 0: none."""

    ping_s: float
    idle_s: float


class WebSocketConnection(UpgradedConnection):
    """A connection of a client. Created before the handshake is answered."""

    def __init__(
        self,
        address: str,
        memory: Memory,
        clock: Clock,
        max_text_bytes: int,
        timing: Timing,
        tasks: TaskOwner,
        extensions: Sequence[Extension] = (),
    ) -> None:
        """`extensions`: those that the handshake has negotiated."""
        self.address = address
        self.is_open = True
        """Whether texts can be sent: no close frame was sent or received."""
        self.is_writable = True
        """Whether the client reads."""
        self.lifetime_s: float | None = None
        """When the connection is closed, after the handshake, because the client's credentials expire; None: never."""
        self._receiver: TextReceiver | None = None
        self._protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=max_text_bytes, logger=_silent)
        self._protocol.extensions = list(extensions)
        self._is_compressed = bool(extensions)
        self._unparsed = b""  # received data of a compressed connection, while it is not read
        self._memory = memory
        self._clock = clock
        self._max_text_bytes = max_text_bytes
        self._timing = timing
        self._tasks = tasks
        self._parts: list[bytes] = []
        self._is_text = True
        self._partial_bytes = 0
        self._frame_memory: Holding | None = None
        self._has_frame_memory = False  # otherwise a task waits for it
        self._holds: dict[Hold, None] = {}
        self._is_flush_due = False
        self._active_at_s = 0.0
        self._unsent_at_check = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._transport: asyncio.Transport | None = None
        self._reading: Reading | None = None
        self._close_code: int = CloseCode.ABNORMAL_CLOSURE
        self._close_reason = ""
        self._is_lost = False

    def serve(self, receiver: TextReceiver) -> None:
        """Set the session that receives the texts. Must be called before the HTTP server passes the transport to this
        connection.
        """
        self._receiver = receiver

    @property
    def holds(self) -> list[Hold]:
        return list(self._holds)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # --- out -----------------------------------------------------------------------------------------------------------

    def send_text(self, text: bytes) -> None:
        """Send a text, unless the connection is closing."""
        if not self._may_send():
            return
        self._protocol.send_text(text)
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake. Texts that were sent before reach the client first."""
        if not self.is_open:
            return
        if self._may_send():
            self._protocol.send_close(code, reason.encode()[:MAX_REASON_BYTES].decode("utf-8", "ignore"))
        self._closing(code, reason)
        self._flush()

    def _may_send(self) -> bool:
        """While frames of one read are handled, a later frame of it may have begun the closing handshake already."""
        return self.is_open and self._protocol.state is State.OPEN

    def shutdown(self) -> None:
        self.close(CloseCode.GOING_AWAY, "the broker stops")

    def _flush(self) -> None:
        self._is_flush_due = False
        data = self._protocol.data_to_send()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        is_last = bool(data) and data[-1] == b""
        if out := b"".join(data):
            transport.write(out)
            if not transport.get_write_buffer_size():
                self._active_at_s = self._now_s()
        if is_last and not self._is_lost:
            # The client closes the connection. Closing it here could reset it before the client has read the close frame.
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()
        elif transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.hold_reading(Hold.UNSENT)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.release_reading(Hold.UNSENT)
        if self._receiver is not None and self.is_open:
            self._receiver.writable()

    # --- in ------------------------------------------------------------------------------------------------------------

    def hold_reading(self, hold: Hold) -> None:
        self._holds[hold] = None
        if self._reading is not None:
            self._reading.pause()

    def release_reading(self, hold: Hold) -> None:
        if hold not in self._holds:
            return
        del self._holds[hold]
        if self._unparsed:
            asyncio.get_running_loop().call_soon(self._parse_pieces)
        elif not self._holds and self._reading is not None and not self._is_lost:
            self._reading.resume()

    def data_received(self, data: bytes) -> None:
        self._active_at_s = self._now_s()
        if not self._is_compressed:
            self._parse(data)
            return
        self._unparsed += data
        self._parse_pieces()

    def _parse_pieces(self) -> None:
        """Parse received data in small pieces while the connection is read, because each piece may become a thousand times
        as long.
        """
        start = 0
        while start < len(self._unparsed) and not self._holds and not self._is_lost:
            self._parse(self._unparsed[start : start + PIECE_BYTES])
            start += PIECE_BYTES
        self._unparsed = self._unparsed[start:]
        if not self._unparsed and not self._holds and self._reading is not None and not self._is_lost:
            self._reading.resume()

    def _parse(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._partial_bytes += len(data)
        for frame in events:
            assert not hasattr(frame, "status_code"), "the handshake is over"
            self._frame(frame.opcode, bytes(frame.data), is_last=frame.fin)  # type: ignore[union-attr]
        if self._protocol.state is not State.OPEN and self.is_open:
            ended = self._protocol.close_rcvd or self._protocol.close_sent
            self._closing(
                CloseCode.ABNORMAL_CLOSURE if ended is None else ended.code, "" if ended is None else ended.reason
            )
        self._flush()
        if self.is_open and self._partial_bytes > FREE_FRAME_BYTES and self._frame_memory is None:
            self._wait_for_memory()

    def _frame(self, opcode: Opcode, data: bytes, *, is_last: bool) -> None:
        if opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if opcode is not Opcode.CONT:
            self._is_text = opcode is Opcode.TEXT
        if data:
            self._parts.append(data)
        if not is_last:
            if self._is_compressed:
                self._partial_bytes += len(data)
            if len(self._parts) > 64:  # many tiny fragments
                self._parts = [b"".join(self._parts)]
            return
        text = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._partial_bytes = 0
        if self.is_open and self._receiver is not None:
            self._text(text)
        self._release_frame_memory()

    def _text(self, text: bytes) -> None:
        assert self._receiver is not None
        if not self._is_text:
            self._receiver.binary_received()
            return
        try:
            text.decode()
        except UnicodeDecodeError as error:
            self.close(CloseCode.INVALID_DATA, f"the text is not UTF-8: {error.reason} at byte {error.start}")
            return
        self._receiver.text_received(text)

    def _wait_for_memory(self) -> None:
        """Read the rest of a large message only when memory for the largest message is available."""
        self._frame_memory = Holding(self._memory, self._memory.requests)
        self.hold_reading(Hold.FRAME)
        self._tasks.start(self._memory_for_frame(self._frame_memory), "memory for a message")

    async def _memory_for_frame(self, holding: Holding) -> None:
        is_granted = False
        try:
            await holding.wait(self.address, self._max_text_bytes)
            is_granted = self._frame_memory is holding and not self._is_lost
        finally:
            if not is_granted:
                holding.close()
        self._has_frame_memory = is_granted
        self.release_reading(Hold.FRAME)

    def _release_frame_memory(self) -> None:
        if self._frame_memory is not None and self._has_frame_memory:
            self._frame_memory.close()
        self._frame_memory = None  # a task that still waits gives the memory back
        self._has_frame_memory = False

    # --- life ----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport, reading: Reading) -> None:
        self._transport = transport
        self._reading = reading
        self._active_at_s = self._now_s()
        if self._timing.idle_s > 0:
            self._start_timer("idle", self._timing.idle_s, self._check_idle)
        if self._timing.ping_s > 0:
            self._start_timer("ping", self._timing.ping_s, self._ping)
        if self.lifetime_s is not None:
            self._start_timer("expiry", max(0.0, self.lifetime_s), self._expire)

    def connection_lost(self) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._closing(CloseCode.ABNORMAL_CLOSURE, "")
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._parts = []
        self._unparsed = b""
        self._release_frame_memory()
        # Session and connection refer to each other, and so do the parts of the parser. Without these cycles, they are freed
        # before the next full collection.
        self._receiver = self._reading = None
        self._protocol.parser.close()

    def _closing(self, code: int, reason: str) -> None:
        """End the session. The closing handshake continues until the connection is lost."""
        if not self.is_open:
            return
        self.is_open = False
        self._close_code, self._close_reason = code, reason
        if not self._is_lost:
            self._start_timer("close", CLOSE_TIMEOUT_S, self._abort)
            for hold in self.holds:
                self.release_reading(hold)  # the close frame of the client must be read
        if self._receiver is not None:
            self._receiver.closed(code, reason)

    def _expire(self) -> None:
        self.close(CloseCode.POLICY_VIOLATION, "the credentials have expired: open a new session")

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_idle(self) -> None:
        now_s = self._now_s()
        unsent_bytes = self.unsent_bytes
        if unsent_bytes != self._unsent_at_check:
            self._active_at_s = now_s  # the client reads, or messages were sent
        self._unsent_at_check = unsent_bytes
        left_s = self._active_at_s + self._timing.idle_s - now_s
        if left_s > 0:
            self._start_timer("idle", left_s, self._check_idle)
            return
        logs.info("websocket.idle", address=self.address, idle_s=self._timing.idle_s)
        if unsent_bytes:
            self._closing(CloseCode.GOING_AWAY, "Connection Idle Timeout")
            self._abort()
        else:
            self.close(CloseCode.GOING_AWAY, "Connection Idle Timeout")

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _ping(self) -> None:
        if self.is_open:
            self._protocol.send_ping(PING)
            self._flush()
            self._start_timer("ping", self._timing.ping_s, self._ping)

    def _start_timer(self, name: str, delay_s: float, then: Callable[[], None]) -> None:
        if (former := self._timers.pop(name, None)) is not None:
            former.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, then)
