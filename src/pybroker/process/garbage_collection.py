"""Policy for Python's cyclic garbage collector, to avoid long pauses in a broker with many topics.

A full collection takes a quarter of a second for 10,000 topics. Therefore objects that survived two young collections
are frozen, so that automatic collections do not visit them. Reference counting still frees them, but not cycles such as
unloaded topics. A full collection runs when the process is nearly idle and frozen objects have grown by half, or as
many were released with their topics; and when frozen objects have tripled and a million more were added.

The settings apply to the whole interpreter, so an embedded broker has no such policy.
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
"""Below this share of one CPU the process counts as idle."""

# Net new objects between two young collections, and young collections between two that freeze. A collection visits at
# most twice that many objects, about 4 ms. The last number is never reached, because the oldest generation is always
# empty.
_THRESHOLDS = (5_000, 1, 1_000_000)
_OBJECTS_OF_TOPIC = 60  # with one subscription


class GarbagePolicy:
    """Garbage collection policy of one broker process, between `start` and `stop`."""

    def __init__(self, stats: BrokerStats, clock: Clock, count_ended_topics: Callable[[], int]) -> None:
        """`count_ended_topics` returns how many topics were unloaded or deleted since the start."""
        self._stats = stats
        self._clock = clock
        self._count_ended_topics = count_ended_topics
        self._ended_topics = 0  # at the last full collection
        self._alive = 0  # frozen objects after the last full collection
        self._added = 0  # objects frozen since then; an overestimate, because some were freed
        self._began_ms = 0.0
        self._before = gc.get_threshold()
        self._is_resting = False

    def start(self) -> None:
        gc.callbacks.append(self._collected)
        gc.set_threshold(*_THRESHOLDS)
        self.collect_all()

    def rest(self) -> None:
        """Stop collecting, because the process is ending."""
        self._is_resting = True
        gc.disable()

    def stop(self) -> None:
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
        if self._is_resting:
            return
        is_idle = busy_share < IDLE_SHARE
        limit = self._alive // 2 + 100_000 if is_idle else self._alive * 2 + 1_000_000
        if (self._count_ended_topics() - self._ended_topics) * _OBJECTS_OF_TOPIC > limit:
            self.collect_all()
        elif self._added > limit:
            self._added = gc.get_freeze_count() - self._alive  # Visits all frozen objects: 10 ms for 10,000 topics.
            if self._added > limit:
                self.collect_all()

    async def run(self) -> None:
        while True:
            used_ms, began_ms = self._clock.processor_ms(), self._clock.monotonic_ms()
            await asyncio.sleep(CHECK_S)
            self.check((self._clock.processor_ms() - used_ms) / (self._clock.monotonic_ms() - began_ms))
