"""Monitoring of bookies: the broker checks the condition of each bookie each second, and logs changes.

Bookies that have not responded since a failure are probed on a separate connection until they respond. Otherwise a
broker without appends and reads would never notice that they work again.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pybroker.bookkeeper.bookie_pool import BookiePool
from pybroker.bookkeeper.metadata_store import BookieRegistry
from pybroker.ledgers.bookie_report import BookieCondition, BookieReport, BookiesReport
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

CHECK_S = 1.0
PROBE_MS = 5_000
MAX_GONE = 100
"""Maximum number of bookies that are remembered after they left the list in ZooKeeper.

The earliest ones are forgotten first.
"""
FORGET_MS = 24 * 3_600_000
"""A bookie that left the list longer ago counts as removed from the cluster."""


class _Known(NamedTuple):
    condition: BookieCondition
    since_ms: int | None
    failure: str


class BookieWatch:
    """The conditions of the bookies of a ledger store. `needed`: number of bookies that a new ledger needs."""

    def __init__(self, pool: BookiePool, registry: BookieRegistry, needed: int, clock: Clock) -> None:
        self._pool = pool
        self._registry = registry
        self._needed = needed
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._has_enough = True
        self._probed_ms: dict[str, float] = {}
        self._tasks = TaskOwner("bookie watch")
        self._is_first = True

    def start(self) -> None:
        self._tasks.start(self._run(), "watch")

    async def close(self) -> None:
        await self._tasks.close()

    def report(self) -> BookiesReport:
        self.check()
        failures = self._pool.failures
        return BookiesReport(
            tuple(
                BookieReport(bookie_id, known.condition, known.since_ms, known.failure, failures[bookie_id])
                for bookie_id, known in sorted(self._known.items())
            ),
            self._needed,
        )

    def check(self) -> None:
        """Determine the condition of all bookies, and log changes since the previous call."""
        writable, read_only = self._registry.writable(), self._registry.read_only()
        for bookie_id in {*writable, *read_only, *self._registry.members(), *self._known}:
            trouble = self._pool.trouble(bookie_id)
            if bookie_id not in writable and bookie_id not in read_only:
                condition = BookieCondition.UNREGISTERED
            elif trouble is not None:
                condition = BookieCondition.UNREACHABLE
            elif bookie_id in read_only:
                condition = BookieCondition.READ_ONLY
            elif self._pool.is_quarantined(bookie_id):
                condition = BookieCondition.QUARANTINED
            else:
                condition = BookieCondition.USABLE
            self._take(bookie_id, condition, "" if trouble is None else trouble.reason)
        self._is_first = False
        self._forget_gone()
        self._compare_with_need()

    def _take(self, bookie_id: str, condition: BookieCondition, failure: str) -> None:
        before = self._known.get(bookie_id)
        if before is not None and before.condition is condition:
            if failure and failure != before.failure:
                self._known[bookie_id] = before._replace(failure=failure)
            return
        now_ms = self._clock.wall_ms()
        since_ms = None if self._is_first and before is None else now_ms
        self._known.pop(bookie_id, None)
        self._known[bookie_id] = _Known(condition, since_ms, failure)
        if condition is BookieCondition.USABLE:
            if before is not None:
                lasted_ms = None if before.since_ms is None else now_ms - before.since_ms
                logs.info(
                    "bookie.usable", bookie=bookie_id, previous=before.condition.value, previous_lasted_ms=lasted_ms
                )
        else:
            logs.warning("bookie.not_usable", bookie=bookie_id, condition=condition.value, reason=failure)

    def _forget_gone(self) -> None:
        gone = [each for each, known in self._known.items() if known.condition is BookieCondition.UNREGISTERED]
        before_ms = self._clock.wall_ms() - FORGET_MS
        forgotten = gone[: max(0, len(gone) - MAX_GONE)]
        forgotten += [each for each in gone[len(forgotten) :] if (self._known[each].since_ms or before_ms) < before_ms]
        for bookie_id in forgotten:
            del self._known[bookie_id]
        self._pool.forget(forgotten)

    def _compare_with_need(self) -> None:
        writable = (BookieCondition.USABLE, BookieCondition.QUARANTINED)
        count = sum(known.condition in writable for known in self._known.values())
        has_enough = count >= self._needed
        if has_enough is self._has_enough:
            return
        self._has_enough = has_enough
        if has_enough:
            logs.info("bookies.sufficient", writable=count, needed=self._needed)
        else:
            logs.error("bookies.too_few", writable=count, needed=self._needed)

    async def _run(self) -> None:
        while True:
            self.check()
            now_ms = self._clock.monotonic_ms()
            for bookie_id, known in self._known.items():
                is_due = now_ms - self._probed_ms.get(bookie_id, 0.0) >= PROBE_MS
                if known.condition is BookieCondition.UNREACHABLE and is_due:
                    self._probed_ms[bookie_id] = now_ms
                    self._tasks.start(self._pool.probe(bookie_id), f"probe {bookie_id}")
            for bookie_id in self._probed_ms.keys() - self._known.keys():
                del self._probed_ms[bookie_id]
            await asyncio.sleep(CHECK_S)
