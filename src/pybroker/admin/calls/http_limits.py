"""Limits of all HTTP requests, and the memory of one request until its response is written.

Request bodies, responses and viewed messages are parts of the broker's memory budget (`memory/memory_parts.py`). To
prevent deadlocks, a request reserves them in this order only. Queues are fair by client address.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from pybroker.errors import AdminError
from pybroker.memory.broker_memory import Holding
from pybroker.runtime.time_slices import in_slices
from pybroker.waiting.fair_shares import FairShares, Holder
from pybroker.waiting.permits import NoPermit, Permits

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.memory.broker_memory import Memory
    from pybroker.memory.memory_budget import Part
    from pybroker.runtime.clock import Clock

SMALL_BYTES = 64 * 1024
"""Smaller bodies and responses are not counted, because the number of connections limits them."""
RETRY_AFTER_S = 1
OPENED_FACTOR = 12
"""A decoded document takes this multiple of its size: an empty list of 5 bytes takes 60."""
WAITING_ANSWERS = 4
"""Fraction of the response limit for finished responses that wait, because they are already in memory."""


LOOKS_AT_ONCE = 4
"""Concurrent scans of a subscription's entries. Each uses a slice of every event loop iteration, and up to some
megabytes.
"""

_LIMITS = "(limits: httpMaxPendingRequests and httpPendingRequestTimeoutMs)"

T = TypeVar("T")


class HttpLimits:
    """Shared resources of all HTTP requests."""

    def __init__(self, config: BrokerConfig, memory: Memory) -> None:
        self.max_pending = config.http_max_pending_requests
        self.timeout_s = config.http_pending_request_timeout_ms / 1000
        self.memory = memory
        self.documents = Permits(1, self.max_pending)  # one, because threads share the interpreter
        self.looks = Permits(LOOKS_AT_ONCE, self.max_pending)
        self.pending: defaultdict[str, FairShares] = defaultdict(FairShares)
        """Requests that wait for memory, by part and owner."""
        self.waiting_answer_bytes = 0
        """Size of finished responses that wait."""

    @property
    def waiting(self) -> int:
        memory = self.memory
        waiting = sum(part.waiting for part in (memory.requests, memory.answers, memory.views))
        return waiting + self.documents.waiting + self.looks.waiting


class Share:
    """The memory and the permits of one HTTP request. `close` releases all of them."""

    def __init__(self, limits: HttpLimits, address: Hashable) -> None:
        """`address` identifies the client in fair queues."""
        self.limits = limits
        self.holder = Holder(f"address {address}")
        """The client's address until the role is known."""
        self._address = address
        self._held = AsyncExitStack()

    async def of_requests(self, size_bytes: int) -> None:
        """Reserve memory for a request body. Raises AdminError 503 if no memory becomes free in time, or if too many
        requests wait for memory.
        """
        await self._hold(self.limits.memory.requests, size_bytes, "bodies", "httpMaxRequestBytes")

    async def of_answers(self, size_bytes: int) -> None:
        """Reserve memory for a complete response. Raises AdminError 503 if no memory becomes free in time, or if too
        many requests wait for memory.
        """
        limits = self.limits
        part = limits.memory.answers
        most_bytes = part.most_bytes // WAITING_ANSWERS
        if part.room() < size_bytes and part.used_bytes and limits.waiting_answer_bytes + size_bytes > most_bytes:
            raise _busy("responses", "httpMaxResponseBytes", "the queue of waiting responses is full")
        limits.waiting_answer_bytes += size_bytes
        try:
            await self._hold(part, size_bytes, "responses", "httpMaxResponseBytes")
        finally:
            limits.waiting_answer_bytes -= size_bytes

    async def of_views(self, size_bytes: int) -> None:
        """Reserve memory for messages that the response shows. Raises AdminError 503 if no memory becomes free in time,
        or if too many requests wait for memory.
        """
        await self._hold(self.limits.memory.views, size_bytes, "viewed messages", "httpMaxViewedMessageBytes")

    async def of_lists(self, size_bytes: int) -> Holding:
        """Reserve memory for lists of topic names. The caller can release the returned reservation before `close` does.
        Raises AdminError 503 if no memory becomes free in time, or if too many requests wait for memory.
        """
        return await self._hold(self.limits.memory.lists, size_bytes, "lists of topics", "")

    @asynccontextmanager
    async def of_documents(self, size_bytes: int) -> AsyncIterator[None]:
        """Within this context, hold the permit to decode a large JSON document of `size_bytes`, and count the memory of
        the decoded document. All requests share one permit. Raises AdminError 503 if the permit is not free in time,
        or if too many requests wait for it.
        """
        limits = self.limits
        holding = Holding(limits.memory, limits.memory.requests)
        try:
            async with limits.documents.held(self.holder, limits.timeout_s):
                holding.count(OPENED_FACTOR * size_bytes)  # no wait: only one document is decoded
                yield
        except NoPermit as error:
            raise AdminError(
                503, f"The broker cannot decode another large JSON body now {_LIMITS}: {error}", RETRY_AFTER_S
            ) from error
        finally:
            holding.close()

    async def look(self, steps: Generator[None, None, T], clock: Clock) -> T:
        """Run `steps`, a generator that yields between short steps of a long query, and return its result. Other tasks
        run in between.

        At most LOOKS_AT_ONCE queries run concurrently. Raises AdminError 503 if too many queries wait, or if this query
        waits too long.
        """
        limits = self.limits
        try:
            async with limits.looks.held(self.holder, limits.timeout_s):
                return await in_slices(steps, clock)
        except NoPermit as error:
            raise AdminError(
                503, f"The broker cannot run another long query now {_LIMITS}: {error}", RETRY_AFTER_S
            ) from error

    async def _hold(self, part: Part[object], size_bytes: int, what: str, key: str) -> Holding:
        limits = self.limits
        waiting = limits.pending[part.name]
        if part.room() < size_bytes and part.used_bytes and not waiting.may_take(self.holder, limits.max_pending):
            raise _busy(what, key, "the queue of waiting requests is full (httpMaxPendingRequests)")
        holding = Holding(limits.memory, part)
        self._held.callback(holding.close)
        waiting.add(self.holder.name, 1)
        try:
            async with asyncio.timeout(limits.timeout_s):
                await holding.wait(self._address, size_bytes)
        except TimeoutError as error:
            raise _busy(
                what, key, f"the request has waited for {limits.timeout_s:g} s (httpPendingRequestTimeoutMs)"
            ) from error
        finally:
            waiting.add(self.holder.name, -1)
        return holding

    async def close(self) -> None:
        await self._held.aclose()


def _busy(what: str, key: str, why: str) -> AdminError:
    keys = f"{key}, brokerMemoryLimitMB" if key else "brokerMemoryLimitMB"
    return AdminError(503, f"The broker has no memory for more {what} ({keys}): {why}. Retry later.", RETRY_AFTER_S)
