"""A full disk: refusals, operations that continue, and recovery; docs/contributing/faults.md names these tests."""

import dataclasses
import errno
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import OPTIONS, WRITERS, BlockedReason, FaultyStore, fails, faulty_store, turns
from tests.unit.local_store.stores import DIRECTORY, read_all

from pybroker.errors import StorageFull, StoreError
from pybroker.local_store.free_space import RESERVE_NAME
from pybroker.local_store.store_options import LocalStoreOptions, fit_to_file_system

MIB = 1 << 20
CAPACITY_BYTES = 64 * MIB  # watermark 4 MiB, reserve 2 MiB, journal files of 2 MiB
FULL = dataclasses.replace(LocalStoreOptions(), space_poll_s=0.001, checkpoint_retry_s=0.001)
both_writers = pytest.mark.parametrize("writes_direct", WRITERS, ids=["thread", "direct"])


async def small_store(*, writes_direct: bool = False) -> FaultyStore:
    return await faulty_store(writes_direct=writes_direct, capacity_bytes=CAPACITY_BYTES, options=FULL)


def has_reserve(it: FaultyStore) -> bool:
    return RESERVE_NAME in it.disk.list_names(DIRECTORY)


@both_writers
async def test_all_receipted_entries_fit_when_publishing_fills_disk(writes_direct: bool) -> None:
    it = await small_store(writes_direct=writes_direct)
    ledger_id, payload = await it.store.create_ledger(), bytes(100_000)
    count = 0
    while count < 1000:
        try:
            it.listener.append(it.store, ledger_id, count, [payload])
        except StorageFull:
            it.listener.open_runs -= 1
            break
        await it.listener.settled()
        if it.listener.errors:  # the space was measured between the append and its write
            assert [type(error) for error in it.listener.errors] == [StorageFull]
            break
        count += 1
    assert 100 < count < 1000
    assert await it.store._checkpointer.run()
    assert it.store.stats().checkpoint_retries == 0, "the watermark leaves room for what is receipted"
    # The journal's next file may have taken the space below the watermark: then the reserve is free space.
    assert has_reserve(it) or it.store.refusal()
    assert await it.acknowledge(b"goes on;") is None
    again = await it.again(Random(1))
    assert await read_all(again.store, ledger_id) == [payload] * count
    await again.store.close()


@both_writers
async def test_full_disk_refuses_appends_and_takes_acks_until_space_returns(
    writes_direct: bool,
) -> None:
    it = await small_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"kept" * 1000)
    it.fill_disk()
    await it.until(it.store.refusal)
    await it.until(lambda: not has_reserve(it))
    with pytest.raises(StorageFull, match="storageMinFreeSpaceMB"):
        it.listener.append(it.store, ledger_id, 1, [b"refused"])
    assert it.store.stats().publishing_refused == 1
    assert it.store.stats().refused_entries == 1
    for number in range(500):
        assert await it.acknowledge(b"%d;" % number) is None
    assert await it.store._checkpointer.run(), "in the place of the reserve"
    assert (await it.store.read(ledger_id, 0, 1, 10_000)).payloads == [b"kept" * 1000]
    it.free_disk()
    await it.has_space()
    assert has_reserve(it)
    it.listener.open_runs = 0
    await it.append(ledger_id, 1, b"goes on")
    again = await it.again(Random(2))
    assert await read_all(again.store, ledger_id) == [b"kept" * 1000, b"goes on"]
    _, deltas = await again.store.load("c")
    assert b"".join(deltas) == b"".join(b"%d;" % number for number in range(500))
    await again.store.close()


async def test_full_and_freed_disk_is_logged_once_each_beside_publishing(caplog: pytest.LogCaptureFixture) -> None:
    it = await small_store()
    ledger_id = await it.store.create_ledger()
    with caplog.at_level("INFO", "pybroker"):
        await it.append(ledger_id, 0, b"stored")
        it.fill_disk()
        await it.until(it.store.refusal)
        for _ in range(200):
            with pytest.raises(StorageFull):
                it.listener.append(it.store, ledger_id, 1, [b"refused"])
            await turns(5)
        it.listener.open_runs = 0
        it.free_disk()
        await it.has_space()
        for entry_id in range(1, 100):
            await it.append(ledger_id, entry_id, b"stored")
    events = [record.getMessage() for record in caplog.records]
    assert events.count("storage.full") == 1
    assert events.count("storage.space_available") == 1
    await it.store.close()


