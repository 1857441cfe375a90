"""Faults during the move of entries to segment files and its commit; docs/contributing/faults.md names these tests."""

import asyncio
import errno
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk, PartialWrite
from tests.unit.local_store.faults import NO_SPACE, BlockedReason, FaultyStore, fails, faulty_store, turns
from tests.unit.local_store.stores import read_all

from pybroker.errors import StorageFull, StoreError
from pybroker.local_store.checkpoint import checkpoint

PAYLOADS = [b"%d" % number * 500 for number in range(40)]


async def filled(it: FaultyStore) -> int:
    """A ledger with all payloads and a cursor with one delta, none of it in its place yet."""
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, *PAYLOADS)
    assert await it.acknowledge(b"1") is None
    return ledger_id


async def check(it: FaultyStore, ledger_id: int) -> None:
    assert await read_all(it.store, ledger_id) == PAYLOADS
    assert await it.store.load("c") == (None, [b"1"])


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("steps", range(18))
@pytest.mark.parametrize("kept_bytes", [None, 1])
async def test_power_loss_in_checkpoint_loses_nothing(steps: int, is_sealed: bool, kept_bytes: int | None) -> None:
    it = await faulty_store()
    ledger_id = await filled(it)
    if is_sealed:
        await it.store.seal(ledger_id)
    it.disk.cut_power_after(steps, kept_bytes)
    await it.store._checkpointer.run()
    again = await it.again(Random(steps))
    await check(again, ledger_id)
    await again.store.close()


@pytest.mark.parametrize("number", NO_SPACE)
@pytest.mark.parametrize("operation", ["create", "write", "truncate", "sync", "sync_directory", "commit"])
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_checkpoint_without_space_is_retried_and_appends_are_refused(
    operation: str, number: int, is_sealed: bool
) -> None:
    it = await faulty_store()
    ledger_id = await filled(it)
    other = await it.store.create_ledger()
    if is_sealed:
        await it.store.seal(ledger_id)
    it.disk.plan = fails(number, operation)
    running = asyncio.ensure_future(it.store._checkpointer.run())
    await it.until(lambda: it.store.stats().checkpoint_retries >= 2 or running.done())
    if not running.done():  # not every operation is part of this checkpoint
        with pytest.raises(StorageFull):
            it.listener.append(it.store, other, 0, [b"refused"])
        it.listener.open_runs = 0
        assert await it.acknowledge(b"2") is None
        await check_readable(it, ledger_id)
    it.disk.plan = None
    assert await running
    await it.has_space()
    await it.append(other, 0, b"goes on")
    assert it.fatal == []
    again = await it.again(Random(1))
    assert await read_all(again.store, ledger_id) == PAYLOADS
    assert await read_all(again.store, other) == [b"goes on"]
    await again.store.close()


async def check_readable(it: FaultyStore, ledger_id: int) -> None:
    assert (await it.store.read(ledger_id, 0, 100, 1 << 20)).payloads == PAYLOADS


async def test_rest_of_interrupted_segment_write_is_overwritten() -> None:
    it = await faulty_store()
    ledger_id = await filled(it)
    cuts = iter((0, 1, 31, 32, 33, 1000))

    def plan(operation: str, name: str) -> None:
        if operation == "write" and name.endswith(".ledger") and (cut := next(cuts, None)) is not None:
            raise PartialWrite(errno.ENOSPC, cut)

    it.disk.plan = plan
    assert await it.store._checkpointer.run()
    await check(it, ledger_id)
    again = await it.again(Random(2))
    await check(again, ledger_id)
    await again.store.close()


async def test_crash_in_checkpoint_over_several_journal_files_loses_nothing() -> None:
    """Of what the segment holds behind its extent the replay of each file brings a part."""
    it = await faulty_store()
    ledger_id = await it.store.create_ledger()
    payloads = [b"%d" % number * 5000 for number in range(60)]
    for number, payload in enumerate(payloads):
        await it.append(ledger_id, number, payload)
    it.disk.plan = fails(errno.EIO, "commit")
    assert not await it.store._checkpointer.run()
    again = await it.again(Random(4))
    assert await read_all(again.store, ledger_id) == payloads
    await again.store.close()


async def test_read_error_of_segment_after_crash_loses_nothing() -> None:
    it = await faulty_store()
    ledger_id = await filled(it)
    it.disk.plan = fails(errno.EIO, "commit")
    assert not await it.store._checkpointer.run()
    survivor = FaultyStore(it.disk.after_kill())
    await it.store.close()
    survivor.disk.plan = fails(errno.EIO, "read", suffix=".ledger")
    with pytest.raises(StoreError, match="Input/output error"):
        await survivor.open()
    again = await FaultyStore(survivor.disk.after_kill()).open()
    await check(again, ledger_id)
    await again.store.close()


@pytest.mark.parametrize("operation", ["write", "sync", "commit"])
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_io_error_in_checkpoint_is_fatal_and_next_start_has_all(operation: str, is_sealed: bool) -> None:
    it = await faulty_store()
    ledger_id = await filled(it)
    if is_sealed:
        await it.store.seal(ledger_id)
    it.disk.plan = fails(errno.EIO, operation)
    assert not await it.store._checkpointer.run()
    assert it.has_failed.is_set()
    it.disk.plan = None
    it.listener.append(it.store, ledger_id, len(PAYLOADS), [b"too late"])
    await turns()
    assert all(error is not None for _, error in it.listener.calls[1:])
    again = await it.again(Random(3))
    await check(again, ledger_id)
    await again.store.close()


