import asyncio

import pytest

from pybroker.runtime.clock import Clock
from pybroker.runtime.time_slices import BACKGROUND_SLICE_MS, BUSY_MS, BackgroundSlices


class ManualClock(Clock):
    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


class OtherTasks:
    """Work in each iteration of the event loop, which takes `work_ms`."""

    def __init__(self, clock: ManualClock, work_ms: float) -> None:
        self.iterations = 0
        self._clock = clock
        self._work_ms = work_ms

    def work(self) -> None:
        self.iterations += 1
        self._clock.now_ms += self._work_ms
        asyncio.get_running_loop().call_soon(self.work)


@pytest.mark.parametrize(("work_ms", "pauses"), [(BUSY_MS, True), (BUSY_MS / 2, False), (0.0, False)])
async def test_background_work_pauses_while_other_tasks_have_work(work_ms: float, pauses: bool) -> None:
    clock = ManualClock()
    others = OtherTasks(clock, work_ms)
    asyncio.get_running_loop().call_soon(others.work)
    slices = BackgroundSlices(clock)
    assert slices.has_ended()
    await slices.next()
    assert (others.iterations > 1) is pauses
    assert not slices.has_ended()
    clock.now_ms += BACKGROUND_SLICE_MS
    assert slices.has_ended()
