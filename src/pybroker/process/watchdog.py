"""Watches that the event loop turns: measures its lag, and shows what holds it up.

A timer signal is armed ahead of the next tick. When the loop has not ticked by then, the signal's handler runs inside of the
callback that is under way and can log its stack, which no code on the loop itself could do. A late tick alone says little: on a
busy machine the process may just not have had a CPU. So a callback is blamed when the loop's own thread has used the CPU for as
long as the limit, or when it has done nothing for a whole limit although the kernel did not keep it waiting for a CPU: then it
blocks. Anything else is counted as starved, and looked at again.
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
    """What the clocks of the loop's thread said, in seconds."""

    now_s: float
    cpu_s: float
    """Used by the thread."""
    queued_s: float | None
    """Spent ready to run and without a CPU; None where the system does not tell (it takes Linux with schedstat)."""


def is_at_fault(tick: Moment, alarm: Moment | None, now: Moment, limit_s: float) -> bool:
    """Whether a callback holds the loop up, rather than that the process gets no CPU.

    `tick` is when the loop ticked last, `alarm` the first alarm since, which found nobody at fault; None if this is it.
    """
    if now.cpu_s - tick.cpu_s >= limit_s:
        return True
    # Until the first alarm a machine that stood still looks the same as a callback that blocks; afterwards the process runs.
    if alarm is None or alarm.queued_s is None or now.queued_s is None:
        return False
    return (now.now_s - alarm.now_s) - (now.queued_s - alarm.queued_s) >= limit_s


class LoopWatchdog:
    """Owned by the app. `limit_ms` 0 measures only."""

    def __init__(self, stats: BrokerStats, limit_ms: int) -> None:
        self._stats = stats
        self._limit_s = limit_ms / 1000
        self._schedule = -1  # the file descriptor of the thread's figures from the scheduler
        self._ticked: Moment
        self._alarmed: Moment | None = None

    async def run(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        has_alarm = self._limit_s > 0 and hasattr(signal, "SIGALRM")  # Windows has none
        if has_alarm:
            with contextlib.suppress(OSError):
                self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
            # Only the main thread may handle signals: a broker inside somebody's test just measures.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGALRM, self._alarm)
                signal.siginterrupt(signal.SIGALRM, False)
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
        logs.warning("loop.held_up", limit_ms=limit_ms, cpu_ms=cpu_ms, stack=stack)
