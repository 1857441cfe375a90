"""Opening a data directory: replay what the journal holds beyond the last checkpoint, and start with fresh journal files.

What must always hold: start-up can be cut off anywhere and run again; it makes everything that it found durable (segment
files and table) before the journal files that held it may be used again; it changes nothing when it finds damage it cannot
explain, except that the undamaged journal before it has been moved to its place.

One journal file is replayed at a time, and committed, so that memory is bounded by one file whatever the backlog.
Blocking: runs in a thread, before any other thread of the store exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from pybroker.storage.checkpoint import CheckpointJob, LedgerWork, run_checkpoint
from pybroker.storage.checkpoint_table import CheckpointTable, CursorChange, Facts, TableChange
from pybroker.storage.cursor_shelf import CursorShelf
from pybroker.storage.disk import Disk
from pybroker.storage.journal_files import JournalFiles, parse_journal_file_name
from pybroker.storage.layout.fields import LayoutError
from pybroker.storage.layout.segment import LedgerExtent, SegmentIndex
from pybroker.storage.recovery import (
    BatchOrder,
    DamagedJournal,
    Replay,
    flatten_message_counts,
    flatten_payloads,
    scan_file,
)
from pybroker.storage.stats import StoreStats

# Ledger ids are reserved in blocks: one commit for each block, and no id is ever given twice.
LEDGER_ID_BLOCK = 1000


@dataclass(frozen=True, slots=True)
class StoreDirectories:
    """Where things lie below the store's directory."""

    ledgers: Path
    journal: Path
    table: Path

    @classmethod
    def below(cls, directory: Path) -> StoreDirectories:
        return cls(directory / "ledgers", directory / "journal", directory / "checkpoint.db")


@dataclass(slots=True)
class OpenedStore:
    """What the store starts from."""

    table: CheckpointTable
    facts: Facts
    extents: dict[int, LedgerExtent]  # of ledgers that earlier runs left open
    files: JournalFiles
    reserved_ledger_ids: range


def open_store(
    disk: Disk, directories: StoreDirectories, stats: StoreStats, *, journal_file_bytes: int, is_synced: bool
) -> OpenedStore:
    """Open or make the directory. Raises DamagedJournal, other StoreErrors, and OSError."""
    start_s = perf_counter()
    disk.make_directory(directories.ledgers)
    disk.make_directory(directories.journal)
    table = CheckpointTable(disk, directories.table)
    try:
        facts = table.load_facts()
        extents = table.load_extents()
        names = disk.list_names(directories.journal)
        generations = {generation: name for name in names if (generation := parse_journal_file_name(name)) is not None}
        if not facts.is_clean:
            extents = _replay(disk, directories, table, facts, extents, generations, stats, is_synced=is_synced)
        facts.first_generation = max(facts.first_generation, *(number + 1 for number in generations), 1)
        reserved = range(facts.ledger_id, facts.ledger_id + LEDGER_ID_BLOCK)
        facts.ledger_id = reserved.stop
        facts.is_clean = 0
        # From this commit on the old journal files mean nothing, and may be used again.
        table.commit(TableChange(asdict(facts)))
        files = JournalFiles(disk, directories.journal, journal_file_bytes, facts.first_generation)
        files.adopt(names)
    except BaseException:
        table.close()
        raise
    stats.recovery_s = perf_counter() - start_s
    return OpenedStore(table, facts, extents, files, reserved)


def _replay(
    disk: Disk,
    directories: StoreDirectories,
    table: CheckpointTable,
    facts: Facts,
    extents: Mapping[int, LedgerExtent],
    generations: Mapping[int, str],
    stats: StoreStats,
    *,
    is_synced: bool,
) -> dict[int, LedgerExtent]:
    """Move everything of the journal to its place; returns the extents afterwards."""
    order = BatchOrder(facts.sequence, is_synced=is_synced)
    replay = Replay(extents)
    for generation in sorted(generations):
        if generation < facts.first_generation:
            continue
        name = generations[generation]
        data = _read_file(disk, directories.journal / name)
        try:
            scanned = scan_file(data, generation)
        except LayoutError as error:
            raise DamagedJournal(f"{name} is damaged at offset 0: {error}") from error
        live = order.live_batches(name, scanned)
        view = memoryview(data)
        for batch in live:
            replay.apply(name, view, batch)
        if live:
            facts.sequence = order.next_sequence
            _store(disk, directories, table, facts, replay)
    stats.recovered_entries = replay.entry_count
    stats.recovered_bytes = replay.size_bytes
    stats.dropped_entries_of_deleted_ledgers = replay.dropped_entry_count
    return replay.extents


def _store(disk: Disk, directories: StoreDirectories, table: CheckpointTable, facts: Facts, replay: Replay) -> None:
    facts.ledger_id = max(facts.ledger_id, replay.max_ledger_id + 1)
    facts.cursor_number = max(facts.cursor_number, replay.max_cursor_number + 1)
    shelf = CursorShelf(facts.cursor_number)
    for record in replay.cursor_records:
        shelf.apply(record)
    replay.cursor_records.clear()
    change = TableChange(asdict(facts), extents=dict(replay.extents))
    change.cursors = [
        CursorChange(
            cursor.cursor_id, cursor.deleted_number > 0, cursor.snapshot, cursor.deltas, facts.cursor_number - 1
        )
        for cursor in shelf.dirty()
    ]
    works = [
        # The index of what was there before is made when the ledger is sealed; only its blocks are written here.
        LedgerWork(
            ledger_id,
            ledger.extent,
            SegmentIndex(),
            flatten_payloads(ledger),
            flatten_message_counts(ledger),
            is_sealed=False,
        )
        for ledger_id, ledger in replay.take_ledgers().items()
    ]
    job = CheckpointJob(change, works, sorted(replay.deleted_ledgers))
    replay.deleted_ledgers.clear()
    for ledger_id, moved in run_checkpoint(disk, directories.ledgers, table, job).items():
        replay.extents[ledger_id] = moved.extent


def _read_file(disk: Disk, path: Path) -> bytes:
    with disk.open_for_read(path) as file:
        return file.read_at(file.size(), 0)
