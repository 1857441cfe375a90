"""A metadata file with faults on request; docs/contributing/faults.md names these tests."""

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import BlockedReason, fails

from pybroker.errors import StorageFull, StoreError
from pybroker.metadata.metadata_store import Versioned
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

PATH = Path("/data/metadata.db")


async def opened(disk: FaultDisk) -> SqliteMetadataStore:
    return await SqliteMetadataStore.open(PATH, disk)


async def test_a_put_without_room_is_refused_whole_and_works_when_there_is_some() -> None:
    disk = FaultDisk()
    store = await opened(disk)
    await store.put("/a", b"1")
    disk.plan = fails(errno.ENOSPC, "commit")
    with pytest.raises(StorageFull):
        await store.put("/a", b"2")
    assert await store.get("/a") == Versioned(b"1", 0)
    disk.plan = None
    await store.put("/a", b"3")
    await store.close()
    store = await opened(disk.after_power_loss(Random(1)))
    assert await store.get("/a") == Versioned(b"3", 1)
    await store.close()


@pytest.mark.parametrize("operation", ["commit", "read"])
async def test_an_io_error_of_the_metadata_fails_the_call_and_changes_nothing(operation: str) -> None:
    disk = FaultDisk()
    store = await opened(disk)
    await store.put("/a", b"1")
    disk.plan = fails(errno.EIO, operation)
    with pytest.raises(StoreError, match="the metadata store failed") as failure:
        await store.put("/a", b"2")
    assert not isinstance(failure.value, StorageFull)
    disk.plan = None
    assert await store.get("/a") == Versioned(b"1", 0)
    await store.close()


async def test_a_put_that_power_cut_off_is_there_whole_or_not_at_all() -> None:
    for steps in range(10):
        disk = FaultDisk()
        store = await opened(disk)
        await store.put("/a", b"1")
        disk.cut_power_after(steps)
        is_done = True
        try:
            await store.put("/a", b"2")
        except StoreError:
            is_done = False
        survivor = disk.after_power_loss(Random(steps))
        await store.close()
        store = await opened(survivor)
        assert await store.get("/a") in ([] if is_done else [Versioned(b"1", 0)]) + [Versioned(b"2", 1)]
        await store.close()


async def test_a_slow_put_holds_up_nothing() -> None:
    disk = FaultDisk()
    store = await opened(disk)
    blocked_reason = disk.plan = BlockedReason("commit")
    putting = asyncio.ensure_future(store.put("/a", b"1"))
    await blocked_reason.reached()
    await asyncio.sleep(0)
    assert not putting.done()
    blocked_reason.open()
    assert await putting == 0
    await store.close()


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_what_was_refused_because_of_a_sync_is_not_in_force_after_a_kill(times: int) -> None:
    disk = FaultDisk()
    store = await opened(disk)
    await store.put("/a", b"kept")
    # The log is written, and its sync fails.
    disk.plan = fails(errno.EIO, "sync", suffix="-wal", times=times)
    with pytest.raises(StoreError, match="the metadata store failed"):
        await store.put("/a", b"refused")
    if times == 3:  # the undo failed too, and the next call detects that first
        with pytest.raises(StoreError, match="the metadata store failed"):
            await store.put("/b", b"refused too")
    if times > 1:
        await store.put("/c", b"taken")
    assert await store.get("/a") == Versioned(b"kept", 0)
    survivor = disk.after_kill()
    await store.close()
    again = await opened(survivor)
    assert await again.get("/a") == Versioned(b"kept", 0)
    assert await again.get("/b") is None
    assert (await again.get("/c") is not None) == (times > 1)
    await again.close()


@pytest.mark.parametrize("seed", range(4))
async def test_what_follows_a_log_whose_sync_failed_survives_a_power_cut(seed: int) -> None:
    """The next process reads frames that the device never received, and appends its own."""
    disk = FaultDisk()
    store = await opened(disk)
    await store.put("/a", b"kept")
    disk.plan = fails(errno.EIO, "sync", suffix="-wal")
    with pytest.raises(StoreError, match="the metadata store failed"):
        await store.put("/a", b"refused" * 1000)
    survivor = disk.after_kill()
    await store.close()
    store = await opened(survivor)
    await store.put("/b", b"answered")
    survivor = survivor.after_power_loss(Random(seed))
    await store.close()
    store = await opened(survivor)
    assert await store.get("/b") == Versioned(b"answered", 0)
    await store.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_log_that_cannot_be_written_again_refuses_the_start_only_when_it_is_not_for_space(number: int) -> None:
    disk = FaultDisk()
    store = await opened(disk)
    await store.put("/a", b"kept")
    survivor = disk.after_kill()
    await store.close()
    survivor.plan = fails(number, "write", suffix="-wal")
    if number == errno.EIO:
        with pytest.raises(StoreError, match="cannot be opened"):
            await opened(survivor)
        survivor.plan = None
    store = await opened(survivor)
    assert await store.get("/a") == Versioned(b"kept", 0)
    await store.close()
