"""Faults while the journal writes entries and acknowledgements, with both writers; see docs/contributing/faults.md."""

import dataclasses
import errno
from random import Random

import pytest
from tests.support.fault_disk import PartialWrite
from tests.unit.local_store.faults import NO_SPACE, WRITERS, BlockedReason, FaultyStore, fails, faulty_store, turns
from tests.unit.local_store.stores import Listener, Owner, read_all

from pybroker.errors import LedgerFenced, StorageFull, StoreError
from pybroker.local_store.journal.journal_recovery import DamagedJournal
from pybroker.local_store.store_options import LocalStoreOptions

both_writers = pytest.mark.parametrize("writes_direct", WRITERS, ids=["thread", "direct"])
BATCH_BYTES = 512


@both_writers
@pytest.mark.parametrize("kept_bytes", [0, 1, 35, 36, 37, 100, 300, 450])
async def test_append_torn_at_any_byte_is_cut_and_nothing_before_it(writes_direct: bool, kept_bytes: int) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"kept")
    it.disk.cut_power_after(0, kept_bytes, of="write_durably")
    it.listener.append(it.store, ledger_id, 1, [b"x" * 400])
    await it.has_failed.wait()
    assert len(it.listener.calls) == 1
    again = await it.again(Random(1))
    assert await read_all(again.store, ledger_id) == [b"kept"]
    await again.store.close()


@both_writers
@pytest.mark.parametrize("seed", range(5))
async def test_completed_appends_survive_loss_of_unsynced_bytes(writes_direct: bool, seed: int) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    for number in range(20):
        await it.append(ledger_id, number, b"%d" % number * 400)
        assert await it.acknowledge(b"%d;" % number) is None
    again = await it.again(Random(seed))
    assert await read_all(again.store, ledger_id) == [b"%d" % number * 400 for number in range(20)]
    assert await again.store.load("c") == (None, [b"%d;" % number for number in range(20)])
    await again.store.close()


@both_writers
@pytest.mark.parametrize("number", NO_SPACE)
async def test_batch_without_space_is_refused_and_later_batches_succeed(writes_direct: bool, number: int) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    full, other = await it.store.create_ledger(), await it.store.create_ledger()
    await it.append(full, 0, b"kept")
    it.disk.plan = fails(number, "write", "write_durably")
    await it.append(full, 1, b"refused")
    assert [type(error) for error in it.listener.errors] == [StorageFull]
    assert "no space" in str(it.store.refusal())
    with pytest.raises(StorageFull, match="no space left on the broker's disk"):
        it.listener.append(it.store, other, 0, [b"refused at once"])
    it.listener.open_runs = 0
    assert (await it.store.read(full, 0, 1, 100)).payloads == [b"kept"]
    it.disk.plan = None
    await it.has_space()
    await it.append(other, 0, b"goes on")
    await it.append(full, 1, b"fenced")
    assert [type(error) for error in it.listener.errors] == [StorageFull, LedgerFenced]
    assert it.fatal == []
    again = await it.again(Random(2))
    assert await read_all(again.store, full) == [b"kept"]
    assert await read_all(again.store, other) == [b"goes on"]
    await again.store.close()


@both_writers
async def test_refusal_covers_next_ledger_of_same_appender(writes_direct: bool) -> None:
    """A producer's messages stay in order: none becomes durable behind one that was refused before its sender knew."""
    it = await faulty_store(writes_direct=writes_direct)
    left, entered, unconcerned, last = [await it.store.create_ledger() for _ in range(4)]
    other = Listener()
    slow = BlockedReason("write_durably")
    is_full = True

    def plan(operation: str, name: str) -> None:
        nonlocal is_full
        slow(operation, name)
        if operation == "write_durably" and is_full:
            is_full = False
            raise OSError(errno.ENOSPC, "no space")

    it.disk.plan = plan
    it.listener.append(it.store, left, 0, [b"refused"])
    await slow.reached()
    it.listener.append(it.store, entered, 0, [b"behind it"])
    other.append(it.store, unconcerned, 0, [b"kept"])
    slow.open()
    await it.listener.settled()
    await other.settled()
    await it.has_space()
    await it.append(entered, 1, b"would leave a gap")
    await it.append(last, 0, b"goes on")
    assert [type(error) for error in it.listener.errors] == [StorageFull, LedgerFenced, LedgerFenced]
    assert other.errors == []
    again = await it.again(Random(5))
    assert await read_all(again.store, left) == []
    assert await read_all(again.store, entered) == []
    assert await read_all(again.store, unconcerned) == [b"kept"]
    assert await read_all(again.store, last) == [b"goes on"]
    await again.store.close()


