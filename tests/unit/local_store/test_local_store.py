"""The local store on a fault disk: order, durability, refusal, checkpoint, recovery, one case at a time."""

import asyncio
import dataclasses
import errno
import threading
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.stores import PATIENCE_S, SMALL, Listener, Owner, has_space, open_store, read_all

from pybroker.errors import LedgerFenced, NoSuchLedger, StoreError
from pybroker.local_store.journal.journal_recovery import DamagedJournal
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.segments.segment_reader import DamagedSegment


def entries(count: int, size: int = 100, seed: int = 1) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(size) for _ in range(count)]


async def checkpoint(store: LocalStore) -> None:
    assert await store._checkpointer.run()


async def power_loss(disk: FaultDisk, store: LocalStore, seed: int = 0) -> FaultDisk:
    survivor = disk.after_power_loss(Random(seed))
    await store.close()
    return survivor


def no_space(*operations: str):  # type: ignore[no-untyped-def]
    def plan(operation: str, name: str) -> None:
        if operation in operations:
            raise OSError(errno.ENOSPC, "no space left")

    return plan


async def test_a_completion_comes_after_the_call_in_order_and_grouped_by_listener() -> None:
    store, _ = await open_store(FaultDisk())
    first, second = Listener(), Listener()
    one, two = await store.create_ledger(), await store.create_ledger()
    runs = [first.append(store, one, 0, [b"a"]), first.append(store, two, 0, [b"b", b"c"])]
    other = second.append(store, two, 2, [b"d"])
    runs.append(first.append(store, one, 1, [b"e"]))
    assert not first.calls
    await first.settled()
    await second.settled()
    assert [run for own, _ in first.calls for run in own] == runs
    assert [run for own, _ in second.calls for run in own] == [other]
    assert first.errors == second.errors == []
    await store.close()


async def test_what_waits_for_the_writer_becomes_one_batch_and_one_call() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id = Listener(), await store.create_ledger()
    blocked_reason, entered = threading.Event(), threading.Event()

    def plan(operation: str, name: str) -> None:
        if operation == "write_durably":
            entered.set()
            assert blocked_reason.wait(PATIENCE_S)

    disk.plan = plan
    listener.append(store, ledger_id, 0, [b"first"])
    assert await asyncio.to_thread(entered.wait, PATIENCE_S)
    runs = [listener.append(store, ledger_id, number, [b"x"]) for number in range(1, 30)]
    blocked_reason.set()
    await listener.settled()
    assert [len(own) for own, _ in listener.calls] == [1, 29]
    assert listener.calls[1][0] == runs
    await store.close()


async def test_a_batch_is_bounded() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id = Listener(), await store.create_ledger()
    for number in range(30):
        listener.append(store, ledger_id, number, [bytes(1000)])
    await listener.settled()
    assert store.stats().journal_batches >= 4  # 8 KiB each
    await store.close()


async def test_entries_are_read_from_the_buffer_and_after_a_checkpoint_from_the_segment() -> None:
    store, _ = await open_store(FaultDisk())
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(50)
    listener.append(store, ledger_id, 0, payloads)
    await listener.settled()
    buffered = store.read_buffered(ledger_id, 10, 5, 1 << 20)
    assert buffered is not None
    assert buffered.payloads == payloads[10:15]
    assert (await store.read(ledger_id, 10, 5, 250)).payloads == payloads[10:13]
    await checkpoint(store)
    assert store.read_buffered(ledger_id, 10, 5, 1 << 20) is None
    assert (await store.read(ledger_id, 10, 5, 1 << 20)).payloads == payloads[10:15]
    assert store.stats().segment_reads == 1
    with pytest.raises(StoreError, match="does not exist"):
        await store.read(ledger_id, 50, 1, 1)
    await store.close()


