"""What the tests of faults share: plans for a FaultDisk, a store on it with either kind of journal, and waiting for its news."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from random import Random

from tests.support.fault_disk import FaultDisk, FaultPlan
from tests.unit.local_store.stores import DIRECTORY, PATIENCE_S, SMALL, Listener

from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions

# The journal's writer: the thread, or what stands for the kernel.
WRITERS = (False, True)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
OPTIONS = SMALL


class FaultyStore:
    """A disk and the store on it; every fatal error and every turn is remembered."""

    def __init__(self, disk: FaultDisk, options: LocalStoreOptions = OPTIONS) -> None:
        self.disk = disk
        self.options = options
        self.fatal: list[BaseException] = []
        self.has_failed = asyncio.Event()
        self.listener = Listener()
        self.store: LocalStore

    async def open(self) -> FaultyStore:
        self.store = await LocalStore.open(DIRECTORY, self.options, self._failed, StoreEnvironment(self.disk))
        return self

    def _failed(self, error: BaseException) -> None:
        self.fatal.append(error)
        self.has_failed.set()

    async def append(self, ledger_id: int, first_entry_id: int, *payloads: bytes) -> None:
        """Append and wait for the answer."""
        self.listener.append(self.store, ledger_id, first_entry_id, list(payloads))
        await self.listener.settled()

    async def acknowledge(self, delta: bytes) -> BaseException | None:
        """One delta of the cursor "c", and how it was answered."""
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.store.append_delta("c", delta, done.set_result)
        return await done

    async def until(self, condition: Callable[[], object]) -> None:
        """Polls: there is no event for everything that happens in the background."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def has_space(self) -> None:
        await self.until(lambda: self.store.refusal() is None)

    def fill_disk(self, left_bytes: int = 0) -> None:
        """Another process takes what is free."""
        figures = self.disk.space(DIRECTORY)
        assert figures is not None
        with self.disk.open_for_write(DIRECTORY / "ballast") as ballast:
            ballast.allocate(ballast.size() + figures.free_bytes - left_bytes)

    def free_disk(self) -> None:
        """It gives that back."""
        self.disk.unlink(DIRECTORY / "ballast")

    async def again(self, random: Random | None = None) -> FaultyStore:
        """The store after a power loss; after a kill without `random`."""
        survivor = self.disk.after_kill() if random is None else self.disk.after_power_loss(random)
        await self.store.close()
        return await FaultyStore(survivor, self.options).open()


async def faulty_store(
    *, writes_direct: bool = False, capacity_bytes: int | None = None, options: LocalStoreOptions = OPTIONS
) -> FaultyStore:
    return await FaultyStore(FaultDisk(writes_direct=writes_direct, capacity_bytes=capacity_bytes), options).open()


def fails(number: int, *operations: str, suffix: str = "", after: int = 0, times: int | None = None) -> FaultPlan:
    """These operations fail on files whose names end so; not the first `after` of them, and `times` at most."""
    wait, left = after, times

    def plan(operation: str, name: str) -> None:
        nonlocal wait, left
        if operation not in operations or not name.endswith(suffix):
            return
        wait -= 1
        if wait >= 0 or left == 0:
            return
        if left is not None:
            left -= 1
        raise OSError(number, os.strerror(number))

    return plan


class BlockedReason:
    """A plan of a disk that is slow at some operations: they wait until the gate is opened."""

    def __init__(self, *operations: str, suffix: str = "") -> None:
        self._operations = operations
        self._suffix = suffix
        self._is_open = threading.Event()
        self._is_reached = threading.Event()

    def __call__(self, operation: str, name: str) -> None:
        if operation in self._operations and name.endswith(self._suffix):
            self._is_reached.set()
            assert self._is_open.wait(PATIENCE_S)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._is_reached.wait, PATIENCE_S)

    def open(self) -> None:
        self._is_open.set()


async def turns(count: int = 50) -> None:
    """The loop goes on."""
    for _ in range(count):
        await asyncio.sleep(0)
