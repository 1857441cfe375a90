"""Every short task has an owner that awaits it; a failure is logged once and affects no other task."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner, completion


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    logger = logging.getLogger("pybroker")
    before = (list(logger.handlers), logger.propagate, logger.level, logging.raiseExceptions)
    stream = io.StringIO()
    logs.configure("info", stream)
    yield stream
    logger.handlers, logger.propagate, level, logging.raiseExceptions = before
    logger.setLevel(level)


class Work:
    """Waits until it is released, and records how it ended."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.history: list[str] = []

    async def run(self) -> None:
        self.history.append("started")
        try:
            await self.released.wait()
            self.history.append("done")
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # Cleaning up takes an iteration: the owner must wait for it.
            self.history.append("cancelled")
            raise


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_task_runs_and_is_forgotten_when_it_ends() -> None:
    owner, work = TaskOwner("owner"), Work()
    owner.start(work.run(), "work")
    assert len(owner) == 1
    work.released.set()
    await turns()
    assert (work.history, len(owner)) == (["started", "done"], 0)


async def test_a_task_has_the_names_of_its_owner_and_its_work() -> None:
    owner = TaskOwner("connection")
    names: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())

    owner.start(work(), "lookup")
    await turns()
    assert names == ["connection:lookup"]


async def test_close_cancels_and_awaits_everything() -> None:
    owner, works = TaskOwner("owner"), [Work() for _ in range(3)]
    for work in works:
        owner.start(work.run(), "work")
    await turns()
    await owner.close()
    assert [work.history for work in works] == [["started", "cancelled"]] * 3
    assert len(owner) == 0


async def test_closing_twice_is_allowed() -> None:
    owner = TaskOwner("owner")
    await owner.close()
    await owner.close()


async def test_a_closed_owner_drops_work_without_starting_it() -> None:
    owner, work = TaskOwner("owner"), Work()
    await owner.close()
    owner.start(work.run(), "late")  # A coroutine that is never awaited would be a warning, and so an error.
    await turns()
    assert (work.history, len(owner)) == ([], 0)


async def test_a_task_may_close_its_own_owner() -> None:
    owner, other = TaskOwner("owner"), Work()
    history: list[str] = []

    async def closes() -> None:
        await owner.close()
        history.append("closed")

    owner.start(other.run(), "other")
    owner.start(closes(), "closes")
    await turns(6)
    assert history == ["closed"]
    assert other.history == ["started", "cancelled"]


async def test_a_task_that_fails_is_logged_once_and_harms_nobody(output: io.StringIO) -> None:
    owner, other = TaskOwner("owner"), Work()

    async def fails() -> None:
        raise ValueError("broken")

    owner.start(other.run(), "other")
    owner.start(fails(), "fails")
    await turns()
    assert len(owner) == 1
    assert output.getvalue().count("ERROR task.failed task=owner:fails") == 1
    assert "ValueError: broken" in output.getvalue()
    other.released.set()
    await turns()
    assert other.history == ["started", "done"]
    await owner.close()
    assert output.getvalue().count("task.failed") == 1


async def test_a_cancelled_task_is_no_failure(output: io.StringIO) -> None:
    owner, work = TaskOwner("owner"), Work()
    owner.start(work.run(), "work")
    await turns()
    await owner.close()
    assert output.getvalue() == ""


async def test_a_task_that_fails_while_it_is_closed_does_not_stop_the_closing(output: io.StringIO) -> None:
    owner, other = TaskOwner("owner"), Work()

    async def fails_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("broken at the end")

    owner.start(fails_at_the_end(), "fails")
    owner.start(other.run(), "other")
    await turns()
    await owner.close()
    await turns()
    assert other.history == ["started", "cancelled"]
    assert len(owner) == 0
    assert "broken at the end" in output.getvalue()


async def test_who_waits_for_a_task_that_is_cancelled_before_it_begins_waits_no_longer() -> None:
    owner, work = TaskOwner("owner"), Work()
    waiting = asyncio.ensure_future(owner.run_to_end(work.run(), "work"))
    await asyncio.sleep(0)  # its task exists, and has not taken its first step
    assert not work.history
    async with asyncio.timeout(1):
        await owner.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not work.history


async def test_a_completion_is_what_its_callback_is_told() -> None:
    ended, done = completion()
    done(None)
    await ended
    ended, done = completion()
    done(OSError("full"))
    with pytest.raises(OSError, match="full"):
        await ended


async def test_a_completion_that_nobody_awaits_any_more_is_told_in_vain() -> None:
    ended, done = completion()
    ended.cancel()
    done(OSError("full"))
    done(None)
    assert ended.cancelled()
