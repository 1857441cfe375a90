"""Timer of delayed delivery, which resumes the dispatch of a subscription when the next delayed entry is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.dispatch.delayed.delayed_entries import DelayedIndex, DeliveryTimes

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime, Timer

MAX_ALARM_S = 60.0
"""Longest timer, in seconds. After it, the due time is compared again, because the wall clock may have been set."""


class DelayedAlarm:
    """Timer for the delayed entry that is due first. After `set`, it runs while entries are delayed."""

    def __init__(
        self, runtime: Runtime, index: DelayedIndex, times: DeliveryTimes | None, wake: Callable[[], None]
    ) -> None:
        """`times`: precision of delivery times; None if delayed delivery is disabled. `wake` resumes dispatch."""
        self.times = times
        self._runtime = runtime
        self._index = index
        self._wake = wake
        self._timer: Timer | None = None
        self._alarm_ms = 0
        self._last_alarm_ms = 0

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def set(self) -> None:
        due_ms = self._index.next_due_ms()
        if due_ms is None or self.times is None:
            self.stop()
            return
        alarm_ms = self.times.alarm_ms(due_ms, self._last_alarm_ms)
        if self._timer is not None:
            if self._alarm_ms == alarm_ms:
                return
            self._timer.cancel()
        self._alarm_ms = alarm_ms
        wait_s = (alarm_ms - self._runtime.clock.wall_ms()) / 1000
        self._timer = self._runtime.call_later(max(0.0, min(wait_s, MAX_ALARM_S)), self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._runtime.clock.wall_ms()
        if now_ms < self._alarm_ms:
            self.set()
        else:
            self._last_alarm_ms = now_ms
            self._wake()
