"""The stepped loop with more than one process on it: what belongs to a broker dies with it, and the others go on.

What must hold: nothing of a process happens once it `is_over`, not even what the callback that it died in has still to do; and the
order of everything follows from the seed alone. So tasks have numbers for hashes (a set of tasks, as asyncio keeps them, would else
be in the order of their addresses), and time passes with the work that is done.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Callable, Coroutine, Generator
from random import Random
from typing import Any

from tests.support.stepped_loop import SteppedLoop

from pybroker.runtime.clock import Clock

WALL_START_MS = 1_700_000_000_000
TURN_S = 20e-6
LOOK_S = 2e-6
MAX_IDLE_TURNS = 20_000


class NeverEnds(AssertionError):
    """Turn follows turn, and no time passes but that of the turns themselves."""


class Process:
    """Something that can die: all its tasks, timers and callbacks carry it in their context."""

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)
        self.is_over = False
        self.is_buried = False
        self.frozen: list[asyncio.Handle] = []
        self.is_stopped = False
        """Whether it is stopped as by SIGSTOP: nothing of it runs until `SimulatedLoop.resume`."""
        self.parked: list[asyncio.Handle] = []
        """Callbacks of a stopped process, in the order in which they became due, and its timers."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function` in this process; later if the process is stopped, and never once it is over."""
        if self.is_over:
            return None
        if self.is_stopped:
            asyncio.get_running_loop().call_soon(function, *arguments, context=self.context.copy())
            return None
        return self.context.copy().run(function, *arguments)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def running_process() -> Process | None:
    """Return the process whose callback runs now."""
    return _PROCESS.get()


class NumberedTask(asyncio.Task[Any]):
    """A task that sets keep in the order of its making."""

    def __init__(
        self, number: int, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], loop: SimulatedLoop, **more: Any
    ) -> None:
        self.number = number  # before the base class, which puts it into a set
        context = more.get("context")
        self.process = _PROCESS.get() if context is None else context.get(_PROCESS)
        super().__init__(work, loop=loop, **more)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(SteppedLoop):
    """Of one simulation. `turns` counts its turns."""

    def __init__(self, chance: Random, now_s: float) -> None:
        super().__init__(chance, now_s)
        self.set_debug(False)
        self._clock_resolution = 1e-9  # and not that of the machine
        self.turns = 0
        self.turned: Callable[[int], None] = lambda turns: None
        self._idle_turns = 0
        self._numbers = itertools.count(1)
        self.set_task_factory(self._make_task)

    def _make_task(self, loop: Any, work: Any, **more: Any) -> NumberedTask:
        return NumberedTask(next(self._numbers), work, self, **more)

    def pass_time(self, seconds: float) -> None:
        """Somebody works for so long."""
        self._now_s += seconds

    def select(self, timeout: float | None) -> list[Any]:
        self.turns += 1
        self.turned(self.turns)
        self._idle_turns = 0 if timeout else self._idle_turns + 1
        if self._idle_turns > MAX_IDLE_TURNS:
            raise NeverEnds(f"{MAX_IDLE_TURNS} turns in a row")
        found = super().select(timeout)
        self._now_s += TURN_S
        return found

    # --- processes that are over -------------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = super().call_soon(callback, *args, context=context)
        self._stop_if_over(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        process = _process_of(timer)
        if process is not None and process.is_over:
            timer.cancel()
        elif process is not None and process.is_stopped:
            self._park(process, timer)
        return timer

    def _stop_if_over(self, handle: asyncio.Handle) -> None:
        process = _process_of(handle)
        if process is None:
            return
        if process.is_over and not process.is_buried:
            handle._cancelled = True
            process.frozen.append(handle)
        elif process.is_stopped and not process.is_over:
            self._park(process, handle)

    # --- processes that are stopped for a while ----------------------------------------------------------------------

    def stop_process(self, process: Process) -> None:
        """Stop `process` as SIGSTOP does. Its data in transit, and the time, continue."""
        if process.is_over or process.is_stopped:
            return
        process.is_stopped = True
        for handle in self._ready:  # type: ignore[attr-defined]
            if not handle._cancelled and _process_of(handle) is process:
                self._park(process, handle)
        for timer in self.timers(process):
            self._park(process, timer)

    def resume_process(self, process: Process) -> None:
        """Run what became due meanwhile: callbacks in their order, then timers by their time."""
        if not process.is_stopped:
            return
        process.is_stopped = False
        parked, process.parked = process.parked, []
        if process.is_over:
            return
        timers = [each for each in parked if isinstance(each, asyncio.TimerHandle)]
        for handle in parked:
            if not isinstance(handle, asyncio.TimerHandle):
                handle._cancelled = False
                self._ready.append(handle)  # type: ignore[attr-defined]
        for timer in sorted(timers, key=lambda each: each.when()):
            timer._cancelled = False
            if timer._scheduled:  # type: ignore[attr-defined]
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            else:
                timer._scheduled = True  # type: ignore[attr-defined]
                heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]

    def _park(self, process: Process, handle: asyncio.Handle) -> None:
        """Keep `handle` from running. The loop takes it for a cancelled one."""
        handle._cancelled = True
        process.parked.append(handle)
        if isinstance(handle, asyncio.TimerHandle) and handle._scheduled:  # type: ignore[attr-defined]
            self._timer_cancelled_count += 1  # type: ignore[attr-defined]

    def end(self, process: Process) -> None:
        """Nothing of `process` happens any more."""
        process.is_over = True
        process.frozen += [each for each in process.parked if not isinstance(each, asyncio.TimerHandle)]
        process.parked.clear()
        for timer in self.timers(process):
            timer.cancel()
        for handle in self._ready:  # type: ignore[attr-defined]
            if not handle._cancelled:
                self._stop_if_over(handle)

    def bury(self, process: Process) -> None:
        """Let go of what Python holds of it, once nobody watches: only when the loop is not running."""
        process.is_over = process.is_buried = True
        for handle in process.frozen:
            handle._cancelled = False
            self._ready.append(handle)  # type: ignore[attr-defined]
        process.frozen.clear()
        for _ in range(100):
            tasks = self.tasks(process)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            for _ in range(20):
                self.call_soon(self.stop)
                self.run_forever()
        raise AssertionError(f"cannot be ended: {tasks}")

    def timers(self, process: Process) -> list[asyncio.TimerHandle]:
        """What `process` still waits for."""
        return [timer for timer in self._scheduled if not timer._cancelled and _process_of(timer) is process]  # type: ignore[attr-defined]

    def tasks(self, process: Process) -> list[NumberedTask]:
        """Of `process`, in the order of their making."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, NumberedTask) and task.process is process]
        return sorted(tasks, key=lambda task: task.number)


class SimulatedClock(Clock):
    """The time of a simulation: each look at it takes a moment."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def monotonic_ms(self) -> float:
        self._loop.pass_time(LOOK_S)
        return self._loop.time() * 1000

    def processor_ms(self) -> float:
        return self._loop.time() * 1000

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self._loop.time() * 1000)


def _process_of(handle: asyncio.Handle) -> Process | None:
    return handle._context.get(_PROCESS)  # type: ignore[attr-defined, no-any-return]
