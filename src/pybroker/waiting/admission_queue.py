"""Queue of requests that wait for units of a limited resource, and are admitted round robin over client addresses.

The resource decides which address may be admitted (`Admissions`), and `fair_queue.py` decides the order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from pybroker.waiting.fair_queue import FairQueue

Address = TypeVar("Address", bound=Hashable)
Unit = TypeVar("Unit")


class QueueFull(Exception):
    """The queue is full: the request was removed from it, or not added."""

    def __init__(self, waiting: int, *, is_newcomer: bool) -> None:
        """`waiting`: the number of waiting requests; `is_newcomer`: the request was not added."""
        super().__init__(f"{waiting} requests wait already")
        self.waiting = waiting
        self.is_newcomer = is_newcomer


class Admissions(ABC, Generic[Address, Unit]):
    """Units of one resource."""

    @abstractmethod
    def may_admit(self, address: Address) -> bool: ...

    @abstractmethod
    def take(self, address: Address) -> Unit: ...

    @abstractmethod
    def give_back(self, address: Address, unit: Unit) -> None:
        """Take back a unit that was never used, because its request timed out or was cancelled at the moment of its
        admission.
        """

    def retry_ms(self, addresses: Collection[Address]) -> float | None:
        """Return the milliseconds after which one of the waiting `addresses` may be admitted even if no unit is
        returned, for example because a rate permits it again; None if time alone changes nothing.
        """
        return None


class Waiter(Generic[Address, Unit]):
    """A waiting request. `admitted` is the future of its unit."""

    __slots__ = ("address", "admitted", "name")

    def __init__(self, address: Address, name: str) -> None:
        self.address = address
        self.name = name
        self.admitted: asyncio.Future[Unit] = asyncio.get_running_loop().create_future()


class AdmissionQueue(Generic[Address, Unit]):
    """Waiting requests of one resource, on one event loop.

    The caller must call `admit_waiting` after each return of a unit and each change of a limit.
    """

    def __init__(
        self, admissions: Admissions[Address, Unit], max_waiting: int, max_waiting_per_address: int | None = None
    ) -> None:
        """`max_waiting_per_address`: by default `max_waiting`."""
        self._admissions = admissions
        self._queue: FairQueue[Address, Waiter[Address, Unit]] = FairQueue(
            max_waiting, max_waiting if max_waiting_per_address is None else max_waiting_per_address
        )
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    async def enter(self, address: Address, timeout_s: float, name: str = "") -> Unit:
        """Return a unit of the resource, immediately or after a wait of up to `timeout_s` seconds. Requests of one
        address are admitted round robin over their `name`.

        Raises QueueFull, TimeoutError, and the errors given to `refuse_all`.
        """
        waiter = self._add(address, name)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.admitted
        except BaseException:
            self._abandon(waiter)
            raise

    def admit_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (waiter := self._queue.next(self._admissions.may_admit)) is not None:
            if not waiter.admitted.done():  # Otherwise it was cancelled, and its task has not run yet.
                waiter.admitted.set_result(self._admissions.take(waiter.address))
        if len(self._queue):
            retry_ms = self._admissions.retry_ms(self._queue.addresses)
            if retry_ms is not None:
                self._timer = asyncio.get_running_loop().call_later(max(1, retry_ms) / 1000, self.admit_waiting)

    def refuse_all(self, refusal: Exception) -> None:
        """Let all waiting requests raise `refusal`."""
        while (waiter := self._queue.next(lambda _: True)) is not None:
            if not waiter.admitted.done():
                waiter.admitted.set_exception(refusal)

    def _add(self, address: Address, name: str) -> Waiter[Address, Unit]:
        waiter: Waiter[Address, Unit] = Waiter(address, name)
        if not self._queue.waiting_of(address) and self._admissions.may_admit(address):
            waiter.admitted.set_result(self._admissions.take(address))
            return waiter
        displaced = self._queue.add(address, name, waiter)
        if displaced is not None and not displaced.admitted.done():
            displaced.admitted.set_exception(QueueFull(len(self._queue), is_newcomer=displaced is waiter))
        self.admit_waiting()  # A limit may have been raised.
        return waiter

    def _abandon(self, waiter: Waiter[Address, Unit]) -> None:
        admitted = waiter.admitted
        if not admitted.done() or admitted.cancelled():
            self._queue.remove(waiter.address, waiter.name, waiter)
        elif admitted.exception() is None:  # It was admitted while its wait ended.
            self._admissions.give_back(waiter.address, admitted.result())
            self.admit_waiting()
