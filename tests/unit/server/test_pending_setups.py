"""Setup of producers and consumers: one at a time for each id, and none stays attached after its id was closed."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import TopicNotFound
from pybroker.server.pending_setups import PendingSetups


class Attached:
    def __init__(self) -> None:
        self.is_detached = False

    def detach(self) -> None:
        self.is_detached = True


class Setup:
    """One setup of id 7, which ends when the test sets the result of `attaching`."""

    def __init__(self, setups: PendingSetups[Attached]) -> None:
        self.attaching: asyncio.Future[Attached] = asyncio.get_running_loop().create_future()
        self.has_begun = False
        self.task = asyncio.create_task(self._run(setups))

    async def _run(self, setups: PendingSetups[Attached]) -> Attached | None:
        async with setups.lock(7):
            self.has_begun = True
            return await setups.set_up(7, self.attaching)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_object_is_returned_while_its_id_is_listed() -> None:
    held: dict[int, Attached | None] = {}
    setup = Setup(PendingSetups(held))
    await settle()
    assert held == {7: None}
    attached = Attached()
    setup.attaching.set_result(attached)
    assert await setup.task is attached
    assert not attached.is_detached


async def test_id_closed_during_setup_detaches_object() -> None:
    held: dict[int, Attached | None] = {}
    setup = Setup(PendingSetups(held))
    await settle()
    del held[7]
    attached = Attached()
    setup.attaching.set_result(attached)
    assert await setup.task is None
    assert attached.is_detached


async def test_second_setup_of_id_waits_for_first() -> None:
    held: dict[int, Attached | None] = {}
    setups = PendingSetups(held)
    first, second = Setup(setups), Setup(setups)
    await settle()
    assert first.has_begun
    assert not second.has_begun
    first.attaching.set_result(Attached())
    await first.task
    await settle()
    assert second.has_begun
    second.attaching.set_result(Attached())
    assert await second.task is not None


async def test_failed_setup_releases_id() -> None:
    held: dict[int, Attached | None] = {}
    setup = Setup(PendingSetups(held))
    await settle()
    setup.attaching.set_exception(TopicNotFound("no topic"))
    with pytest.raises(TopicNotFound):
        await setup.task
    assert not held


async def test_cancelled_setup_releases_id() -> None:
    held: dict[int, Attached | None] = {}
    setup = Setup(PendingSetups(held))
    await settle()
    setup.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await setup.task
    assert not held
