"""Base of producer, consumer and reader sessions: the queue of received texts, memory, tasks, and the end.

A session is a fault boundary: an unexpected error closes its connection, is logged once and counted. Invariant: when
`run` has returned, the session uses no memory of the budget, and its producer or consumer is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from websockets.frames import CloseCode

from pybroker.client.failures import ClientError
from pybroker.errors import BrokerError
from pybroker.runtime import logs
from pybroker.websocket.websocket_connection import Hold, TextReceiver, WebSocketConnection

if TYPE_CHECKING:
    from pybroker.client.client import Closing
    from pybroker.runtime.runtime import Runtime
    from pybroker.websocket.session_permission import SessionPermission

MAX_INBOX_BYTES = 64 * 1024
"""Received texts that wait for the session; above it, the connection is not read."""
TEXTS_AT_ONCE = 16
"""Texts that a session handles without yielding to the event loop."""
LAST_TEXTS_S = 30.0
"""How long a session may handle the last texts of a client that has left, and then wait for their receipts."""
TEXT_BYTES = 200
"""Approximate memory of a waiting text without its bytes."""


class Session(TextReceiver):
    """Base of one WebSocket session. `run` serves the session from its start to its end."""

    kind: ClassVar[str]

    def __init__(self, runtime: Runtime, connection: WebSocketConnection, topic: str, part: Closing) -> None:
        """`part`: the producer or consumer, which the session closes at its end."""
        self.connection = connection
        self.topic = topic
        self.permission: SessionPermission | None = None
        """The permission that the session needs while it is open; None until it is open."""
        self.waits_for = ""
        """Why the session does not continue; "" while it works."""
        self.waits_since_ms = 0.0
        """Wall clock time of the current `waits_for`."""
        self._runtime = runtime
        self._part = part
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._has_texts = asyncio.Event()
        self._may_continue = asyncio.Event()
        self._ended = asyncio.Event()
        connection.serve(self)

    # --- life ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the session until its connection is closed, and handle the texts that were received until then."""
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._guarded(work)) for work in self.other_work()]
                texts = group.create_task(self._guarded(self._handle_texts))
                await self._ended.wait()
                for each in others:
                    each.cancel()
                await asyncio.wait([texts], timeout=LAST_TEXTS_S)
                texts.cancel()
        finally:
            self._inbox.clear()
            self._inbox_bytes = 0
            self._report_memory(0)
            # Errors: the connection to the broker has ended, or messages have no receipt yet.
            with contextlib.suppress(ClientError, BrokerError, TimeoutError):
                async with asyncio.timeout(LAST_TEXTS_S):
                    await self._part.close()

    @abstractmethod
    async def handle(self, text: bytes) -> None:
        """Handle the next text of the client."""

    async def handled_some(self) -> None:
        """Complete the work for the texts that `handle` has received since the last call (at most `TEXTS_AT_ONCE`), for
        example with one request for several acknowledgements.
        """

    def other_work(self) -> list[Callable[[], Awaitable[None]]]:
        """Return coroutine functions that run concurrently with the handling of texts. They are cancelled when the
        connection is closed.
        """
        return []

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (ClientError, BrokerError) as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001  (the fault boundary of a session)
            self._runtime.stats.bugs += 1
            logs.error("websocket.failed", topic=self.topic, address=self.connection.address, exc_info=error)
            self.connection.close(CloseCode.INTERNAL_ERROR, "Internal error; see websocket.failed in the broker's log")

    def fail(self, error: Exception) -> None:
        """Close the connection, because the producer or consumer has failed."""
        logs.info("websocket.session_failed", topic=self.topic, address=self.connection.address, reason=error)
        self.connection.close(CloseCode.INTERNAL_ERROR, str(error))

    def closed(self, code: int, reason: str) -> None:
        logs.info(
            "websocket.session_closed",
            kind=self.kind,
            topic=self.topic,
            address=self.connection.address,
            code=int(code),
            reason=reason,
        )
        self._ended.set()
        self._has_texts.set()

    # --- texts ---------------------------------------------------------------------------------------------------------

    def text_received(self, text: bytes) -> None:
        self._inbox.append(text)
        self._inbox_bytes += len(text) + TEXT_BYTES
        self._has_texts.set()
        if self._inbox_bytes > MAX_INBOX_BYTES:
            self.connection.hold_reading(Hold.INBOX)
        self.account()

    async def _handle_texts(self) -> None:
        handled = 0
        while self._inbox or not self._ended.is_set():
            if not self._inbox:
                self._has_texts.clear()
                await self._has_texts.wait()
                continue
            text = self._inbox.popleft()
            self._inbox_bytes -= len(text) + TEXT_BYTES
            if self._inbox_bytes <= MAX_INBOX_BYTES:
                self.connection.release_reading(Hold.INBOX)
            await self.handle(text)
            handled += 1
            if not self._inbox or handled >= TEXTS_AT_ONCE:
                handled = 0
                await self.handled_some()
                self.account()
                await asyncio.sleep(0)

    # --- memory and waiting --------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes that the session keeps in addition to the received texts and the unsent data."""
        return 0

    def account(self) -> None:
        """Report the session's memory to the memory budget. While the session uses more than its share, its connection
        is not read, and it sends no messages.
        """
        if not self._ended.is_set():
            self._report_memory(self._inbox_bytes + self.pending_bytes + self.connection.unsent_bytes)

    def _report_memory(self, size_bytes: int) -> None:
        memory = self._runtime.memory
        memory.follow(memory.websockets.report(self, size_bytes))
        if size_bytes and memory.websockets.stops(self):
            self.connection.hold_reading(Hold.MEMORY)
        for session in memory.websockets.freed():
            assert isinstance(session, Session)
            session.memory_freed()

    def memory_freed(self) -> None:
        self.connection.release_reading(Hold.MEMORY)
        self._may_continue.set()

    def writable(self) -> None:
        self.account()
        self._may_continue.set()

    async def wait_for(self, reason: str) -> None:
        """Wait until `wake`, `writable` or `memory_freed` is called. The statistics show `reason` until `continues` is
        called.
        """
        if reason != self.waits_for:
            self.waits_for, self.waits_since_ms = reason, self._runtime.clock.wall_ms()
        self._may_continue.clear()
        await self._may_continue.wait()

    def continues(self) -> None:
        self.waits_for = ""

    def wake(self) -> None:
        """End the wait of `wait_for`, so that the session checks again whether it can continue."""
        self._may_continue.set()
