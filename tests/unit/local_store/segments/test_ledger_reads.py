"""Reads of the local store: sums and searches by the index, reported damage, and open files."""

import asyncio
import dataclasses
import errno
import threading
from bisect import bisect_left
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.stores import DIRECTORY, PATIENCE_S, SMALL, Listener, read_all

from pybroker.disk.disk import Disk, DiskFile
from pybroker.disk.open_files import OpenFiles
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import AppendRun, LedgerStore, LedgerTotals
from pybroker.ledgers.memory_store import MemoryLedgerStore
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.local_store.store_environment import StoreEnvironment


def time_of(payload: bytes) -> int:
    """The first eight bytes of a test entry are its publish time."""
    return int.from_bytes(payload[:8], "big")


def entry(time_ms: int, size_bytes: int = 1000) -> bytes:
    return time_ms.to_bytes(8, "big").ljust(size_bytes, b"\5")


async def open_store(disk: Disk, **changes: Any) -> LocalStore:
    def never(error: BaseException) -> None:
        raise AssertionError from error

    return await LocalStore.open(
        DIRECTORY, dataclasses.replace(SMALL, **changes), never, StoreEnvironment(disk), time_of
    )


async def checkpoint(store: LocalStore) -> None:
    assert await store._checkpointer.run()


async def append(store: LedgerStore, ledger_id: int, first_id: int, payloads: list[bytes], counts: list[int]) -> None:
    listener = Listener()
    listener.open_runs = 1
    store.append(AppendRun(listener, ledger_id, first_id, payloads, counts, sum(map(len, payloads)), None))
    await listener.settled()


PAYLOADS = [entry(10 * number, 700 + number) for number in range(400)]
COUNTS = [1 + number % 3 for number in range(400)]


async def check_sums_and_times(store: LedgerStore, ledger_id: int) -> None:
    end = len(PAYLOADS)
    for entry_id in (0, 1, 63, 99, 100, 101, 250, 399, 400):
        expected = LedgerTotals(sum(COUNTS[:entry_id]), sum(map(len, PAYLOADS[:entry_id])))
        assert await store.index.totals_before(ledger_id, entry_id) == expected
    for entry_ids in (range(400), range(90, 210), range(0, 400, 7), [399], [0, 399]):
        expected_count = sum(COUNTS[entry_id] for entry_id in entry_ids)
        assert await store.index.message_count_of(ledger_id, BitMap(entry_ids)) == expected_count
    times = [time_of(payload) for payload in PAYLOADS]
    for wanted in (0, 1, 10, 995, 1000, 1001, 2505, 3990, 3991, 10**9):
        span = await store.index.publish_time_span(ledger_id, wanted)
        assert span is not None
        low, high = span
        first = bisect_left(times, wanted)
        assert 0 <= low <= first <= high <= end
        assert high - low < 200, "a span of points is 64 KiB"


async def filled(store: LocalStore) -> int:
    """Return a ledger with 100 entries in the segment, some in a checkpoint, and the last in the buffer."""
    ledger_id = await store.create_ledger()
    for start, end in pairwise((0, 100, 250, 400)):
        await append(store, ledger_id, start, PAYLOADS[start:end], COUNTS[start:end])
        if start == 0:
            await checkpoint(store)
        elif start == 100:
            store._ledgers[ledger_id].freeze()
    return ledger_id


async def test_sums_and_times_of_a_ledger_in_memory() -> None:
    store = MemoryLedgerStore(time_of)
    ledger_id = await store.create_ledger()
    await append(store, ledger_id, 0, PAYLOADS, COUNTS)
    await check_sums_and_times(store, ledger_id)
    assert await store.index.publish_time_span(ledger_id, 55) == (6, 6)


async def test_sums_and_times_wherever_the_entries_are() -> None:
    disk = FaultDisk()
    store = await open_store(disk)
    ledger_id = await filled(store)
    await check_sums_and_times(store, ledger_id)
    summary = await store.seal(ledger_id)
    assert (summary.message_count, summary.size_bytes) == (sum(COUNTS), sum(map(len, PAYLOADS)))
    again = await open_store(disk.after_kill())
    await check_sums_and_times(again, ledger_id)
    await again.seal(ledger_id)
    await checkpoint(again)
    assert again.stats().live_ledgers == 0
    await check_sums_and_times(again, ledger_id)
    await again.close()


async def test_the_index_of_a_ledger_that_a_crash_left_open_is_written_with_its_times() -> None:
    disk = FaultDisk()
    await filled(await open_store(disk))
    disk = disk.after_kill()
    store = await open_store(disk)
    (ledger_id,) = await store.list_ledgers()
    await store.recover(ledger_id)
    await store.close()
    third = await open_store(disk)
    place = await third._reads.sealed_place(ledger_id)
    first_ids = place.index.first_entry_ids.tolist()
    assert len(first_ids) > 3
    assert place.index.publish_times.tolist() == [10 * entry_id for entry_id in first_ids]
    await third.close()


