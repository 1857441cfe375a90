"""A start refuses a store with a missing, truncated or outdated journal or ledger, and changes nothing."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import fails, faulty_store
from tests.unit.local_store.stores import DIRECTORY, SMALL, Listener, read_all

from pybroker.errors import StoreError
from pybroker.ledgers.known_data import KnownData, MissingData, StoreMark, decode_mark, encode_mark
from pybroker.local_store.journal.journal_end import JOURNAL_END_NAME
from pybroker.local_store.journal.journal_recovery import DamagedJournal
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions

JOURNAL = DIRECTORY / "journal"
LEDGERS = DIRECTORY / "ledgers"
TABLE = DIRECTORY / "checkpoint.db"
ADVICE = "pybroker ledger repair.*--apply --accept-loss"


def files_of(disk: FaultDisk, directory: Path) -> dict[Path, bytes]:
    return {path: bytes(content.cached) for path, content in disk._names.items() if directory in path.parents}


def put_back(disk: FaultDisk, directory: Path, files: Mapping[Path, bytes]) -> None:
    """Let `directory` contain exactly these files."""
    for path in files_of(disk, directory):
        disk.unlink(path)
    for path, data in files.items():
        disk.open_for_write(path).write_at((data,), 0, durable=True)


def change_table(disk: FaultDisk, statement: str, *values: object) -> None:
    connection = disk.open_database(TABLE)
    connection.execute(statement, values)
    connection.close()


async def opened(
    disk: FaultDisk, *, named: Mapping[int, int | None] | None = None, options: LocalStoreOptions = SMALL
) -> LocalStore:
    known = KnownData(StoreMark(), named or {})
    return await LocalStore.open(DIRECTORY, options, lambda _: None, StoreEnvironment(disk), known=known)


async def appended(store: LocalStore, *payloads: bytes, ledger_id: int | None = None, first: int = 0) -> int:
    ledger_id = await store.create_ledger() if ledger_id is None else ledger_id
    listener = Listener()
    listener.append(store, ledger_id, first, list(payloads))
    await listener.settled()
    assert not listener.errors
    return ledger_id


async def killed(*, is_checkpointed: bool = True, options: LocalStoreOptions = SMALL) -> tuple[FaultDisk, int]:
    """Return the disk of a store that was killed with one entry in a segment and one in the journal."""
    store = await opened(FaultDisk(), options=options)
    ledger_id = await appended(store, b"first")
    if is_checkpointed:
        assert await store._checkpointer.run()
    await appended(store, b"second", ledger_id=ledger_id, first=1)
    survivor = store._disk.after_kill()  # type: ignore[attr-defined]
    await store.close()
    assert isinstance(survivor, FaultDisk)
    return survivor, ledger_id


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("keeps_copy_of_end", [False, True])
async def test_journal_removed_after_a_kill_is_refused_until_it_is_put_back(
    is_checkpointed: bool, keeps_copy_of_end: bool
) -> None:
    disk, ledger_id = await killed(is_checkpointed=is_checkpointed)
    journal = files_of(disk, JOURNAL)
    put_back(disk, JOURNAL, {})
    if not keeps_copy_of_end:
        disk.unlink(DIRECTORY / JOURNAL_END_NAME)
    for _ in range(2):
        with pytest.raises(DamagedJournal, match=f"journal/ contains no file of the last run.*{ADVICE}"):
            await opened(disk)
    put_back(disk, JOURNAL, journal)
    store = await opened(disk)
    assert await read_all(store, ledger_id) == [b"first", b"second"]
    await store.close()


@pytest.mark.parametrize("known_by", ["copy of journal.end", "checkpoint.db", "metadata"])
async def test_older_journal_is_refused_until_the_right_one_is_put_back(known_by: str) -> None:
    store = await opened(FaultDisk())
    disk = store._disk
    assert isinstance(disk, FaultDisk)
    ledger_id = await appended(store, b"first")
    older = files_of(disk, JOURNAL)
    await appended(store, b"second", ledger_id=ledger_id, first=1)
    mark = StoreMark()
    if known_by == "checkpoint.db":
        store._ledger_ids._unused = iter(
            ()
        )  # the next ledger id needs a commit of the table, which records the journal's end
        await store.create_ledger()
    elif known_by == "metadata":
        mark = decode_mark(encode_mark(store.mark()))
    survivor = disk.after_kill()
    await store.close()
    newer = files_of(survivor, JOURNAL)
    put_back(survivor, JOURNAL, older)
    if known_by != "copy of journal.end":
        survivor.unlink(DIRECTORY / JOURNAL_END_NAME)
    known = KnownData(mark)
    around = StoreEnvironment(survivor)
    with pytest.raises(DamagedJournal, match=rf"batches up to \d+ were durable.*{ADVICE}"):
        await LocalStore.open(DIRECTORY, SMALL, lambda _: None, around, known=known)
    put_back(survivor, JOURNAL, newer)
    store = await LocalStore.open(DIRECTORY, SMALL, lambda _: None, around, known=known)
    assert await read_all(store, ledger_id) == [b"first", b"second"]
    await store.close()


async def test_journal_is_not_needed_after_a_clean_stop() -> None:
    store = await opened(FaultDisk())
    disk = store._disk
    assert isinstance(disk, FaultDisk)
    ledger_id = await appended(store, b"first")
    await store.close()
    put_back(disk, JOURNAL, {})
    store = await opened(disk)
    assert await read_all(store, ledger_id) == [b"first"]
    await store.close()


@pytest.mark.parametrize("is_new", [False, True])
async def test_start_cut_off_at_any_write_does_not_miss_a_journal_that_was_never_made(is_new: bool) -> None:
    disk = FaultDisk()
    if not is_new:
        await (await opened(disk)).close()
    for failing in range(100):
        trial = disk.after_kill()
        trial.plan = fails(errno.EIO, "write", "write_durably", "sync", "rename", "commit", after=failing)
        try:
            await opened(trial)
        except StoreError:
            is_done = False
        else:
            is_done = True
        again = await opened(trial.after_power_loss(Random(failing)))
        await again.close()
        if is_done:
            return
    raise AssertionError("a start has fewer steps")


@pytest.mark.parametrize("is_synced", [False, True])
async def test_missing_ledgers_directory_is_refused_after_a_clean_stop(is_synced: bool) -> None:
    options = replace(SMALL, sync_data=is_synced)
    store = await opened(FaultDisk(), options=options)
    disk = store._disk
    assert isinstance(disk, FaultDisk)
    ledger_id = await appended(store, b"first")
    await store.seal(ledger_id)
    await store.close()
    ledgers = files_of(disk, LEDGERS)
    put_back(disk, LEDGERS, {})
    for _ in range(2):
        with pytest.raises(
            MissingData, match=f"the directory ledgers/ is empty, although it contained 1 files.*{ADVICE}"
        ):
            await opened(disk, options=options)
    put_back(disk, LEDGERS, ledgers)
    store = await opened(disk, options=options)
    assert await read_all(store, ledger_id) == [b"first"]
    await store.close()


@pytest.mark.parametrize("is_cut", [False, True])
async def test_open_ledger_whose_file_does_not_reach_its_extent_is_refused(is_cut: bool) -> None:
    disk, ledger_id = await killed()
    path = segment_path(LEDGERS, ledger_id)
    data = disk.read_whole(path.name)
    if is_cut:
        disk.open_for_write(path).truncate(len(data) - 1)
    else:
        disk.unlink(path)
    what = rf"has {len(data) - 1} bytes of {len(data)}" if is_cut else "is missing"
    for _ in range(2):
        with pytest.raises(MissingData, match=rf"{path.name} {what} \(1 entries\).*{ADVICE}"):
            await opened(disk)
    disk.open_for_write(path).write_at((data,), 0, durable=True)
    store = await opened(disk)
    assert await read_all(store, ledger_id) == [b"first", b"second"]
    await store.close()


async def test_file_of_a_ledger_that_the_journal_deletes_is_not_missed() -> None:
    store = await opened(FaultDisk())
    ledger_id = await appended(store, b"first")
    assert await store._checkpointer.run()
    await store.delete_ledger(ledger_id)
    disk = store._disk.after_kill()  # type: ignore[attr-defined]
    await store.close()
    assert not disk.exists(segment_path(LEDGERS, ledger_id))
    store = await opened(disk)
    assert ledger_id not in await store.list_ledgers()
    await store.close()


@pytest.mark.parametrize("is_file_there", [True, False])
@pytest.mark.parametrize("is_older", [True, False])
async def test_ledger_of_outdated_metadata_that_the_journal_deletes_is_not_missed(
    is_file_there: bool, is_older: bool
) -> None:
    """The file may still be there: the store removes it after the record of the deletion is durable."""
    store = await opened(FaultDisk())
    ledger_id = await appended(store, b"first")
    await store.seal(ledger_id)
    if is_older:  # than an open ledger of the last checkpoint
        await appended(store, b"of another ledger")
    assert await store._checkpointer.run()
    path = segment_path(LEDGERS, ledger_id)
    data = store._disk.read_whole(path.name)  # type: ignore[attr-defined]
    await store.delete_ledger(ledger_id)
    disk = store._disk.after_kill()  # type: ignore[attr-defined]
    await store.close()
    assert not disk.exists(path)
    if is_file_there:
        disk.open_for_write(path).write_at((data,), 0, durable=True)
    store = await opened(disk, named={ledger_id: 1})
    assert ledger_id not in await store.list_ledgers()
    assert not disk.exists(path)
    await store.close()


async def test_missing_ledger_is_refused_although_the_journal_deletes_another_one() -> None:
    store = await opened(FaultDisk())
    gone, deleted = [await appended(store, b"first") for _ in range(2)]
    for ledger_id in (gone, deleted):
        await store.seal(ledger_id)
    await appended(store, b"of an open ledger")
    assert await store._checkpointer.run()
    await store.delete_ledger(deleted)
    disk = store._disk.after_kill()  # type: ignore[attr-defined]
    await store.close()
    disk.unlink(segment_path(LEDGERS, gone))
    before = files_of(disk, DIRECTORY)
    with pytest.raises(MissingData, match=rf"ledgers/: {gone:020d}\.ledger is missing \(1 entries\)\. "):
        await opened(disk, named={gone: 1, deleted: 1})
    assert files_of(disk, LEDGERS) == {path: data for path, data in before.items() if LEDGERS in path.parents}


async def sealed(*payloads: bytes) -> tuple[FaultDisk, int]:
    """Return the disk of a store that stopped cleanly with a sealed ledger, and the ledger."""
    store = await opened(FaultDisk())
    ledger_id = await appended(store, *payloads)
    await appended(store, b"of another ledger")
    await store.seal(ledger_id)
    await store.close()
    assert isinstance(store._disk, FaultDisk)
    return store._disk, ledger_id


@pytest.mark.parametrize("count", [3, None])
async def test_sealed_ledger_whose_file_is_missing_or_cut_anywhere_is_refused(count: int | None) -> None:
    disk, ledger_id = await sealed(b"one" * 50, b"two" * 50, b"three" * 50)
    path = segment_path(LEDGERS, ledger_id)
    data = disk.read_whole(path.name)
    index_offset = data.index(b"PSIX")
    for size in range(0, len(data), 7):
        disk.unlink(path)
        if size:
            disk.open_for_write(path).write_at((data[:size],), 0, durable=True)
        if size >= index_offset + 44 or (count and size >= index_offset):
            await (await opened(disk, named={ledger_id: count})).close()  # no entry is missing
            continue
        with pytest.raises(MissingData, match=rf"{path.name} (is missing|is truncated: it has [0-3] entries)"):
            await opened(disk, named={ledger_id: count})
    disk.open_for_write(path).write_at((data,), 0, durable=True)
    store = await opened(disk, named={ledger_id: count})
    assert len(await read_all(store, ledger_id)) == 3
    await store.close()


async def test_damage_that_hides_no_entry_of_a_sealed_ledger_is_not_refused() -> None:
    disk, ledger_id = await sealed(b"one" * 50, b"two" * 50)
    path = segment_path(LEDGERS, ledger_id)
    data = disk.read_whole(path.name)
    for offset in range(0, len(data), 5):
        changed = bytearray(data)
        changed[offset] ^= 1
        disk.open_for_write(path).write_at((bytes(changed),), 0, durable=True)
        await (await opened(disk, named={ledger_id: 2})).close()


async def test_closed_ledger_with_fewer_entries_than_metadata_say_is_refused_after_replay() -> None:
    disk, ledger_id = await killed()
    store = await opened(disk, named={ledger_id: 2})
    await store.close()
    disk, ledger_id = await killed()
    with pytest.raises(MissingData, match=r"has 2 entries, but 3 according to metadata\.db"):
        await opened(disk, named={ledger_id: 3})
    with pytest.raises(MissingData, match=rf"{ledger_id + 1:020d}\.ledger is missing"):
        await opened(disk, named={ledger_id + 1: None})


async def test_without_a_synced_journal_missing_ledgers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A power cut may remove them from such a journal, while metadata name them."""
    disk, ledger_id = await killed(options=replace(SMALL, sync_data=False))
    for is_synced in (False, True):  # the journal of the previous run counts
        caplog.clear()
        options = replace(SMALL, sync_data=is_synced)
        store = await opened(disk, named={ledger_id: 3, ledger_id + 1: 7}, options=options)
        assert "ledgers.entries_missing" in caplog.messages
        await store.close()