async def test_appends_resume_only_with_spare_space() -> None:
    it = await small_store()
    watermark = it.store._space.options.min_free_bytes
    it.fill_disk(watermark - MIB)
    await it.until(it.store.refusal)
    assert has_reserve(it), "there is still room for what is reserved"
    it.fill_disk(watermark + 1000)
    await turns(200)
    assert it.store.refusal() is not None
    it.fill_disk(2 * watermark)
    await it.has_space()
    await it.store.close()


async def test_refusal_that_returns_at_once_is_retried_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """Figures promise space that no journal file finds, as under a quota: not two log lines at each look."""
    it = await small_store()
    space = it.store._space
    looks = 0
    measure = space.measure

    def counted() -> None:
        nonlocal looks
        looks += 1
        measure()

    space.measure = counted  # type: ignore[method-assign]
    with caplog.at_level("INFO", "pybroker"):
        for _ in range(400):
            before = looks
            if it.store.refusal() is None:
                space.no_room(OSError(errno.ENOSPC, "no space left"))
            await it.until(lambda seen=before: looks > seen)  # type: ignore[misc]
    refusals = [record for record in caplog.records if record.getMessage() == "storage.full"]
    assert 2 < len(refusals) < 20
    await it.store.close()


@pytest.mark.parametrize("total_mib", [2, 8, 64, 1024, 1 << 20])
def test_next_journal_file_fits_into_the_space_that_is_kept_free(total_mib: int) -> None:
    fitted = fit_to_file_system(LocalStoreOptions(), total_mib * MIB)
    assert 64 * 1024 <= fitted.journal_file_bytes <= fitted.min_free_bytes


async def test_runs_waiting_for_checkpoint_are_refused_without_space() -> None:
    options = dataclasses.replace(OPTIONS, checkpoint_max_bytes=4000, journal_max_bytes=10_000)
    it = await faulty_store(options=options)
    ledger_id = await it.store.create_ledger()
    it.disk.plan = fails(errno.ENOSPC, "write", suffix=".ledger")
    for number in range(50):
        it.listener.append(it.store, ledger_id, number, [bytes(1000)])
    assert it.store.stats().held_runs
    await it.listener.settled()
    assert it.store.stats().held_runs == 0
    assert {type(error) for error in it.listener.errors} == {StorageFull}
    receipted = sum(len(runs) for runs, error in it.listener.calls if error is None)
    it.disk.plan = None
    await it.has_space()
    assert (await it.store.seal(ledger_id)).entry_count == receipted
    assert await read_all(it.store, ledger_id) == [bytes(1000)] * receipted
    await it.store.close()


async def test_start_on_full_disk_serves_stored_entries() -> None:
    it = await small_store()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"kept")
    it.fill_disk()
    again = await it.again()
    assert again.store.refusal() is not None
    assert await read_all(again.store, ledger_id) == [b"kept"]
    assert await again.acknowledge(b"1") is None
    again.free_disk()
    await again.has_space()
    await again.append(await again.store.create_ledger(), 0, b"goes on")
    await again.store.close()


async def test_start_without_any_space_reports_it() -> None:
    disk = FaultDisk(capacity_bytes=CAPACITY_BYTES)
    it = FaultyStore(disk, FULL)
    it.fill_disk()
    with pytest.raises(StoreError, match=r"checkpoint\.db cannot be opened: the disk is full"):
        await it.open()
    it.free_disk()
    await it.open()
    await it.store.close()


async def test_slow_space_query_does_not_block_the_loop() -> None:
    it = await small_store()
    ledger_id = await it.store.create_ledger()
    blocked_reason = it.disk.plan = BlockedReason("unlink", suffix=RESERVE_NAME)
    it.fill_disk()
    await blocked_reason.reached()
    await turns()
    assert await it.acknowledge(b"1") is None
    blocked_reason.open()
    it.free_disk()
    await it.has_space()
    await it.append(ledger_id, 0, b"a")
    await it.store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
async def test_appends_are_refused_without_reserve(number: int) -> None:
    it = await small_store()
    ledger_id = await it.store.create_ledger()
    it.fill_disk()
    await it.until(lambda: not has_reserve(it))
    it.disk.plan = fails(number, "write", suffix=RESERVE_NAME)
    it.free_disk()
    await turns(200)
    assert it.store.refusal() is not None
    it.disk.plan = None
    await it.has_space()
    await it.append(ledger_id, 0, b"a")
    assert it.fatal == []
    await it.store.close()


def test_small_file_system_reserves_little() -> None:
    options = fit_to_file_system(LocalStoreOptions(), 300 * MIB)
    assert options.min_free_bytes + options.reserve_bytes < 30 * MIB
    assert options.journal_file_bytes == 9 * MIB
    assert options.journal_max_bytes < 40 * MIB
    assert fit_to_file_system(LocalStoreOptions(), 100 << 30) == LocalStoreOptions()