async def test_a_ledger_goes_on_across_checkpoints() -> None:
    store, _ = await open_store(FaultDisk())
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(40)
    for start in range(0, 40, 10):
        listener.append(store, ledger_id, start, payloads[start : start + 10])
        await listener.settled()
        await checkpoint(store)
    assert (await store.seal(ledger_id)).size_bytes == 4000
    assert await read_all(store, ledger_id, max_bytes=700) == payloads
    await checkpoint(store)
    assert store.stats().live_ledgers == 0
    assert await read_all(store, ledger_id) == payloads
    await store.close()


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_what_was_completed_survives_a_power_loss(seed: int, is_checkpointed: bool) -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(200, 1000)
    for start in range(0, 200, 20):
        listener.append(store, ledger_id, start, payloads[start : start + 20])
        await listener.settled()
        if is_checkpointed and start == 100:
            await checkpoint(store)
    disk = await power_loss(disk, store, seed)
    again, _ = await open_store(disk)
    assert await again.list_ledgers() == [ledger_id]
    assert await read_all(again, ledger_id) == payloads
    await again.close()
    third, _ = await open_store(disk)
    assert await read_all(third, ledger_id) == payloads
    await third.close()


async def test_journal_files_are_used_again_and_old_bytes_are_not_taken_for_new_ones() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(600, 1000)
    for start in range(0, 600, 10):
        listener.append(store, ledger_id, start, payloads[start : start + 10])
        await listener.settled()
        if start % 50 == 0:
            await checkpoint(store)
    assert len(disk.list_names(store._directory.parent / "journal")) <= 6
    again, _ = await open_store(await power_loss(disk, store))
    assert await read_all(again, ledger_id) == payloads
    await again.close()


async def test_ledger_ids_rise_across_restarts() -> None:
    disk, last = FaultDisk(), 0
    for seed in range(4):
        store, _ = await open_store(disk)
        for _ in range(600):
            ledger_id = await store.create_ledger()
            assert ledger_id > last
            last = ledger_id
        disk = await power_loss(disk, store, seed)


async def test_a_sealed_ledger_takes_no_appends_and_seal_waits_for_those_under_way() -> None:
    store, _ = await open_store(FaultDisk())
    listener, ledger_id = Listener(), await store.create_ledger()
    listener.append(store, ledger_id, 0, [b"a", b"b"])
    summary = await store.seal(ledger_id)
    assert not listener.open_runs
    assert (summary.entry_count, summary.message_count, summary.size_bytes) == (2, 2, 2)
    listener.append(store, ledger_id, 2, [b"c"])
    await listener.settled()
    assert [type(error) for error in listener.errors] == [LedgerFenced]
    assert await store.seal(ledger_id) == summary
    await store.close()


async def test_a_deleted_ledger_is_gone_also_after_a_power_loss() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener = Listener()
    buffered, stored, kept = [await store.create_ledger() for _ in range(3)]
    for ledger_id in (stored, kept):
        listener.append(store, ledger_id, 0, [b"a"])
    await listener.settled()
    await checkpoint(store)
    listener.append(store, buffered, 0, [b"b", b"c"])
    await listener.settled()
    await store.delete_ledger(buffered)
    await store.delete_ledger(stored)
    await store.delete_ledger(999_999)
    assert await store.list_ledgers() == [kept]
    with pytest.raises(NoSuchLedger):
        await store.read(stored, 0, 1, 1)
    again, _ = await open_store(await power_loss(disk, store))
    assert await again.list_ledgers() == [kept]
    assert again.stats().dropped_entries_of_deleted_ledgers == 2
    with pytest.raises(NoSuchLedger):
        await again.recover(buffered)
    await again.close()


async def test_no_space_refuses_the_batch_and_fences_its_ledgers_only() -> None:
    disk = FaultDisk()
    store, fatal = await open_store(disk)
    listener = Listener()
    full, other = await store.create_ledger(), await store.create_ledger()
    listener.append(store, full, 0, [b"a"])
    await listener.settled()
    disk.plan = no_space("write_durably")
    listener.append(store, full, 1, [b"b"])
    listener.append(store, full, 2, [b"c"])
    await listener.settled()
    disk.plan = None
    await has_space(store)
    listener.append(store, full, 3, [b"d"])
    listener.append(store, other, 0, [b"e"])
    await listener.settled()
    assert [(run.first_entry_id, error is None) for runs, error in listener.calls for run in runs] == [
        (0, True), (1, False), (2, False), (3, False), (0, True)
    ]  # fmt: skip
    assert isinstance(listener.errors[-1], LedgerFenced)
    assert (await store.seal(full)).entry_count == 1
    assert fatal == []
    again, _ = await open_store(await power_loss(disk, store))
    assert await read_all(again, full) == [b"a"]
    assert await read_all(again, other) == [b"e"]
    await again.close()