async def test_store_of_an_earlier_version_without_marks_is_opened() -> None:
    disk, ledger_id = await killed()
    for name in ("journal_end", "is_journal_made", "first_own_ledger_id", "segment_files"):
        change_table(disk, "DELETE FROM facts WHERE name = ?", name)
    disk.unlink(DIRECTORY / JOURNAL_END_NAME)
    store = await opened(disk, named={ledger_id: None})
    assert await read_all(store, ledger_id) == [b"first", b"second"]
    await store.close()


async def test_new_store_beside_metadata_without_topics_goes_on_counting() -> None:
    """So that no mark contradicts it later, and no ledger id is used twice."""
    disk = FaultDisk()
    known = KnownData(StoreMark(sequence=70, commit=5, ledger=3001))
    store = await LocalStore.open(DIRECTORY, SMALL, lambda _: None, StoreEnvironment(disk), known=known)
    assert await store.create_ledger() == 3001
    assert store.mark().sequence > 70
    survivor = disk.after_kill()
    await store.close()
    again = await LocalStore.open(DIRECTORY, SMALL, lambda _: None, StoreEnvironment(survivor), known=known)
    await again.close()


def test_mark_that_cannot_be_read_says_nothing() -> None:
    assert decode_mark(None) == decode_mark(b"{") == decode_mark(b'{"version":9,"sequence":7}') == StoreMark()
    assert decode_mark(encode_mark(StoreMark(sequence=7))).sequence == 7


async def test_checkpoint_notes_batches_that_were_durable_behind_its_mark() -> None:
    it = await faulty_store()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"a")
    assert await it.store._checkpointer.run()
    assert it.store._table.load_facts("").journal_end == it.store.mark().sequence
    await it.store.close()
