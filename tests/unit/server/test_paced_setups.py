import asyncio
from collections.abc import Callable
from typing import Any, cast

from pybroker.server.paced_setups import PER_ITERATION, PacedSetups


class Iterations:
    """The part of an event loop that runs callbacks of the next iteration."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], Any]] = []

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.callbacks.append(callback)

    def run_one(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


def submit(paced: PacedSetups, ran: list[int], number: int) -> bool:
    """Run an action now or later. Return whether it ran now."""
    if paced.admit():
        ran.append(number)
        return True
    paced.wait(lambda: ran.append(number))
    return False


def test_burst_is_divided_among_iterations_in_order() -> None:
    loop = Iterations()
    paced = PacedSetups(cast(asyncio.AbstractEventLoop, loop))
    ran: list[int] = []
    count = 3 * PER_ITERATION + 1
    immediately = [submit(paced, ran, number) for number in range(count)]
    assert immediately == [True] * PER_ITERATION + [False] * (count - PER_ITERATION)
    for iteration in range(1, 5):
        assert ran == list(range(min(count, iteration * PER_ITERATION)))
        loop.run_one()
    assert ran == list(range(count))
    while loop.callbacks:
        loop.run_one()
    assert submit(paced, ran, count)
    assert len(loop.callbacks) == 1


def test_newer_action_waits_behind_the_queue() -> None:
    loop = Iterations()
    paced = PacedSetups(cast(asyncio.AbstractEventLoop, loop))
    ran: list[int] = []
    for number in range(2 * PER_ITERATION + 1):
        submit(paced, ran, number)
    loop.run_one()
    assert not submit(paced, ran, 1000)
    loop.run_one()
    assert ran[-2:] == [2 * PER_ITERATION, 1000]


def test_single_actions_run_at_once_in_each_iteration() -> None:
    loop = Iterations()
    paced = PacedSetups(cast(asyncio.AbstractEventLoop, loop))
    ran: list[int] = []
    for number in range(3 * PER_ITERATION):
        assert submit(paced, ran, number)
        loop.run_one()