@both_writers
async def test_acks_of_refused_batch_are_stored_in_reserve(writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    is_reserve_there = True

    def plan(operation: str, name: str) -> None:
        nonlocal is_reserve_there
        if operation == "unlink" and name == "space.reserve":
            is_reserve_there = False
        if is_reserve_there and operation == "write_durably":
            raise OSError(errno.ENOSPC, "no space")

    it.disk.plan = plan
    it.listener.append(it.store, ledger_id, 0, [b"refused"])
    assert await it.acknowledge(b"kept") is None
    assert [type(error) for error in it.listener.errors] == [StorageFull]
    again = await it.again(Random(3))
    assert await read_all(again.store, ledger_id) == []
    assert await again.store.load("c") == (None, [b"kept"])
    await again.store.close()


@both_writers
async def test_ack_without_any_space_is_refused_and_forgotten(writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    it.disk.plan = fails(errno.ENOSPC, "write", "write_durably")
    assert isinstance(await it.acknowledge(b"refused"), StorageFull)
    it.disk.plan = None
    assert await it.acknowledge(b"kept") is None
    again = await it.again(Random(4))
    assert await again.store.load("c") == (None, [b"kept"])
    await again.store.close()


@both_writers
@pytest.mark.parametrize("kept_bytes", [0, 36, 300, BATCH_BYTES])
async def test_rest_of_refused_batch_does_not_come_back(writes_direct: bool, kept_bytes: int) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    is_first = True

    def plan(operation: str, name: str) -> None:
        nonlocal is_first
        if operation == "write_durably" and is_first:
            is_first = False
            raise PartialWrite(errno.ENOSPC, kept_bytes)

    it.disk.plan = plan
    await it.append(ledger_id, 0, b"refused")
    assert len(it.listener.errors) == 1
    again = await it.again()
    assert await read_all(again.store, ledger_id) == []
    await again.store.close()


@both_writers
@pytest.mark.parametrize("what", ["entries", "acknowledgement"])
async def test_io_error_of_journal_is_fatal_and_completes_nothing(writes_direct: bool, what: str) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    answers: list[StoreError | None] = []
    it.disk.plan = fails(errno.EIO, "write_durably")
    if what == "entries":
        it.listener.append(it.store, ledger_id, 0, [b"a"])
    else:
        it.store.append_delta("c", b"1", answers.append)
    await it.has_failed.wait()
    it.disk.plan = None
    it.listener.append(it.store, ledger_id, 1, [b"b"])
    await turns()
    assert [error.errno for error in it.fatal if isinstance(error, OSError)] == [errno.EIO]
    assert answers == []
    assert [type(error) for error in it.listener.errors] in ([], [LedgerFenced])
    with pytest.raises(StoreError):
        await it.store.flush()
    await it.store.close()
    assert len(it.fatal) == 1


@both_writers
async def test_damaged_journal_stops_start_unless_checkpoint_covers_it(writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"a" * 100)
    await it.append(ledger_id, 1, b"b" * 100)
    assert await it.store._checkpointer.run()
    await it.append(ledger_id, 2, b"c" * 100)
    await it.append(ledger_id, 3, b"d" * 100)
    (name,) = (name for name in it.disk.list_names(it.store._directory.parent / "journal") if "000001." in name)
    disk = it.disk.after_power_loss(Random(5))
    await it.store.close()
    covered, live = 4096 + 512 + 60, 4096 + 3 * 512 + 60
    disk.flip_bit(name, covered)
    again = await FaultyStore(disk).open()
    assert await read_all(again.store, ledger_id) == [letter * 100 for letter in (b"a", b"b", b"c", b"d")]
    await again.store.close()
    disk = it.disk.after_power_loss(Random(5))
    disk.flip_bit(name, live)
    with pytest.raises(DamagedJournal, match=f"{name} is damaged at offset {4096 + 3 * 512}"):
        await FaultyStore(disk).open()


@both_writers
async def test_slow_journal_delays_receipts_only(writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"before")
    blocked_reason = it.disk.plan = BlockedReason("write_durably")
    for number in range(1, 30):
        it.listener.append(it.store, ledger_id, number, [b"%d" % number])
    await blocked_reason.reached()
    await turns()
    assert len(it.listener.calls) == 1
    assert (await it.store.read(ledger_id, 0, 1, 100)).payloads == [b"before"]
    blocked_reason.open()
    await it.listener.settled()
    assert it.listener.errors == []
    await it.store.close()


@both_writers
async def test_each_operation_of_slow_disk_is_awaited(writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    it.disk.delay_s = 0.002
    ledger_id = await it.store.create_ledger()
    for number in range(5):
        await it.append(ledger_id, number, b"%d" % number)
    assert await it.store._checkpointer.run()
    assert await read_all(it.store, ledger_id) == [b"%d" % number for number in range(5)]
    await it.store.close()


@both_writers
@pytest.mark.parametrize("steps", range(9))
async def test_power_loss_during_journal_file_creation_loses_nothing(writes_direct: bool, steps: int) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, bytes(1000))
    await it.until(it.store._files.next_file().done)
    it.disk.cut_power_after(steps)
    completed = 1
    while not it.has_failed.is_set():
        it.listener.append(it.store, ledger_id, completed, [bytes(30_000)])  # two of them fill a file
        await it.until(lambda: it.has_failed.is_set() or not it.listener.open_runs)
        completed += not it.listener.open_runs
    again = await it.again(Random(steps))
    assert len(await read_all(again.store, ledger_id)) >= completed
    await again.store.close()


@both_writers
async def test_short_journal_file_takes_acks_when_space_is_low(writes_direct: bool) -> None:
    options = dataclasses.replace(LocalStoreOptions(), space_poll_s=0.001)
    it = await faulty_store(writes_direct=writes_direct, capacity_bytes=256 << 20, options=options)
    await it.until(it.store._files.next_file().done)
    it.store.attach("c", Owner())  # so that no checkpoint has to take what the deltas hold
    it.fill_disk(left_bytes=1 << 20)  # of which the table's log takes some
    await it.until(it.store.refusal)
    for number in range(15):  # more than the 4 and 8 MiB of the files that are ready
        assert await it.acknowledge(b"%d" % number + bytes(1 << 20)) is None
    await it.store.close()


@both_writers
@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
async def test_io_error_in_journal_file_creation_is_fatal(writes_direct: bool, operation: str) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.until(it.store._files.next_file().done)
    it.disk.plan = fails(errno.EIO, operation)
    number = 0
    while not it.has_failed.is_set():
        it.listener.append(it.store, ledger_id, number, [bytes(30_000)])
        await it.until(lambda: it.has_failed.is_set() or not it.listener.open_runs)
        number += 1
    assert it.listener.errors == []
    assert it.listener.open_runs
    it.disk.plan = None
    await it.store.close()


async def test_slow_journal_file_creation_does_not_block_the_loop() -> None:
    it = await faulty_store(writes_direct=True)
    ledger_id = await it.store.create_ledger()
    await it.until(it.store._files.next_file().done)
    blocked_reason = it.disk.plan = BlockedReason("create")
    for number in range(6):  # the two files that are ready hold four
        it.listener.append(it.store, ledger_id, number, [bytes(30_000)])
    await blocked_reason.reached()
    await it.until(lambda: it.listener.open_runs < 4)
    await turns()
    assert it.listener.open_runs
    blocked_reason.open()
    await it.listener.settled()
    assert it.listener.errors == []
    await it.store.close()
