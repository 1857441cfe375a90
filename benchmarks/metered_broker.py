"""`pybroker` with meters of its event loop: `python -m benchmarks.metered_broker serve ...`, started by `fairness`.

At SIGUSR2 the broker writes the figures since the last signal to the file that `PYBROKER_LOOP_METER` names. All figures are
processor time of the event loop's thread, so the time in which other processes run does not change them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.steady_publisher import STEADY
from pybroker import broker_process
from pybroker.cli import program
from pybroker.model.events import SendRun
from pybroker.server.connection import Connection
from pybroker.server.server_context import ServerContext

FILE_VARIABLE = "PYBROKER_LOOP_METER"
TICK_S = 0.001
LONG_S = 0.005


class LoopMeter:
    """Processor time between ticks, and from publishes to their receipts.

    A tick is due every TICK_S seconds; while a callback runs there is none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop: asyncio.AbstractEventLoop
        self._began_s = 0.0
        self._ticked_cpu_s = 0.0
        self._longest_s = 0.0
        self._long_s = 0.0
        self._receipts_s: list[float] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_signal_handler(signal.SIGUSR2, self._report)
        self._ticked_cpu_s = time.thread_time()
        self._report()
        self._tick()

    def answered(self, used_s: float) -> None:
        """Count a receipt that followed its publish after `used_s` of processor time."""
        self._receipts_s.append(used_s)

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
        receipt_p50, receipt_p99 = np.percentile(self._receipts_s or [0.0], [50, 99]).tolist()
        figures = {
            "longest_ms": self._longest_s * 1000,
            "long_share": self._long_s / (now_s - self._began_s),
            "receipt_p50_ms": receipt_p50 * 1000,
            "receipt_p99_ms": receipt_p99 * 1000,
        }
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(figures))
        partial.replace(self._file)
        self._began_s, self._longest_s, self._long_s = now_s, 0.0, 0.0
        self._receipts_s = []


class MeteredConnection(Connection):
    """Measures from the publishes of steady publishers to their receipts."""

    def __init__(self, context: ServerContext, meter: LoopMeter) -> None:
        super().__init__(context)
        self._meter = meter
        self._began_cpu_s: dict[int, float] = {}

    def _publish(self, run: SendRun) -> None:
        opened = self.producers.get(run.producer_id)
        if opened is not None and STEADY in str(opened.topic.name):
            self._began_cpu_s[run.sequence_ids[-1]] = time.thread_time()
        super()._publish(run)

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        super().send_receipts(run, ledger_id, first_entry_id)
        began_s = self._began_cpu_s.pop(run.sequence_ids[-1], None)
        if began_s is not None:
            self._meter.answered(time.thread_time() - began_s)


class MeteredProcess(broker_process.OwnProcess):
    meter: LoopMeter

    def new_connection(self, context: ServerContext) -> Connection:
        return MeteredConnection(context, self.meter)


def main() -> int:
    meter = MeteredProcess.meter = LoopMeter(Path(os.environ[FILE_VARIABLE]))
    factory = broker_process.loop_factory() or asyncio.new_event_loop

    def metered_loop() -> asyncio.AbstractEventLoop:
        loop = factory()
        loop.call_soon(meter.start, loop)
        return loop

    broker_process.loop_factory = lambda: metered_loop
    broker_process.OwnProcess = MeteredProcess  # type: ignore[misc]
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
