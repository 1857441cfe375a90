"""`journal.end`, which is never ahead of the device, distinguishes a torn tail of the journal from lost batches with
receipts.
"""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import WRITERS, FaultyStore, fails, faulty_store
from tests.unit.local_store.stores import DIRECTORY, SMALL, FilesAtOnce, Listener, read_all

from pybroker.disk.disk import Disk
from pybroker.local_store.journal.journal_end import JOURNAL_END_NAME, JournalEndFile, read_journal_end
from pybroker.local_store.journal.journal_recovery import BatchOrder, DamagedJournal, scan_file
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.storage_format.journal_end_layout import (
    JOURNAL_END_LAYOUT,
    SLOT_BYTES,
    JournalEnd,
    decode_journal_end,
)
from pybroker.storage_format.journal_layout import FILE_HEADER_BYTES
from pybroker.storage_format.marker_layout import MARKER_BYTES

JOURNAL = DIRECTORY / "journal"
PAYLOADS = [b"%d" % number * 300 for number in range(200)]


def slots(*ends: JournalEnd) -> bytearray:
    data = bytearray(MARKER_BYTES)
    for number, end in enumerate(ends):
        slot = JOURNAL_END_LAYOUT.encode(*end)
        data[number * SLOT_BYTES : number * SLOT_BYTES + len(slot)] = slot
    return data


def test_newer_of_two_sound_slots_counts() -> None:
    older, newer = JournalEnd(7, 3, 5120, 2), JournalEnd(8, 3, 5632, 2)
    assert decode_journal_end(slots(older, newer)) == decode_journal_end(slots(newer, older)) == newer  # type: ignore[arg-type]
    for offset in range(len(JOURNAL_END_LAYOUT.encode(*newer))):
        data = slots(newer, older)
        data[offset] ^= 1 << offset % 8
        assert decode_journal_end(data) == older  # type: ignore[arg-type]
    assert decode_journal_end(bytes(MARKER_BYTES)) is None
    assert decode_journal_end(b"") is None


def test_notes_are_readable_before_sync_and_durable_after_it(tmp_path: Path) -> None:
    for disk, directory in ((Disk(), tmp_path), (FaultDisk(), Path("/journal"))):
        end = JournalEndFile(disk, directory, JournalEnd(5, 0, 0, 1))
        assert read_journal_end(disk, directory) == (5, 0, 0, 1)
        end.noted(6, 2, 4608)
        assert read_journal_end(disk, directory) == (6, 2, 4608, 1)
        end.committed(2, 4)
        assert read_journal_end(disk, directory) == (6, 2, 4608, 2)
        end.committed(3, 9)
        assert read_journal_end(disk, directory) == (9, 0, 0, 3)
        end.close()
        if isinstance(disk, FaultDisk):
            end.noted(10, 2, 5120)
            for seed in range(10):
                found = read_journal_end(disk.after_power_loss(Random(seed)), directory)
                assert found is not None
                assert found.next_sequence in (9, 10)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENODEV])
async def test_store_works_where_note_file_cannot_be_created(number: int) -> None:
    it = FaultyStore(FaultDisk())
    it.disk.plan = fails(number, "open", suffix=JOURNAL_END_NAME)
    await it.open()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"a")
    assert await it.store._checkpointer.run()
    again = await it.again()
    assert await read_all(again.store, ledger_id) == [b"a"]
    await again.store.close()


@pytest.mark.parametrize("writes_direct", WRITERS)
@pytest.mark.parametrize("kept_bytes", [100, 1000, 30_000])
async def test_torn_tail_is_cut_and_logged_with_file_and_offset(
    writes_direct: bool, kept_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"a" * 1000)
    it.disk.cut_power_after(0, kept_bytes, of="write_durably")
    it.listener.append(it.store, ledger_id, 1, [b"b" * 40_000])
    await it.has_failed.wait()
    again = await it.again(Random(1))
    assert await read_all(again.store, ledger_id) == [b"a" * 1000]
    (record,) = (record for record in caplog.records if record.message == "journal.tail_cut")
    fields = record.fields  # type: ignore[attr-defined]
    name, tail_bytes = fields["file"], 36 + 28 + 8 + 40_000
    assert (fields["bytes"], again.store.stats().journal_cut_bytes) == (tail_bytes, tail_bytes)
    assert scan_file(it.disk.after_kill().read_whole(name), 1).end_offset == fields["offset"]
    await again.store.close()


