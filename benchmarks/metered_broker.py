"""`pybroker` with a meter of its event loop: `python -m benchmarks.metered_broker serve ...`, started by `fairness`.

At SIGUSR2 the broker writes the figures since the last signal to the file that `PYBROKER_LOOP_METER` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from pybroker import broker_process
from pybroker.cli import program

FILE_VARIABLE = "PYBROKER_LOOP_METER"
TICK_S = 0.001
LONG_S = 0.005


class LoopMeter:
    """Processor time of the event loop's thread between ticks. It excludes the time in which other processes run.

    A tick is due every TICK_S seconds; while a callback runs there is none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop: asyncio.AbstractEventLoop
        self._began_s = 0.0
        self._ticked_cpu_s = 0.0
        self._longest_s = 0.0
        self._long_s = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_signal_handler(signal.SIGUSR2, self._report)
        self._ticked_cpu_s = time.thread_time()
        self._report()
        self._tick()

    def _tick(self) -> None:
        now_s = time.thread_time()
        used_s = now_s - self._ticked_cpu_s
        self._ticked_cpu_s = now_s
        if used_s > LONG_S:
            self._long_s += used_s
        self._longest_s = max(self._longest_s, used_s)
        self._loop.call_later(TICK_S, self._tick)

    def _report(self) -> None:
        now_s = time.monotonic()
        long_share = self._long_s / (now_s - self._began_s)
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps({"longest_ms": self._longest_s * 1000, "long_share": long_share}))
        partial.replace(self._file)
        self._began_s, self._longest_s, self._long_s = now_s, 0.0, 0.0


def main() -> int:
    meter = LoopMeter(Path(os.environ[FILE_VARIABLE]))
    factory = broker_process.loop_factory() or asyncio.new_event_loop

    def metered_loop() -> asyncio.AbstractEventLoop:
        loop = factory()
        loop.call_soon(meter.start, loop)
        return loop

    broker_process.loop_factory = lambda: metered_loop
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