async def test_an_io_error_of_the_journal_is_fatal_and_completes_nothing() -> None:
    disk = FaultDisk()
    store, fatal = await open_store(disk)
    listener, ledger_id = Listener(), await store.create_ledger()
    told = asyncio.Event()
    store._on_fatal = lambda error: (fatal.append(error), told.set())  # type: ignore[assignment, func-returns-value]

    def plan(operation: str, name: str) -> None:
        if operation == "write_durably":
            raise OSError(errno.EIO, "input/output error")

    disk.plan = plan
    listener.append(store, ledger_id, 0, [b"a"])
    await told.wait()
    assert [error.errno for error in fatal if isinstance(error, OSError)] == [errno.EIO]
    assert not listener.calls
    disk.plan = None
    with pytest.raises(StoreError):
        await store.flush()
    await store.close()
    assert len(fatal) == 1


async def test_a_checkpoint_without_space_is_tried_again_and_the_journal_is_kept() -> None:
    disk = FaultDisk()
    store, fatal = await open_store(disk)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(30)
    listener.append(store, ledger_id, 0, payloads)
    await listener.settled()
    third, loop = asyncio.Event(), asyncio.get_running_loop()
    attempts = iter(range(3))

    def plan(operation: str, name: str) -> None:
        if operation == "write":
            if next(attempts, None) is None:
                loop.call_soon_threadsafe(third.set)
            raise OSError(errno.ENOSPC, "no space left")

    disk.plan = plan
    running = asyncio.ensure_future(store._checkpointer.run())
    await third.wait()
    assert await read_all(store, ledger_id) == payloads
    disk.plan = None
    assert await running
    assert fatal == []
    assert await read_all(store, ledger_id) == payloads
    await store.close()


async def test_close_without_space_keeps_everything_in_the_journal() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(30)
    listener.append(store, ledger_id, 0, payloads)
    await listener.settled()
    disk.plan = no_space("write")
    await store.close()
    disk.plan = None
    again, _ = await open_store(disk.after_power_loss(Random(1)))
    assert await read_all(again, ledger_id) == payloads
    await again.close()


async def test_appends_beyond_the_journal_limit_wait_for_the_checkpoint_and_keep_their_order() -> None:
    options = dataclasses.replace(SMALL, checkpoint_max_bytes=4000, journal_max_bytes=10_000)
    store, _ = await open_store(FaultDisk(), options)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(300)
    for number, payload in enumerate(payloads):
        listener.append(store, ledger_id, number, [payload])
    assert store.stats().held_runs > 100
    await store.flush()
    assert not listener.open_runs
    assert [run.first_entry_id for runs, _ in listener.calls for run in runs] == list(range(300))
    assert store.stats().checkpoints >= 2
    assert await read_all(store, ledger_id) == payloads
    await store.close()


async def test_a_ledger_with_little_in_memory_does_not_wait_because_another_one_has_filled_it() -> None:
    options = dataclasses.replace(SMALL, checkpoint_max_bytes=8_000, journal_max_bytes=16_000)
    store, _ = await open_store(FaultDisk(), options)
    flood, steady = Listener(), Listener()
    flooded, steadily = await store.create_ledger(), await store.create_ledger()
    for number, payload in enumerate(entries(300)):
        flood.append(store, flooded, number, [payload])
    held = store.stats().held_runs
    assert held > 100
    for number in range(3):
        steady.append(store, steadily, number, [b"x" * 100])
    assert store.stats().held_runs == held
    # A ledger with less than its share may use the reserved part, and no more.
    for number in range(3, 60):
        steady.append(store, steadily, number, [b"x" * 100])
    assert store.stats().held_runs > held
    assert store.stats().journal_live_bytes <= 16_000 + 200
    await store.flush()
    for listener, count in ((flood, 300), (steady, 60)):
        assert [run.first_entry_id for runs, _ in listener.calls for run in runs] == list(range(count))
        assert listener.errors == []
    await store.close()


