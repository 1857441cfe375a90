"""Event loop watchdog: measures the event loop's lag, and logs the callback that blocks it.

If the event loop does not tick in time, a timer signal runs inside the current callback and logs its stack. The
callback is blamed if the thread used the CPU for the length of the limit, or was idle for the whole limit. Otherwise
the process had no CPU, which is counted as starved, and checked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pybroker.model.counters import BrokerStats
from pybroker.runtime import logs

TICK_S = 0.05
SHORTEST_ALARM_S = 0.01
MAX_STACK_FRAMES = 12


class Moment(NamedTuple):
    """Clock readings of the event loop's thread, in seconds."""

    now_s: float
    cpu_s: float
    queued_s: float | None
    """Time ready to run without a CPU; None without Linux schedstat."""


def is_at_fault(tick: Moment, alarm: Moment | None, now: Moment, limit_s: float) -> bool:
    """Return, at a timer signal, whether a callback has blocked the event loop for `limit_s` seconds; False if the
    thread only lacked a CPU.

    Clock readings: `tick` when the watchdog last ran on the event loop, `alarm` at the first timer signal after `tick`
    (None if the present signal is the first), `now` at the present signal. At the first signal, only CPU time counts.
    At later signals, idle time since `alarm` counts too, for example in a blocking system call.
    """
    if now.cpu_s - tick.cpu_s >= limit_s:
        return True
    # Until the first alarm a suspended machine looks like a blocking callback; after it, the process is running.
    if alarm is None or alarm.queued_s is None or now.queued_s is None:
        return False
    return (now.now_s - alarm.now_s) - (now.queued_s - alarm.queued_s) >= limit_s


class LoopWatchdog:
    """Watchdog of one event loop. With `limit_ms` 0 it only measures the lag."""

    def __init__(self, stats: BrokerStats, limit_ms: int) -> None:
        self._stats = stats
        self._limit_s = limit_ms / 1000
        self._schedule = -1  # file descriptor of the thread's scheduler statistics
        self._ticked: Moment
        self._alarmed: Moment | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        has_alarm = self._limit_s > 0 and hasattr(signal, "SIGALRM")  # Windows has none
        if has_alarm:
            with contextlib.suppress(OSError):
                self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
            # Only the main thread may handle signals. A broker in another thread, as in tests, only measures.
            # An alarm without a handler would end the process.
            try:
                signal.signal(signal.SIGALRM, self._alarm)
                signal.siginterrupt(signal.SIGALRM, False)
            except ValueError:
                has_alarm = False
        try:
            while True:
                if has_alarm:
                    self._ticked, self._alarmed = self._moment(), None
                    signal.setitimer(signal.ITIMER_REAL, TICK_S + self._limit_s)
                due_s = loop.time() + TICK_S
                await asyncio.sleep(TICK_S)
                lag_ms = max(0.0, (loop.time() - due_s) * 1000)
                self._stats.loop_lag_ms = lag_ms
                self._stats.loop_lag_max_ms = max(self._stats.loop_lag_max_ms, lag_ms)
                self._stats.loop_lags_ms.add(lag_ms)
        finally:
            if has_alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if self._schedule >= 0:
                os.close(self._schedule)
                self._schedule = -1

    def _moment(self) -> Moment:
        queued_s = None
        if self._schedule >= 0:
            with contextlib.suppress(OSError, ValueError, IndexError):
                queued_s = int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9
        return Moment(time.monotonic(), time.thread_time(), queued_s)

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        now = self._moment()
        cpu_s = now.cpu_s - self._ticked.cpu_s
        if not is_at_fault(self._ticked, self._alarmed, now, self._limit_s):
            if self._alarmed is None:
                self._stats.loop_starved += 1
                self._alarmed = now
            signal.setitimer(signal.ITIMER_REAL, max(SHORTEST_ALARM_S, self._limit_s - cpu_s))
            return
        innermost = traceback.extract_stack(frame)[-MAX_STACK_FRAMES:]
        stack = " > ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in innermost)
        cpu_ms, limit_ms = round(cpu_s * 1000), round(self._limit_s * 1000)
        logs.warning("event_loop.blocked", limit_ms=limit_ms, cpu_ms=cpu_ms, stack=stack)