class Killed:
    """A directory after `kill -9`, with several journal files, and its expected content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger_id = 0
        self.earlier: dict[str, bytes] = {}  # journal files before the last batches

    async def make(self, root: Path) -> None:
        store = await opened(root / "running")
        self.ledger_id = await store.create_ledger()
        listener = Listener()
        for number, payload in enumerate(PAYLOADS):
            listener.append(store, self.ledger_id, number, [payload])
            if number % 20 == 0:
                await listener.settled()
            if number == len(PAYLOADS) - 5:
                await listener.settled()
                self.earlier = {path.name: path.read_bytes() for path in (root / "running" / "journal").glob("0*")}
        await listener.settled()
        shutil.copytree(root / "running", self.directory)
        await store.close()

    def last_file(self) -> tuple[Path, int, int]:
        """Return the journal file with the last batch, and the start and end of that batch."""
        for path in sorted((self.directory / "journal").glob("0*.journal"), reverse=True):
            scanned = scan_file(path.read_bytes(), int(path.stem))
            if scanned.batches:
                return path, scanned.batches[-1].body_offset - 36, scanned.end_offset
        raise AssertionError("no batches")

    async def is_whole(self) -> bool:
        store = await opened(self.directory)
        try:
            return await read_all(store, self.ledger_id) == PAYLOADS
        finally:
            await store.close()


def never(error: BaseException) -> None:
    raise AssertionError from error


async def opened(directory: Path) -> LocalStore:
    return await LocalStore.open(directory, SMALL, never, StoreEnvironment(threads=FilesAtOnce()))


@pytest.fixture
async def killed(tmp_path: Path) -> Killed:
    made = Killed(tmp_path / "killed")
    await made.make(tmp_path)
    return made


def flip_last(made: Killed) -> str:
    path, offset, _ = made.last_file()
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 1
    path.write_bytes(bytes(data))
    damaged = rf"{path.name} is damaged at offset {offset}: batch \d+ is missing or incomplete"
    return rf"{damaged}; batches up to \d+ were durable in {path.name}"


def truncate(made: Killed) -> str:
    path, offset, _ = made.last_file()
    path.write_bytes(path.read_bytes()[: offset + 50])
    return rf"{path.name} is damaged at offset {offset}: batch \d+ is missing or incomplete"


def truncate_to_header(made: Killed) -> str:
    path, _, end_offset = made.last_file()
    path.write_bytes(path.read_bytes()[:FILE_HEADER_BYTES])
    return rf"batches up to \d+ were durable in {path.name}, which ended at offset {end_offset}"


def remove(made: Killed) -> str:
    path, _, _ = made.last_file()
    path.unlink()
    return rf"{path.name} is missing; batches up to \d+ were durable"


def put_older_back(made: Killed) -> str:
    path, _, _ = made.last_file()
    path.write_bytes(made.earlier[path.name])
    return rf"{path.name} is damaged at offset \d+: batch \d+ is missing or incomplete"


Damage = Callable[[Killed], str]


@pytest.mark.parametrize("damage", [flip_last, truncate, truncate_to_header, remove, put_older_back])
async def test_journal_that_ends_before_durable_end_is_refused(damage: Damage, killed: Killed) -> None:
    text = damage(killed)
    for _ in range(2):
        with pytest.raises(DamagedJournal, match=text):
            await opened(killed.directory)


async def test_tail_is_cut_and_logged_without_note(killed: Killed, caplog: pytest.LogCaptureFixture) -> None:
    flip_last(killed)
    for directory in (killed.directory / "journal", killed.directory):
        (directory / JOURNAL_END_NAME).unlink()
    assert not await killed.is_whole()
    assert "journal.tail_cut" in caplog.messages


async def test_damaged_note_is_ignored_and_logged(killed: Killed, caplog: pytest.LogCaptureFixture) -> None:
    (killed.directory / JOURNAL_END_NAME).write_bytes(bytes(MARKER_BYTES))
    assert await killed.is_whole()
    assert caplog.messages == []  # the other copy has the same content


async def test_two_damaged_notes_are_logged(killed: Killed, caplog: pytest.LogCaptureFixture) -> None:
    for directory in (killed.directory / "journal", killed.directory):
        (directory / JOURNAL_END_NAME).write_bytes(bytes(MARKER_BYTES))
    assert await killed.is_whole()
    assert caplog.messages == ["journal.end_file_damaged"]


async def test_sound_journal_is_reported_as_sound(killed: Killed, caplog: pytest.LogCaptureFixture) -> None:
    assert await killed.is_whole()
    assert await killed.is_whole()
    assert caplog.messages == []


def test_journal_shorter_than_durable_end_is_damage_without_sync() -> None:
    for is_synced in (False, True):
        order = BatchOrder(5, is_synced=is_synced)
        order.check_end(None, {})
        order.check_end(JournalEnd(5, 1, 4096, 1), {})
        with pytest.raises(DamagedJournal, match="batch 5 is missing; batches up to 5 were durable"):
            order.check_end(JournalEnd(6, 0, 0, 1), {})