async def test_a_run_does_not_stand_behind_all_that_another_ledger_has_for_the_journal() -> None:
    options = dataclasses.replace(SMALL, max_batch_bytes=2_000)
    store, _ = await open_store(FaultDisk(), options)
    listener, steady = Listener(), Listener()
    flooded, steadily = await store.create_ledger(), await store.create_ledger()
    for number, payload in enumerate(entries(300)):
        listener.append(store, flooded, number, [payload])
    assert store.stats().held_runs == 280
    steady.append(store, steadily, 0, [b"x"])
    assert store.stats().held_runs == 280
    await steady.settled()
    assert sum(len(runs) for runs, _ in listener.calls) <= 40
    await listener.settled()
    completed = [run for runs, _ in listener.calls for run in runs]
    assert [run.first_entry_id for run in completed] == list(range(300))
    assert (store.stats().held_runs, store._queued_bytes) == (0, 0)
    # Nothing of the reserved part is left for later ledgers.
    for number, payload in enumerate(entries(300), 300):
        listener.append(store, flooded, number, [payload])
        await listener.settled()
    assert store.stats().held_runs == 0
    await store.close()


async def test_close_completes_what_was_appended_and_starts_clean() -> None:
    disk = FaultDisk()
    options = dataclasses.replace(SMALL, checkpoint_max_bytes=4000, journal_max_bytes=10_000)
    store, _ = await open_store(disk, options)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(300)
    for number, payload in enumerate(payloads):
        listener.append(store, ledger_id, number, [payload])
    await store.close()
    await store.close()
    assert not listener.open_runs
    assert listener.errors == []
    again, _ = await open_store(disk.after_power_loss(Random(1)))
    assert again.stats().recovered_entries == 0
    assert await read_all(again, ledger_id) == payloads
    await again.close()


async def test_damage_inside_the_journal_stops_the_start() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id = Listener(), await store.create_ledger()
    for number in range(3):
        listener.append(store, ledger_id, number, [b"x" * 100])
        await listener.settled()
    name = min(disk.list_names(store._directory.parent / "journal"))
    disk = await power_loss(disk, store)
    disk.flip_bit(name, 4096 + 512 + 50)
    with pytest.raises(DamagedJournal, match=f"{name} is damaged at offset 4608"):
        await open_store(disk)


async def test_a_damaged_segment_costs_its_entries_and_nothing_else() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, bad, good = Listener(), await store.create_ledger(), await store.create_ledger()
    for ledger_id in (bad, good):
        listener.append(store, ledger_id, 0, [b"entry"])
        await store.seal(ledger_id)
    await store.close()
    disk.flip_bit(f"{bad:020d}.ledger", 40)
    again, _ = await open_store(disk)
    assert (await again.recover(bad)).entry_count == 1
    with pytest.raises(DamagedSegment):
        await again.read(bad, 0, 1, 100)
    assert await read_all(again, good) == [b"entry"]
    await again.close()


async def test_deltas_survive_a_power_loss_before_and_after_a_checkpoint() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    done: list[StoreError | None] = []
    store.append_delta("c", b"1", done.append)
    store.append_delta("c", b"2", None)
    assert done == []
    await store.flush()
    await checkpoint(store)
    store.append_delta("c", b"3", done.append)
    await store.flush()
    assert done == [None, None]
    assert await store.load("c") == (None, [b"1", b"2", b"3"])
    again, _ = await open_store(await power_loss(disk, store))
    assert await again.load("c") == (None, [b"1", b"2", b"3"])
    assert await again.load("unknown") == (None, [])
    await again.close()


async def test_a_checkpoint_takes_snapshots_of_attached_cursors_that_changed() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    owner = Owner()
    store.attach("c", owner)
    for number in range(5):
        owner.state += b"%d" % number
        store.append_delta("c", b"%d" % number, None)
    await checkpoint(store)
    assert await store.load("c") == (b"01234", [])
    owner.state += b"5"
    store.append_delta("c", b"5", None)
    await store.flush()
    again, _ = await open_store(await power_loss(disk, store))
    assert await again.load("c") == (b"01234", [b"5"])
    await again.close()


