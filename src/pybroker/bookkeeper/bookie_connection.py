"""One connection to a bookie, with many requests in flight (protocol version 2).

Operation: requests of one loop iteration are written together. Responses are matched by operation, ledger and entry, so
a second request with the same key waits for the first response.

Failure: after a timeout, a response to no request, or a lost connection, all requests end with `UNREACHABLE` and the
connection is not used again: a late response can never be taken for the response to a later request.

Limitations: the caller must limit the sent data, by `unanswered_bytes`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias, cast

from pybroker.bookkeeper.errors import OK, UNREACHABLE, InvalidAnswer
from pybroker.bookkeeper.metadata_store import BookieAddress
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.frames import (
    ADD,
    BATCH_READ,
    READ,
    Answer,
    AnswerReader,
    batch_read_request,
    read_request,
)

_JOIN_BELOW_BYTES = 16 * 1024
_CHECKS_PER_TIMEOUT = 4


class AddListener(Protocol):
    """A writer, which is notified of the responses to its requests to store entries."""

    def add_answered(self, entry_id: int, index: int, bookie_id: str, code: int) -> bool:
        """Handle a bookie's response to the request to store an entry: `code` is the result of the bookie at `index` of
        the ensemble. Return True if entries may be confirmed; `confirm` is then called once after a group of responses.
        """

    def confirm(self) -> None: ...


class ReadResult(NamedTuple):
    """The response to a read: a code, and the stored entry or entries."""

    code: int
    body: bytes


class _Add:
    """An add in flight. `tick`: the time of sending, as the number of timeout checks until then, because reading the
    clock for each request costs more.
    """

    __slots__ = ("entry_id", "frame", "index", "ledger_id", "listener", "tick")

    def __init__(
        self, listener: AddListener, index: int, ledger_id: int, entry_id: int, frame: bytes, tick: int
    ) -> None:
        self.listener = listener
        self.index = index
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.frame = frame
        self.tick = tick


class _Read:
    __slots__ = ("done", "frame", "tick")

    def __init__(self, frame: bytes, done: asyncio.Future[ReadResult]) -> None:
        self.frame = frame
        self.done = done
        self.tick = 0


_Key: TypeAlias = tuple[int, int, int]
OpenTransport: TypeAlias = Callable[[BookieAddress, asyncio.Protocol], Awaitable[object]]
"""Connects a protocol to an address. Raises OSError."""


class BookieConnection(asyncio.Protocol):
    """One connection to a bookie. The owner runs `connect` as a task; requests may be made before it is connected."""

    def __init__(self, bookie_id: str, options: BookKeeperOptions, closed: Callable[[BookieConnection], None]) -> None:
        self.bookie_id = bookie_id
        self.is_closed = self.has_answered = False
        self.close_reason = ""
        self.unanswered_bytes = 0
        self._options = options
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._answers = AnswerReader(options.max_frame_bytes)
        self._adds: dict[tuple[int, int], _Add] = {}
        self._reads: dict[_Key, _Read] = {}
        self._waiting: dict[_Key, deque[_Add | _Read]] = {}
        self._out: list[bytes] = []
        self._is_flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._tick = 0
        self._check_ms = min(options.add_timeout_ms, options.read_timeout_ms) / _CHECKS_PER_TIMEOUT
        self._last_request_id = 0

    async def connect(self, address: BookieAddress, open_transport: OpenTransport) -> None:
        """Connect to the bookie. If this fails, all requests end with `UNREACHABLE`."""
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                await open_transport(address, self)
        except TimeoutError:
            self.close(f"no connection to {address.host}:{address.port} within {self._options.connect_timeout_ms:g} ms")
        except OSError as error:
            self.close(f"cannot connect to {address.host}:{address.port}: {error}")

    def add(self, listener: AddListener, index: int, ledger_id: int, entry_id: int, frame: bytes) -> None:
        """Send the request `frame`, which stores an entry. `index`: the bookie's index in the ensemble, which is passed
        to the listener. The listener receives the response always after this call has returned.
        """
        request = _Add(listener, index, ledger_id, entry_id, frame, self._tick)
        self.unanswered_bytes += len(frame)
        key = (ledger_id, entry_id)
        if self.is_closed:
            self._loop.call_soon(self._fail_add, request)
        elif key in self._adds:
            self._waiting.setdefault((ADD, ledger_id, entry_id), deque()).append(request)
        else:
            self._adds[key] = request
            self._out.append(frame)
            if not self._is_flush_scheduled:
                self._schedule()

    def read(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> asyncio.Future[ReadResult]:
        """Request an entry. With `FENCE` in `flags`, the bookie also fences the ledger and needs the `master_key`. The
        future never raises: each failure is a result code, such as `UNREACHABLE`.
        """
        frame = read_request(ledger_id, entry_id, flags, master_key)
        return self._begin_read((READ, ledger_id, entry_id), frame)

    def batch_read(
        self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int
    ) -> asyncio.Future[ReadResult]:
        """Request consecutive entries, as many as the bookie has and the limits allow. The future never raises: each
        failure is a result code, such as `UNREACHABLE`.
        """
        self._last_request_id += 1
        frame = batch_read_request(ledger_id, first_entry_id, self._last_request_id, max_count, max_bytes)
        return self._begin_read((BATCH_READ, ledger_id, self._last_request_id), frame)

    def close(self, reason: str) -> None:
        """Close the connection. All requests end with UNREACHABLE, in a later callback. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._out.clear()
        self._loop.call_soon(self._fail_all)
        self._closed(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's transport has another base class
        if self.is_closed:
            self._transport.abort()
        else:
            self._flush()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        try:
            answers = self._answers.feed(data)
        except InvalidAnswer as error:
            self.close(f"invalid answer: {error}")
            return
        self.has_answered = True
        adds = self._adds
        confirming: set[AddListener] = set()
        for answer in answers:
            operation, code, ledger_id, entry_id, _, _ = answer
            if operation == ADD:
                request = adds.pop((ledger_id, entry_id), None)
                if request is None:
                    self.close(f"the bookie sent a response without a request: entry {entry_id} of ledger {ledger_id}")
                    break
                self.unanswered_bytes -= len(request.frame)
                if request.listener.add_answered(entry_id, request.index, self.bookie_id, code):
                    confirming.add(request.listener)
                if self._waiting:
                    self._send_waiting((ADD, ledger_id, entry_id))
            elif not self._read_answered(Answer(*answer)):
                break
        for listener in confirming:
            listener.confirm()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(f"connection lost: {exc}" if exc is not None else "the bookie closed the connection")

    def _read_answered(self, answer: Answer) -> bool:
        is_batch = answer.operation == BATCH_READ
        key = (answer.operation, answer.ledger_id, answer.request_id if is_batch else answer.entry_id)
        request = self._reads.pop(key, None)
        if request is None:
            self.close(
                f"the bookie sent a response without a read request: entry {answer.entry_id} of ledger {answer.ledger_id}"
            )
            return False
        if not request.done.done():
            request.done.set_result(ReadResult(answer.code, answer.body if answer.code == OK else b""))
        if self._waiting:
            self._send_waiting(key)
        return True

    def _begin_read(self, key: _Key, frame: bytes) -> asyncio.Future[ReadResult]:
        done: asyncio.Future[ReadResult] = self._loop.create_future()
        if self.is_closed:
            done.set_result(ReadResult(UNREACHABLE, b""))
            return done
        request = _Read(frame, done)
        if key in self._reads:
            self._waiting.setdefault(key, deque()).append(request)
        else:
            self._send_read(key, request)
        return done

    def _send_add(self, request: _Add) -> None:
        request.tick = self._tick
        self._adds[request.ledger_id, request.entry_id] = request
        self._out.append(request.frame)
        self._schedule()

    def _send_read(self, key: _Key, request: _Read) -> None:
        request.tick = self._tick
        self._reads[key] = request
        self._out.append(request.frame)
        self._schedule()

    def _send_waiting(self, key: _Key) -> None:
        queue = self._waiting.get(key)
        if queue is None:
            return
        request = queue.popleft()
        if not queue:
            del self._waiting[key]
        if isinstance(request, _Add):
            self._send_add(request)
        else:
            self._send_read(key, request)

    def _schedule(self) -> None:
        """Write at the end of this loop iteration, or when the connection is made; and check the timeouts."""
        if self._timer is None:
            self._arm()
        if not self._is_flush_scheduled and self._transport is not None:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._transport is None or not self._out or self._transport.is_closing():
            return  # A transport that is lost fails all requests with `connection_lost`; one of uvloop refuses data before.
        out, self._out = self._out, []
        if sum(map(len, out)) < _JOIN_BELOW_BYTES * len(out):
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._check_ms / 1000, self._check_time)

    def _check_time(self) -> None:
        """Close the connection if its oldest request has timed out. Requests are listed in the order of sending."""
        self._timer = None
        self._tick += 1
        oldest_add = next(iter(self._adds.values()), None)
        oldest_read = next(iter(self._reads.values()), None)
        options = self._options
        if oldest_add is not None and self._age_ms(oldest_add) >= options.add_timeout_ms:
            self.close(f"no response to an add request within {options.add_timeout_ms:g} ms")
        elif oldest_read is not None and self._age_ms(oldest_read) >= options.read_timeout_ms:
            self.close(f"no response to a read request within {options.read_timeout_ms:g} ms")
        elif self._adds or self._reads:
            self._arm()

    def _age_ms(self, request: _Add | _Read) -> float:
        """Return a lower bound of the time since the request was sent: the time until the first check does not count."""
        return (self._tick - request.tick - 1) * self._check_ms

    def _fail_add(self, request: _Add) -> None:
        self.unanswered_bytes -= len(request.frame)
        if request.listener.add_answered(request.entry_id, request.index, self.bookie_id, UNREACHABLE):
            request.listener.confirm()

    def _fail_all(self) -> None:
        requests: list[_Add | _Read] = [*self._adds.values(), *self._reads.values()]
        for queue in self._waiting.values():
            requests.extend(queue)
        self._adds.clear()
        self._reads.clear()
        self._waiting.clear()
        for request in requests:
            if isinstance(request, _Add):
                self._fail_add(request)
            elif not request.done.done():
                request.done.set_result(ReadResult(UNREACHABLE, b""))
