"""One run of the broker's storage under the model, from start to crash: loop, disk, metadata, store, managed ledgers.

What must hold: after `is_over` nothing of this life is heard of any more, and nothing that the code under test only logs goes
unnoticed: an exception in a callback or in a task is kept in `broken`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest
from tests.fuzz.managed_ledger_faults import Faults, SlowMetadata, UncertainStore
from tests.support.fault_disk import FaultDisk
from tests.support.stepped_loop import NoThreads, SteppedJournal, SteppedLoop
from tests.unit.local_store.stores import DIRECTORY

from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata.metadata_store import Versioned
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

_T = TypeVar("_T")

WALL_START_MS = 1_700_000_000_000
HEADER_BYTES = 16
# What the code logs and survives, although it never happens unless something is wrong with it.
_BUGS = {"append.completion_failed", "task.failed", "cursor.snapshot_failed"}


class Crashed(Exception):
    """The process is gone; the call that was made did not return."""


class LoopClock(Clock):
    """The time of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self._loop.time() * 1000)


def publish_time_ms(payload: bytes) -> int:
    """When the model published the entry: its payloads begin with a number and a time."""
    return int.from_bytes(payload[8:16], "little")


class Life:
    """Owned by the world, one at a time."""

    def __init__(
        self, chance: Random, now_s: float, disk: FaultDisk, values: dict[str, Versioned], patch: pytest.MonkeyPatch
    ) -> None:
        self.loop = SteppedLoop(chance, now_s)
        self.loop.set_exception_handler(self._escaped)
        self.clock = LoopClock(self.loop)
        self.disk = disk
        self.faults = Faults(self.end)
        self.faults.disk = disk
        self.disk.plan = self.faults
        self.metadata = SlowMetadata(disk, values, self.loop.delay_s)
        self.is_over = False
        self.broken: list[BaseException | str] = []
        self.store: UncertainStore
        self.factory: ManagedLedgerFactory
        # Calls that are made between runs happen on this loop as well.
        asyncio._set_running_loop(self.loop)
        patch.setattr(logs, "error", self._logged)
        patch.setattr(logs, "warning", self._logged)

    def start(self, options: LocalStoreOptions, limits: LedgerLimits) -> None:
        """Raises Crashed when this life ends before it has begun."""
        around = StoreEnvironment(self.disk, self.clock, Random(0), NoThreads())
        self.store = self.run(
            UncertainStore.open(DIRECTORY, options, self._fatal, around, publish_time_ms, SteppedJournal)
        )
        resources = LedgerResources(
            self.store,
            EntryCache(2_000),
            limits,
            self.clock,
            cursor_flush_interval_ms=5,
            publish_time_of=publish_time_ms,
        )
        self.factory = ManagedLedgerFactory(resources, self.store, self.metadata)

    def run(self, work: Coroutine[Any, Any, _T], limit_s: float = 60) -> _T:
        """Do `work` while everything else goes on. Raises Crashed."""
        if self.is_over:
            work.close()
            raise Crashed
        task = self.loop.create_task(work)
        task.add_done_callback(lambda _: self.loop.stop())
        limit = self.loop.call_later(limit_s, self.loop.stop)
        asyncio._set_running_loop(None)
        try:
            self.loop.run_forever()
        finally:
            asyncio._set_running_loop(self.loop)
        limit.cancel()
        if self.is_over:
            raise Crashed
        assert task.done(), f"{work.__qualname__} never ends"  # type: ignore[attr-defined]
        return task.result()

    def turns(self, count: int) -> None:
        """Let everything go on for a few turns of the loop."""

        async def pass_turns() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.run(pass_turns())

    def until(self, condition: Callable[[], bool], limit_s: float = 60) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 - many things may make it true
                await asyncio.sleep(0.001)

        self.run(wait(), limit_s)

    def end(self) -> None:
        """The process is gone."""
        self.is_over = True
        if self.loop.is_running():
            self.loop.stop()

    def bury(self) -> None:
        """Let go of what Python holds of it; nothing that happens now can be seen by anybody."""
        self.is_over = True
        self.disk.is_off = True
        asyncio._set_running_loop(None)
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        if hasattr(self, "store"):
            self.store._table.close()
        self.loop.close()

    def _fatal(self, error: BaseException) -> None:
        # What the disk did to a database comes as SQLite's error.
        if not isinstance(error, OSError) and not isinstance(error.__cause__, sqlite3.OperationalError):
            self.broken.append(error)
        self.end()

    def _escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.is_over:
            self.broken.append(context.get("exception") or str(context))

    def _logged(self, event: str, **fields: Any) -> None:
        if not self.is_over and event in _BUGS:
            self.broken.append(fields.get("exc_info") or event)