async def test_deltas_during_a_checkpoint_are_neither_lost_nor_applied_twice() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    owner = Owner()
    store.attach("c", owner)

    def change(delta: bytes) -> None:
        owner.state += delta
        store.append_delta("c", delta, None)

    change(b"1")
    running = asyncio.ensure_future(store._checkpointer.run())
    await asyncio.sleep(0)
    change(b"2")  # behind the mark, before the snapshot
    await running
    change(b"3")
    await store.flush()
    snapshot, deltas = await store.load("c")
    assert b"".join([snapshot or b"", *deltas]) == b"123"
    again, _ = await open_store(await power_loss(disk, store))
    snapshot, deltas = await again.load("c")
    assert b"".join([snapshot or b"", *deltas]) == b"123"
    await again.close()


async def test_detach_writes_a_durable_snapshot_and_forgets_the_owner() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    owner = Owner(b"whole state")
    store.attach("c", owner)
    store.append_delta("c", b"1", None)
    await store.detach("c")
    await store.detach("unknown")
    owner.state = b"changed later"
    again, _ = await open_store(await power_loss(disk, store))
    assert await again.load("c") == (b"whole state", [])
    await again.close()


async def test_a_broken_owner_does_not_keep_the_journal_of_all() -> None:
    class BrokenOwner(Owner):
        def snapshot(self) -> bytes:
            raise ValueError("broken")

    store, _ = await open_store(FaultDisk())
    store.attach("c", BrokenOwner())
    store.append_delta("c", b"1", None)
    await checkpoint(store)
    assert await store.load("c") == (None, [b"1"])
    await store.close()


async def test_a_deleted_cursor_is_forgotten_wherever_it_was() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    store.append_delta("stored", b"1", None)
    await checkpoint(store)
    store.append_delta("journalled", b"1", None)
    await store.delete("stored")
    await store.delete("journalled")
    await store.delete("unknown")
    assert await store.load("stored") == (None, [])
    again, _ = await open_store(await power_loss(disk, store))
    assert await again.load("stored") == (None, [])
    assert await again.load("journalled") == (None, [])
    await again.close()


async def test_a_delta_that_is_refused_is_not_remembered() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    done: list[StoreError | None] = []
    disk.plan = no_space("write_durably")
    store.append_delta("c", b"1", done.append)
    with pytest.raises(StoreError):
        await store.flush()
    disk.plan = None
    assert len(done) == 1
    assert isinstance(done[0], StoreError)
    assert await store.load("c") == (None, [])
    await store.close()


async def test_one_broken_listener_does_not_keep_completions_from_others() -> None:
    class BrokenListener(Listener):
        def append_completed(self, runs, error) -> None:  # type: ignore[no-untyped-def]
            super().append_completed(runs, error)
            raise ValueError("broken")

    store, _ = await open_store(FaultDisk())
    broken, good, ledger_id = BrokenListener(), Listener(), await store.create_ledger()
    broken.append(store, ledger_id, 0, [b"a"])
    good.append(store, ledger_id, 1, [b"b"])
    await good.settled()
    assert good.errors == []
    await store.close()


async def test_a_batch_larger_than_a_journal_file_is_stored() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id, payload = Listener(), await store.create_ledger(), bytes(200_000)
    for number in range(3):
        listener.append(store, ledger_id, number, [payload])
    await listener.settled()
    again, _ = await open_store(await power_loss(disk, store))
    assert await read_all(again, ledger_id) == [payload] * 3
    await again.close()


async def test_recovery_can_be_cut_off_anywhere_and_run_again() -> None:
    disk = FaultDisk()
    store, _ = await open_store(disk)
    listener, ledger_id, payloads = Listener(), await store.create_ledger(), entries(300, 300)
    for start in range(0, 300, 20):
        listener.append(store, ledger_id, start, payloads[start : start + 20])
        await listener.settled()
        if start == 100:
            await checkpoint(store)
    store.append_delta("c", b"1", None)
    await store.flush()
    crashed = disk.after_kill()
    await store.close()
    for cut in range(0, 40, 3):
        disk = crashed.after_power_loss(Random(cut))
        disk.cut_power_after(cut)
        try:
            opened, _ = await open_store(disk)
            await opened.close()
        except StoreError:
            pass
        again, _ = await open_store(disk.after_power_loss(Random(cut)))
        assert await read_all(again, ledger_id) == payloads, cut
        assert await again.load("c") == (None, [b"1"])
        await again.close()