@pytest.mark.parametrize("operation", ["write", "sync", "commit"])
async def test_slow_checkpoint_blocks_neither_appends_nor_acknowledgements(operation: str) -> None:
    it = await faulty_store()
    ledger_id = await filled(it)
    other = await it.store.create_ledger()
    blocked_reason = it.disk.plan = BlockedReason(operation, suffix=".db" if operation == "commit" else ".ledger")
    running = asyncio.ensure_future(it.store._checkpointer.run())
    await blocked_reason.reached()
    await it.append(other, 0, b"meanwhile")
    assert await it.acknowledge(b"2") is None
    blocked_reason.open()
    assert await running
    assert await read_all(it.store, ledger_id) == PAYLOADS
    assert await read_all(it.store, other) == [b"meanwhile"]
    await it.store.close()


@pytest.mark.parametrize("operation", ["write", "commit"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("is_first", [False, True])
async def test_ledger_can_grow_and_be_deleted_during_checkpoint(operation: str, which: int, is_first: bool) -> None:
    """The first one is being written, the other not yet."""
    it = await faulty_store()
    ledger_ids = [await it.store.create_ledger() for _ in range(2)]
    payloads = [b"before", b"in it"] if not is_first else [b"in it"]
    for number, payload in enumerate(payloads):
        for ledger_id in ledger_ids:
            await it.append(ledger_id, number, payload)
        if number < len(payloads) - 1:
            assert await it.store._checkpointer.run()
    blocked_reason = it.disk.plan = BlockedReason(operation, suffix=".db" if operation == "commit" else ".ledger")
    running = asyncio.ensure_future(it.store._checkpointer.run())
    await blocked_reason.reached()
    payloads.append(b"behind it")
    for ledger_id in ledger_ids:
        await it.append(ledger_id, len(payloads) - 1, payloads[-1])
    await it.store.delete_ledger(ledger_ids.pop(which))
    blocked_reason.open()
    assert await running
    again = await it.again(Random(0))
    assert await again.store.list_ledgers() == ledger_ids
    assert await read_all(again.store, ledger_ids[0]) == payloads
    await again.store.close()


@pytest.mark.parametrize("seed", range(4))
async def test_commit_after_failed_sync_survives_power_loss(seed: int) -> None:
    """The next process reads frames of the table's log that the device never got, and puts its own behind them."""
    it = await faulty_store()
    ledger_id = await filled(it)
    it.disk.plan = fails(errno.EIO, "sync", suffix=".db-wal")
    assert not await it.store._checkpointer.run()
    again = await it.again()
    other = await again.store.create_ledger()
    await again.append(other, 0, b"a" * 3000)
    assert await again.store._checkpointer.run()
    assert await again.acknowledge(b"2") is None
    last = await again.again(Random(seed))
    assert await read_all(last.store, ledger_id) == PAYLOADS
    assert await read_all(last.store, other) == [b"a" * 3000]
    assert await last.store.load("c") == (None, [b"1", b"2"])
    await last.store.close()


@pytest.mark.parametrize("number", NO_SPACE)
async def test_no_space_at_table_sync_is_fatal_and_loses_nothing(number: int) -> None:
    """SQLite does not say why a sync has failed."""
    it = await faulty_store()
    ledger_id = await filled(it)
    it.disk.plan = fails(number, "sync", suffix=".db-wal")
    assert not await it.store._checkpointer.run()
    assert it.has_failed.is_set()
    again = await it.again(Random(7))
    await check(again, ledger_id)
    await again.store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_failed_file_system_sync_loses_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had to bring to the device, no later sync brings: all of it is written again."""
    monkeypatch.setattr(checkpoint, "MAX_SINGLE_SYNCS", 0)
    it = await faulty_store()
    ledger_ids = [await filled(it), await it.store.create_ledger()]
    await it.append(ledger_ids[1], 0, *PAYLOADS)
    it.disk.plan = fails(number, "sync_all")
    running = asyncio.ensure_future(it.store._checkpointer.run())
    await it.until(lambda: it.store.stats().checkpoint_retries >= 2 or running.done())
    it.disk.plan = None
    assert await running == (number == errno.ENOSPC)
    assert it.has_failed.is_set() == (number == errno.EIO)
    again = await it.again(Random(6))
    for ledger_id in ledger_ids:
        assert await read_all(again.store, ledger_id) == PAYLOADS
    await again.store.close()


@pytest.mark.parametrize("seed", range(8))
async def test_file_system_sync_that_hides_an_error_is_reported(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_SINGLE_SYNCS", 0)
    monkeypatch.setattr(FaultDisk, "sync_all", lambda disk: None)
    it = await faulty_store()
    ledger_id = await filled(it)
    assert await it.store._checkpointer.run()
    try:
        again = await it.again(Random(seed))
    except StoreError:
        return  # the start is refused
    try:
        found = await read_all(again.store, ledger_id)
    except StoreError:
        pass  # the error is reported to the reader
    else:
        assert found == PAYLOADS
    finally:
        await again.store.close()


async def test_damaged_table_is_detected_when_cursor_is_loaded() -> None:
    it = await faulty_store()
    await filled(it)
    assert await it.store._checkpointer.run()
    it.store._table._connection.execute("UPDATE deltas SET data = x'32'")
    with pytest.raises(StoreError, match=r"checkpoint\.db is damaged: the state of cursor c has a wrong checksum"):
        await it.store.load("c")
    await it.store.close()
