"""Keeps Python's collector of cyclic garbage from holding up the loop of a broker with many topics.

A collection visits every object of its generations: 10,000 topics are 600,000 objects, a quarter of a second. Therefore what has
survived two young collections is frozen at once, which costs nothing, and no automatic collection visits it again; what nobody
refers to any more is freed as ever. Left are cycles that were frozen while they were in use, such as topics that are unloaded. They
are found by a collection of everything, which begins when the frozen objects have become half as many again, or as many were given
up with their topics, and the process has next to nothing to do; or, in any case, when there are three times as many and a
million more. So what waits to be freed is bounded, and a broker whose topics stay loaded pays for one such collection, in a
quiet moment.

With 10,000 topics loaded and unloaded four times, the longest stretch of the loop's own CPU was 66 to 88 ms in three of the rounds
and 690 ms in the one that met a collection of everything; without this 820 to 1,330 ms in all but the first, and memory rose.

Owned by whoever runs the process: these settings are the whole interpreter's, so a broker inside of another program has none.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from pybroker.model.counters import BrokerStats
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

CHECK_S = 1.0
IDLE_SHARE = 0.1
"""Of a processor, below which a process has time."""

# Objects made and not freed between two collections, and collections of the youngest between two that freeze. At most twice as many
# objects are visited at once, about 8 ms. The last number is never reached: the oldest generation is always empty.
_THRESHOLDS = (10_000, 1, 1_000_000)
_OBJECTS_OF_TOPIC = 60  # with one subscription


class GarbagePolicy:
    """Takes over the collector with `start`, gives it back with `stop`."""

    def __init__(self, stats: BrokerStats, clock: Clock, count_ended_topics: Callable[[], int]) -> None:
        """`count_ended_topics` says how many topics were unloaded or deleted since the start."""
        self._stats = stats
        self._clock = clock
        self._count_ended_topics = count_ended_topics
        self._ended_topics = 0  # before the last collection of everything
        self._alive = 0  # objects that were frozen after the last collection of everything
        self._added = 0  # those that were frozen since then; more than there are, since some were freed
        self._began_ms = 0.0
        self._before = gc.get_threshold()
        self._is_resting = False

    def start(self) -> None:
        """Collect and freeze what there is, and follow the policy from now on."""
        gc.callbacks.append(self._collected)
        gc.set_threshold(*_THRESHOLDS)
        self.collect_all()

    def rest(self) -> None:
        """Collect nothing until `stop`: the process ends, and nobody needs the memory that a pause would give back."""
        self._is_resting = True
        gc.disable()

    def stop(self) -> None:
        """Leave the collector as it was found."""
        if self._is_resting:
            self._is_resting = False
            gc.enable()
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_ms = self._clock.monotonic_ms()
            return
        if info["generation"] == 1:
            self._added += len(gc.get_objects(generation=2))
            gc.freeze()
        self._stats.gc_pauses_ms.add(self._clock.monotonic_ms() - self._began_ms)

    def collect_all(self) -> None:
        """Visit everything: a long pause when there is much."""
        began_ms = self._clock.monotonic_ms()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._alive, self._added = gc.get_freeze_count(), 0
        self._ended_topics = self._count_ended_topics()
        self._stats.gc_full_collections += 1
        took_ms = self._clock.monotonic_ms() - began_ms
        logs.info("garbage.collected", found=found, alive=self._alive, took_ms=round(took_ms, 1))

    def check(self, busy_share: float) -> None:
        """Collect everything if it is time to; `busy_share` is how much of a processor the process has used lately."""
        if self._is_resting:
            return
        is_idle = busy_share < IDLE_SHARE
        limit = self._alive // 2 + 100_000 if is_idle else self._alive * 2 + 1_000_000
        if (self._count_ended_topics() - self._ended_topics) * _OBJECTS_OF_TOPIC > limit:
            self.collect_all()
        elif self._added > limit:
            self._added = gc.get_freeze_count() - self._alive  # It visits all of them: 10 ms for 10,000 topics.
            if self._added > limit:
                self.collect_all()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            used_ms, began_ms = self._clock.processor_ms(), self._clock.monotonic_ms()
            await asyncio.sleep(CHECK_S)
            self.check((self._clock.processor_ms() - used_ms) / (self._clock.monotonic_ms() - began_ms))
