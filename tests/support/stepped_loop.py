"""An event loop without threads and real time: work of a thread is one step of the loop, at a random moment.

Invariants: the same random source gives the same order of everything, so failures replay; time advances only if
nothing else can run; a task that waits although nothing can happen any more is an error instead of a hanging test.

A store on such a loop is opened with `NoThreads` and `SteppedJournal`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeVar

from tests.support.fault_disk import InlineExecutor

from pybroker.local_store.journal.journal import BlockingSteps, Journal, JournalSetup
from pybroker.local_store.journal.journal_items import JournalBatch, JournalItem
from pybroker.runtime.threads import Threads

_T = TypeVar("_T")


class NothingHappens(AssertionError):
    """A task waits for a completion that was lost."""


class SteppedLoop(asyncio.BaseEventLoop):
    """Virtual time from `now_s` on; `slowness` multiplies the duration of disk operations."""

    def __init__(self, chance: Random, now_s: float) -> None:
        super().__init__()
        self.chance = chance
        self.slowness = 1
        self._now_s = now_s
        self._selector = self

    def time(self) -> float:
        return self._now_s

    def delay_s(self) -> float:
        """How long the next operation takes: often nothing, sometimes longer than others that began later."""
        return self.chance.choice((0, 0, 0.0001, 0.0003, 0.001)) * self.slowness

    def run_in_executor(self, executor: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        future: asyncio.Future[_T] = self.create_future()
        self.call_later(self.delay_s(), _work, future, func, args)
        return future

    # What the base class asks of a selector and of a loop that owns one

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingHappens("nothing is left that could happen")
        self._now_s += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""


def _work(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - as an executor does
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class NoThreads(Threads):
    """Work submitted to a pool runs at once, or with `run_in_executor` of a SteppedLoop at a random moment."""

    def pool(self, name: str, count: int = 1, *, niceness: int = 0) -> Executor:
        return InlineExecutor()

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        raise AssertionError("no thread runs here")


class SteppedJournal(Journal):
    """A journal whose writer runs as steps of the loop. A batch is durable some time before its waiters are notified."""

    def __init__(self, setup: JournalSetup) -> None:
        super().__init__(setup)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        self._loop = loop
        self._steps = BlockingSteps(self)
        self._queue: deque[JournalItem] = deque()
        self._is_scheduled = False
        self._has_failed = False
        self._untold: deque[JournalBatch] = deque()

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    def put(self, item: JournalItem) -> None:
        self._queue.append(item)
        self._schedule()

    async def close(self, *, is_covered: bool) -> None:
        while not self._has_failed and (self._is_scheduled or self._untold):  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        self.setup.files.close(is_covered=is_covered)

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._has_failed:
            self._is_scheduled = True
            self._loop.call_later(self._loop.delay_s(), self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        while self._queue and self.batcher.take(self._queue.popleft()):
            pass
        try:
            self._untold.append(self.note_end(self._steps.carry_out(self.batcher.close_batch(0))))
        except OSError as error:
            self._has_failed = True
            self._loop.call_soon(self.setup.on_fatal, error)
            return
        self._loop.call_later(self._loop.delay_s(), self._tell_oldest)
        if self._queue:
            self._schedule()

    def _tell_oldest(self) -> None:
        self.setup.completed(self._untold.popleft())
