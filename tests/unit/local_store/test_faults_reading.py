"""Faults during reads, during a start, and in single system calls; docs/contributing/faults.md names these tests."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from tests.unit.local_store.faults import NO_SPACE, BlockedReason, FaultyStore, fails, faulty_store
from tests.unit.local_store.stores import read_all

from pybroker.disk import device_sync
from pybroker.disk import disk as disk_module
from pybroker.disk.direct_io import ALIGNMENT, DirectWriter, open_direct
from pybroker.disk.disk import Disk
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.local_store.journal.journal_recovery import DamagedJournal
from pybroker.local_store.segments.segment_writer import segment_path


async def stored(it: FaultyStore, *payloads: bytes) -> int:
    """A ledger whose entries are in its segment file and nowhere else."""
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, *payloads)
    await it.store.seal(ledger_id)
    assert await it.store._checkpointer.run()
    return ledger_id


async def test_io_error_fails_one_read_only() -> None:
    it = await faulty_store()
    bad, good = await stored(it, b"bad"), await stored(it, b"good")
    it.disk.plan = fails(errno.EIO, "read", suffix=f"{bad}.ledger")
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be read"):
            await it.store.read(bad, 0, 1, 100)
    assert (await it.store.read(good, 0, 1, 100)).payloads == [b"good"]
    it.disk.plan = None
    assert (await it.store.read(bad, 0, 1, 100)).payloads == [b"bad"]
    assert it.fatal == []
    await it.store.close()


async def test_io_error_fails_one_cursor_load_only() -> None:
    it = await faulty_store()
    assert await it.acknowledge(b"1") is None
    assert await it.store._checkpointer.run()
    it.disk.plan = fails(errno.EIO, "read", suffix=".db")
    with pytest.raises(StoreError, match="cannot be read"):
        await it.store.load("c")
    it.disk.plan = None
    assert await it.store.load("c") == (None, [b"1"])
    await it.store.close()


async def test_flipped_bit_costs_its_entry_only() -> None:
    it = await faulty_store()
    payloads = [b"%d" % number * 100 for number in range(5)]
    ledger_id = await stored(it, *payloads)
    name = segment_path(Path(), ledger_id).name
    it.disk.flip_bit(name, it.disk.read_whole(name).index(payloads[2]))
    with pytest.raises(DamagedEntries) as failure:
        await it.store.read(ledger_id, 2, 1, 1000)
    assert (failure.value.first_entry_id, failure.value.last_entry_id) == (2, 2)
    assert (await it.store.read(ledger_id, 3, 1, 1000)).payloads == [payloads[3]]
    await it.store.close()


async def test_lost_segment_file_is_reported_and_others_are_read() -> None:
    it = await faulty_store()
    lost, good = await stored(it, b"lost"), await stored(it, b"good")
    again = await it.again(Random(1))
    again.disk.unlink(segment_path(again.store._directory, lost))
    with pytest.raises((NoSuchLedger, DamagedEntries)):
        await again.store.read(lost, 0, 1, 100)
    assert await read_all(again.store, good) == [b"good"]
    await again.store.close()


async def test_slow_read_blocks_no_other_read() -> None:
    it = await faulty_store()
    slow, quick = await stored(it, b"slow"), await stored(it, b"quick")
    blocked_reason = it.disk.plan = BlockedReason("read", suffix=f"{slow}.ledger")
    reading = asyncio.ensure_future(it.store.read(slow, 0, 1, 100))
    await blocked_reason.reached()
    assert (await it.store.read(quick, 0, 1, 100)).payloads == [b"quick"]
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"meanwhile")
    assert await it.acknowledge(b"1") is None
    blocked_reason.open()
    assert (await reading).payloads == [b"slow"]
    await it.store.close()


# Start


async def crashed() -> tuple[FaultyStore, int]:
    """A store that lost power with entries and a delta in the journal only."""
    it = await faulty_store()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"a" * 1000, b"b" * 1000)
    assert await it.acknowledge(b"1") is None
    it.disk.after_power_loss(Random(1))
    await it.store.close()
    return it, ledger_id


async def check_start(it: FaultyStore, ledger_id: int) -> None:
    await it.open()
    assert await read_all(it.store, ledger_id) == [b"a" * 1000, b"b" * 1000]
    assert await it.store.load("c") == (None, [b"1"])
    await it.store.close()


@pytest.mark.parametrize("number", [errno.EIO, *NO_SPACE])
@pytest.mark.parametrize(
    "operation", ["open", "read", "create", "write", "sync", "rename", "sync_directory", "commit", "make_directory"]
)
async def test_failed_start_reports_reason_and_next_start_finds_all(operation: str, number: int) -> None:
    it, ledger_id = await crashed()
    survivor = FaultyStore(it.disk.after_power_loss(Random(2)))
    survivor.disk.plan = fails(number, operation)
    told = ""
    try:
        await survivor.open()
    except StoreError as error:
        told = str(error)
    else:  # a start does not need the failed operation
        await survivor.store.close()
    assert not told or any(text in told for text in (os.strerror(number), "disk I/O error", "database or disk is full"))
    survivor.disk.plan = None
    await check_start(FaultyStore(survivor.disk.after_kill()), ledger_id)


@pytest.mark.parametrize("steps", range(0, 90, 3))
async def test_power_loss_in_start_loses_nothing(steps: int) -> None:
    it, ledger_id = await crashed()
    survivor = FaultyStore(it.disk.after_power_loss(Random(3)))
    survivor.disk.cut_power_after(steps)
    try:
        await survivor.open()
    except StoreError:
        pass
    else:
        await survivor.store.close()
    await check_start(FaultyStore(survivor.disk.after_power_loss(Random(steps))), ledger_id)


async def test_damaged_journal_file_header_stops_start() -> None:
    it, _ = await crashed()
    disk = it.disk.after_power_loss(Random(4))
    (name,) = (name for name in disk.list_names(it.store._directory.parent / "journal") if "000001." in name)
    disk.flip_bit(name, 17)
    with pytest.raises(DamagedJournal, match=f"{name} is damaged at offset 0"):
        await FaultyStore(disk).open()


async def test_damaged_table_stops_start() -> None:
    it = await faulty_store()
    await it.store.close()
    it.disk.after_kill()
    name = "checkpoint.db"
    it.disk.flip_bit(name, it.disk.read_whole(name).index(b"cursor_number") + len(b"cursor_number"))
    with pytest.raises(StoreError, match=r"checkpoint.db"):
        await FaultyStore(it.disk.after_kill()).open()


async def test_slow_start_does_not_block_the_loop() -> None:
    it, ledger_id = await crashed()
    survivor = FaultyStore(it.disk.after_power_loss(Random(5)))
    blocked_reason = survivor.disk.plan = BlockedReason("read", suffix=".journal")
    opening = asyncio.ensure_future(survivor.open())
    await blocked_reason.reached()
    await asyncio.sleep(0)
    assert not opening.done()
    blocked_reason.open()
    await opening
    assert await read_all(survivor.store, ledger_id) == [b"a" * 1000, b"b" * 1000]
    await survivor.store.close()


# Faults of single system calls


async def test_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev

    def short(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int, flags: int) -> int:
        return pwritev(descriptor, (memoryview(b"".join(pieces))[:7],), offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    with Disk().open_for_write(tmp_path / "f") as file:
        file.write_at((b"0123456789", b"abcdefghij"), 3, durable=True)
        assert file.read_at(100, 0) == b"\0\0\0" + b"0123456789abcdefghij"


@pytest.mark.parametrize("is_ring_shared", [True, False])
async def test_short_direct_write_is_continued(tmp_path: Path, is_ring_shared: bool) -> None:
    try:
        writer = DirectWriter()
    except OSError as error:
        pytest.skip(f"this system has no asynchronous direct IO: {error}")
    path = tmp_path / "f"
    path.write_bytes(b"." * 8 * ALIGNMENT)
    file = open_direct(path)
    if file is None:
        pytest.skip("this file system has no direct IO")
    if is_ring_shared and writer._ring is None:
        pytest.skip("the kernel does not support asynchronous IO with a shared ring of completed requests (io_setup)")
    take = writer._completed if not is_ring_shared or writer._ring is None else writer._ring.take
    is_short = True

    def cut() -> int | None:
        nonlocal is_short
        result = take()
        if is_short and result is not None:
            is_short = False
            return ALIGNMENT
        return result

    writer._ring = None
    writer._completed = cut  # type: ignore[method-assign]
    data = os.urandom(3 * ALIGNMENT)
    writer.submit(file, (data,), ALIGNMENT)
    while not writer.finish():
        os.sched_yield()
    assert not is_short
    assert path.read_bytes() == b"." * ALIGNMENT + data + b"." * 4 * ALIGNMENT
    writer.close()
    file.close()


@pytest.mark.parametrize("has_durable_write", [False, True])
async def test_failed_durable_write_or_sync_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_durable_write: bool
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if has_durable_write:
        monkeypatch.setattr(os, "pwritev", fail)
    else:
        monkeypatch.setattr(disk_module, "_DURABLE_WRITE", None)
        monkeypatch.setattr(device_sync, "_FULL_SYNC", None)
        monkeypatch.setattr(os, "fdatasync", fail)
    with Disk().open_for_write(tmp_path / "f") as file, pytest.raises(OSError, match="Input/output error"):
        file.write_at((b"x",), 0, durable=True)
