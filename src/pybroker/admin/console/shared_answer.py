"""A computed answer that all callers of the console share while it is fresh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pybroker.memory.broker_memory import Holding

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime

FRESH_MS = 2_000
"""Maximum age of an answer."""
FRESH_FOR_ITS_COST = 10
"""The answer also stays valid for this multiple of its build time, so that building takes at most a tenth of the event
loop's time.
"""
KEPT_S = 30.0
"""An unused answer is stored for this long, because rates are relative to the previous one."""


class Timed(Protocol):
    """An answer, with the start (monotonic clock) and the duration of its computation in milliseconds."""

    @property
    def monotonic_ms(self) -> float: ...

    @property
    def took_ms(self) -> float: ...


AnswerT = TypeVar("AnswerT", bound=Timed)


class SharedAnswer(Generic[AnswerT]):
    """Cache of one answer. `make` computes it from the previous answer, if there is one; `size_bytes` returns its
    memory, which is counted while the answer is stored.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[AnswerT | None], Awaitable[AnswerT]],
        size_bytes: Callable[[AnswerT], int],
    ) -> None:
        self._runtime = runtime
        self._make = make
        self._size_bytes = size_bytes
        self._lock = asyncio.Lock()
        self._answer: AnswerT | None = None
        self._room: Holding | None = None
        self._asked_ms = 0.0

    @property
    def is_kept(self) -> bool:
        return self._answer is not None

    async def current(self) -> AnswerT:
        """Return the stored answer while it is fresh, otherwise compute a new answer. Concurrent callers share one
        computation.

        An answer is fresh for FRESH_MS, or for FRESH_FOR_ITS_COST times the duration of its computation if that is
        longer.
        """
        async with self._lock:
            self._asked_ms = self._runtime.clock.monotonic_ms()
            if self._answer is None or not self._is_fresh(self._answer):
                self._keep(await self._make(self._answer))
            assert self._answer is not None
            return self._answer

    def _is_fresh(self, answer: AnswerT) -> bool:
        age_ms = self._asked_ms - answer.monotonic_ms
        return age_ms < max(FRESH_MS, FRESH_FOR_ITS_COST * answer.took_ms)

    def _keep(self, answer: AnswerT) -> None:
        if self._room is None:
            memory = self._runtime.memory
            self._room = Holding(memory, memory.lists)
            self._runtime.call_later(KEPT_S, self._drop_if_unused)
        # Reserve memory without waiting: operators need the answer most when memory is short.
        self._room.count(self._size_bytes(answer))
        self._answer = answer

    def _drop_if_unused(self) -> None:
        if self._runtime.clock.monotonic_ms() - self._asked_ms < KEPT_S * 1000 * 0.9:
            self._runtime.call_later(KEPT_S, self._drop_if_unused)
            return
        self._answer = None
        if self._room is not None:
            self._room.close()
            self._room = None