async def test_an_unknown_ledger_has_no_sums() -> None:
    store = await open_store(FaultDisk())
    with pytest.raises(NoSuchLedger):
        await store.index.totals_before(77, 1)
    with pytest.raises(NoSuchLedger):
        await store.index.publish_time_span(77, 1)
    await store.close()


async def sealed(disk: FaultDisk, payloads: list[bytes]) -> int:
    """Return the sealed ledger of a closed store."""
    store = await open_store(disk)
    ledger_id = await store.create_ledger()
    await append(store, ledger_id, 0, payloads, [1] * len(payloads))
    await store.seal(ledger_id)
    await store.close()
    return ledger_id


async def test_a_reader_is_told_exactly_which_entry_is_damaged_and_it_counts_once() -> None:
    disk = FaultDisk()
    ledger_id = await sealed(disk, [bytes((number,)) * 50 for number in range(10)])
    name = segment_path(DIRECTORY, ledger_id).name
    disk.flip_bit(name, disk.read_whole(name).index(b"\4" * 50) + 7)
    store = await open_store(disk)
    assert len((await store.read(ledger_id, 0, 10, 1 << 20)).payloads) == 4
    for _ in range(3):
        with pytest.raises(DamagedEntries) as caught:
            await store.read(ledger_id, 4, 6, 1 << 20)
        assert (caught.value.ledger_id, caught.value.first_entry_id, caught.value.last_entry_id) == (ledger_id, 4, 4)
    assert len((await store.read(ledger_id, 5, 5, 1 << 20)).payloads) == 5
    assert store.stats().damaged_entries == 1
    assert store.figures()["damaged_entries"] == 1
    await store.close()


@pytest.mark.parametrize("place", ["header", "index", "trailer"])
async def test_a_sealed_ledger_stays_readable_whatever_part_around_its_entries_is_damaged(place: str) -> None:
    disk = FaultDisk()
    payloads = [entry(number) for number in range(300)]
    ledger_id = await sealed(disk, payloads)
    name = segment_path(DIRECTORY, ledger_id).name
    data = disk.read_whole(name)
    disk.flip_bit(name, {"header": 9, "index": data.rindex(b"PSIX") + 50, "trailer": len(data) - 1}[place])
    store = await open_store(disk)
    assert await read_all(store, ledger_id) == payloads
    assert store.stats().damaged_segments == 1
    assert store.stats().damaged_entries == 0
    await store.close()


async def test_entries_in_an_end_that_is_lost_are_damaged_as_far_as_the_reader_knows_of_them() -> None:
    disk = FaultDisk()
    payloads = [entry(number) for number in range(200)]
    ledger_id = await sealed(disk, payloads)
    name = segment_path(DIRECTORY, ledger_id).name
    with disk.open_for_write(segment_path(DIRECTORY / "ledgers", ledger_id)) as file:
        file.truncate(disk.read_whole(name).index(payloads[150]))
    store = await open_store(disk)
    found: list[bytes] = []
    while len(found) < 150:
        found += (await store.read(ledger_id, len(found), 200 - len(found), 1 << 20)).payloads
    assert found == payloads[:150]
    lost = BitMap()
    while len(lost) < 50:
        with pytest.raises(DamagedEntries) as caught:
            await store.read(ledger_id, 150 + len(lost), 50 - len(lost), 1 << 20)
        assert caught.value.first_entry_id == 150 + len(lost)
        lost.add_range(caught.value.first_entry_id, caught.value.last_entry_id + 1)
    assert lost == BitMap(range(150, 200))
    assert store.stats().damaged_entries == 50
    await store.close()


async def test_ledger_left_open_whose_file_is_removed_after_the_start_is_recovered_as_damage() -> None:
    disk = FaultDisk()
    store = await open_store(disk)
    ledger_id = await store.create_ledger()
    await append(store, ledger_id, 0, [b"one", b"two"], [1, 1])
    await checkpoint(store)
    disk = disk.after_kill()
    again = await open_store(disk)
    disk.unlink(segment_path(DIRECTORY / "ledgers", ledger_id))
    summary = await again.recover(ledger_id)
    assert (summary.entry_count, summary.size_bytes) == (2, 6)
    with pytest.raises(NoSuchLedger):
        await again.read(ledger_id, 0, 2, 100)
    await checkpoint(again)
    with pytest.raises(DamagedEntries) as caught:
        await again.read(ledger_id, 1, 1, 100)
    assert (caught.value.first_entry_id, caught.value.last_entry_id) == (0, 1)
    await again.close()


