"""Watches that the event loop turns: measures its lag, and shows what holds it up.

A timer signal is armed ahead of the next tick. When a callback holds the loop longer than the limit, the signal's handler runs
inside of that callback and logs its stack, which no code on the loop itself could do.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import traceback
from pathlib import Path
from types import FrameType

from pybroker import logs
from pybroker.model.stats import BrokerStats

TICK_S = 0.05
MAX_STACK_FRAMES = 12


class LoopWatchdog:
    """Owned by the app. `limit_ms` 0 measures only."""

    def __init__(self, stats: BrokerStats, limit_ms: int) -> None:
        self._stats = stats
        self._limit_s = limit_ms / 1000

    async def run(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        has_alarm = self._limit_s > 0
        if has_alarm:
            # Only the main thread may handle signals: a broker inside somebody's test just measures.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGALRM, self._held_up)
                signal.siginterrupt(signal.SIGALRM, False)
        try:
            while True:
                if has_alarm:
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

    def _held_up(self, number: int, frame: FrameType | None) -> None:
        innermost = traceback.extract_stack(frame)[-MAX_STACK_FRAMES:]
        stack = " > ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in innermost)
        logs.warning("loop.held_up", limit_ms=round(self._limit_s * 1000), stack=stack)
