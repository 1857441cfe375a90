"""Owner of short asyncio tasks. After its `close` returned, none of its tasks runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from pybroker.runtime import logs

Result = TypeVar("Result")


class TaskOwner:
    """Keeps references to tasks, logs an unhandled exception once, and cancels and awaits the tasks at close."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[asyncio.Task[None], None] = {}  # in start order
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], what: str) -> bool:
        """Run `work` as a task named `what`. After close, drop `work` without having started it, and return False."""
        if self._closed:
            work.close()
            return False
        self._begin(work, what)
        return True

    def _begin(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}:{what}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def run_to_end(self, work: Coroutine[Any, Any, Result], what: str) -> Result:
        """Await `work` to its end even if the caller is cancelled; the cancellation takes effect afterwards."""
        if self._closed:
            return await work
        ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        task = self._begin(_settle(ended, work), what)
        task.add_done_callback(lambda _: _settle_unbegun(ended, work))
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not ended.cancelled():
                ended.exception()  # marks the exception as retrieved, because no caller receives it
            raise cancelled
        return ended.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.error("task.failed", task=task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Refuse new work, cancel the running tasks, and wait until all have ended."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def first_set(*events: asyncio.Event | None) -> None:
    """Wait until one of these events is set. None stands for an event that is never set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events if event is not None]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


async def all_results(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all coroutines concurrently, and return their results in order. After an error, cancel the other coroutines,
    wait until they have ended, and raise the first error itself, not an ExceptionGroup.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [each.result() for each in tasks]


def completion() -> tuple[asyncio.Future[None], Callable[[Exception | None], None]]:
    """Return a future, and the callback that completes it with an error or None. The callback does nothing if the
    future was cancelled before.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if ended.done():
            return  # the waiter was cancelled
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    return ended, done


def _settle_unbegun(ended: asyncio.Future[Result], work: Coroutine[Any, Any, Result]) -> None:
    if not ended.done():
        work.close()
        ended.cancel()


async def _settle(ended: asyncio.Future[Result], work: Coroutine[Any, Any, Result]) -> None:
    try:
        ended.set_result(await work)
    except asyncio.CancelledError:
        ended.cancel()
        raise
    except BaseException as error:  # noqa: BLE001  (passed to the waiter)
        ended.set_exception(error)