async def test_an_error_of_the_device_is_not_damage_and_a_later_read_succeeds() -> None:
    disk = FaultDisk()
    ledger_id = await sealed(disk, [b"entry"])
    store = await open_store(disk)

    def plan(operation: str, name: str) -> None:
        if operation == "read":
            raise OSError(errno.EIO, "input/output error")

    await store.read(ledger_id, 0, 1, 100)
    disk.plan = plan
    with pytest.raises(StoreError, match="input/output error") as caught:
        await store.read(ledger_id, 0, 1, 100)
    assert not isinstance(caught.value, DamagedEntries)
    disk.plan = None
    assert (await store.read(ledger_id, 0, 1, 100)).payloads == [b"entry"]
    await store.close()


async def test_many_cursors_at_different_places_read_at_once() -> None:
    disk = FaultDisk()
    payloads = [entry(number, 3000) for number in range(500)]
    ledger_ids = [await sealed(disk, payloads) for _ in range(3)]
    store = await open_store(disk, read_threads=4, max_open_segments=2)
    random = Random(1)
    places = [(random.choice(ledger_ids), random.randrange(480)) for _ in range(60)]
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(store.read(ledger_id, first, 20, 1 << 20)) for ledger_id, first in places]
    for read, (_, first) in zip(reads, places, strict=True):
        assert read.result().payloads == payloads[first : first + 20]
    await store.close()


# Open files


class CountingDisk(Disk):
    """Records which files are open."""

    def __init__(self) -> None:
        self.open_files: set[DiskFile] = set()
        self.opened = 0

    def open_for_read(self, path: Path) -> DiskFile:
        file = super().open_for_read(path)
        self.open_files.add(file)
        self.opened += 1
        close = file.close

        def forget() -> None:
            self.open_files.remove(file)
            close()

        file.close = forget  # type: ignore[method-assign]
        return file


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[tuple[OpenFiles, CountingDisk, list[Path]]]:
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_text(path.name)
    disk = CountingDisk()
    files = OpenFiles(disk, max_files=2)
    yield files, disk, paths
    files.close()
    assert not disk.open_files


def test_a_file_that_is_read_again_is_open_still(files: tuple[OpenFiles, CountingDisk, list[Path]]) -> None:
    opened, disk, paths = files
    for _ in range(5):
        with opened.reading(paths[0]) as file:
            assert file.read_at(10, 0) == b"0"
    assert disk.opened == 1


def test_the_number_of_open_files_is_bounded_and_those_in_use_stay(
    files: tuple[OpenFiles, CountingDisk, list[Path]],
) -> None:
    opened, disk, paths = files
    with opened.reading(paths[0]) as first, opened.reading(paths[1]), opened.reading(paths[2]):
        with opened.reading(paths[3]):
            assert len(disk.open_files) == 4
        assert first.read_at(10, 0) == b"0"
    assert len(disk.open_files) == 2


def test_a_dropped_file_is_closed_at_once_or_with_its_last_reader(
    files: tuple[OpenFiles, CountingDisk, list[Path]],
) -> None:
    opened, disk, paths = files
    with opened.reading(paths[0]):
        pass
    opened.drop(paths[0])
    assert not disk.open_files
    with opened.reading(paths[0]) as file:
        opened.drop(paths[0])
        assert file.read_at(10, 0) == b"0"
    assert not disk.open_files


def test_a_file_that_was_removed_while_it_was_opened_is_not_kept(
    files: tuple[OpenFiles, CountingDisk, list[Path]],
) -> None:
    opened, disk, paths = files
    is_open, may_go_on = threading.Event(), threading.Event()
    open_for_read = disk.open_for_read

    def slow_open(path: Path) -> DiskFile:
        file = open_for_read(path)
        is_open.set()
        assert may_go_on.wait(PATIENCE_S)
        return file

    disk.open_for_read = slow_open  # type: ignore[method-assign]

    def read() -> None:
        with opened.reading(paths[0]):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert is_open.wait(PATIENCE_S)
    opened.drop(paths[0])
    may_go_on.set()
    reader.join(PATIENCE_S)
    assert not disk.open_files


async def test_the_space_of_a_deleted_ledger_comes_back_at_once(tmp_path: Path) -> None:
    disk = CountingDisk()

    def never(error: BaseException) -> None:
        raise AssertionError from error

    store = await LocalStore.open(tmp_path, SMALL, never, StoreEnvironment(disk))
    kept, deleted = await store.create_ledger(), await store.create_ledger()
    for ledger_id in (kept, deleted):
        await append(store, ledger_id, 0, [bytes(1000)] * 100, [1] * 100)
        await store.seal(ledger_id)
    await checkpoint(store)
    for ledger_id in (kept, deleted):
        await store.read(ledger_id, 50, 10, 1 << 20)
    before = len(disk.open_files)
    await store.delete_ledger(deleted)
    assert [path.name for path in (tmp_path / "ledgers").iterdir()] == [segment_path(tmp_path, kept).name]
    assert len(disk.open_files) == before - 1
    with pytest.raises(NoSuchLedger):
        await store.read(deleted, 0, 1, 100)
    await store.close()
    assert not disk.open_files
