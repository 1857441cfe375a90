"""The watchdog blames callbacks that block the loop, and not those that wait for a CPU with the whole process."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pybroker.model.counters import BrokerStats
from pybroker.process.watchdog import LoopWatchdog, Moment, is_at_fault

LIMIT_S = 0.1
TICK = Moment(100.0, 5.0, 1.0)


def after(seconds: float, cpu_s: float = 0.0, queued_s: float | None = 0.0) -> Moment:
    return Moment(
        TICK.now_s + seconds, TICK.cpu_s + cpu_s, None if queued_s is None else (TICK.queued_s or 0) + queued_s
    )


@pytest.mark.parametrize(
    ("alarm", "now", "verdict"),
    [
        (None, after(0.15, cpu_s=0.15), True),
        (None, after(0.15, cpu_s=0.05, queued_s=0.1), False),
        (None, after(2.0), False),  # the machine was suspended, or a callback blocks: the next alarm decides
        (after(0.15), after(0.26), True),  # blocks
        (after(0.15), after(0.26, queued_s=0.1), False),  # waits for a CPU
        (after(0.15), after(0.26, queued_s=None), False),  # unknown
        (after(0.15), after(0.26, cpu_s=0.12, queued_s=0.1), True),  # slow, and on a busy machine
    ],
)
def test_a_callback_is_at_fault_when_the_process_could_have_run(
    alarm: Moment | None, now: Moment, verdict: bool
) -> None:
    assert is_at_fault(TICK, alarm, now, LIMIT_S) is verdict


@pytest.fixture
def alarm_of_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def burn() -> None:
    ends_s = time.thread_time() + 0.3
    while time.thread_time() < ends_s:
        pass


def block() -> None:
    time.sleep(0.5)


@pytest.mark.usefixtures("alarm_of_before")
@pytest.mark.parametrize("slow", [burn, block])
async def test_the_stack_of_a_slow_callback_is_logged(
    slow: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    stats = BrokerStats()
    watching = asyncio.create_task(LoopWatchdog(stats, 50).run())
    try:
        with caplog.at_level(logging.WARNING, "pybroker"):
            async with asyncio.timeout(20):
                while not caplog.records:
                    await asyncio.sleep(0)
                    slow()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    assert slow.__name__ in caplog.records[0].fields["stack"]  # type: ignore[attr-defined]


IDLE = """
import asyncio, sys
from pybroker.runtime import logs
from pybroker.model.counters import BrokerStats
from pybroker.process.watchdog import LoopWatchdog

async def main():
    logs.configure("warning", sys.stdout)
    stats = BrokerStats()
    watching = asyncio.create_task(LoopWatchdog(stats, 50).run())
    print("ready", flush=True)
    while not stats.loop_starved:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)

asyncio.run(main())
"""


def test_a_process_that_does_not_run_is_no_slow_callback() -> None:
    with subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE, text=True) as idle:
        assert idle.stdout is not None
        assert idle.stdout.readline() == "ready\n"
        while idle.poll() is None:
            idle.send_signal(signal.SIGSTOP)
            time.sleep(0.3)  # it is not visible that the process is suspended; the next round is as good
            idle.send_signal(signal.SIGCONT)
            time.sleep(0.3)
        assert idle.stdout.read() == ""
    assert idle.returncode == 0


def test_watchdog_in_another_thread_sets_no_alarm_which_would_end_the_process() -> None:
    async def run() -> None:
        stats = BrokerStats()
        watching = asyncio.create_task(LoopWatchdog(stats, 50).run())
        await asyncio.sleep(0)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        watching.cancel()

    failures: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001  (reported by the test's own thread)
            failures.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert failures == []
