"""Opening of a data directory: replay the journal after the last checkpoint, and start with new journal files.

Invariants: the start can be interrupted at any moment and repeated. It makes all replayed data durable (segment files
and table) before the replayed journal files are reused. On unexplained damage it changes nothing beyond replaying the
intact journal before the damage.

The journal files are replayed and committed one by one, so at most two files are in memory. Blocking: runs in a thread.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

from pybroker.disk.disk import Disk
from pybroker.disk.shortage import lacks_room
from pybroker.errors import StoreError
from pybroker.ledgers.known_data import CopiedDirectory, KnownData, StoreMark
from pybroker.ledgers.ledger_store import told_ids
from pybroker.local_store.checkpoint.checkpoint import CheckpointJob, LedgerWork, run_checkpoint
from pybroker.local_store.checkpoint.checkpoint_table import (
    NAMES_NOT_CERTAIN,
    CheckpointTable,
    CursorChange,
    Facts,
    TableChange,
)
from pybroker.local_store.checkpoint.cursor_registry import CursorRegistry
from pybroker.local_store.data_directory import DIRECTORY_MARK_NAME
from pybroker.local_store.free_space import StorageSpace
from pybroker.local_store.journal.journal_end import JOURNAL_END_NAME, JournalEndFile, latest_end, read_journal_end
from pybroker.local_store.journal.journal_files import (
    JOURNAL_SUFFIX,
    JournalFiles,
    file_number,
    parse_journal_file_name,
)
from pybroker.local_store.journal.journal_recovery import BatchOrder, DamagedJournal, Replay, Replayed, scan_file
from pybroker.local_store.ledger_ids import LEDGER_ID_BLOCK
from pybroker.local_store.missing_files import MissingEntries, MissingFiles, require_none
from pybroker.local_store.segments.segment_tail import Leftovers, UnknownEntries, held_entries
from pybroker.local_store.segments.segment_writer import parse_segment_name, segment_path
from pybroker.local_store.store_counters import StoreStats
from pybroker.local_store.store_directories import StoreDirectories
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.runtime import logs
from pybroker.storage_format.fields import LayoutError, UnknownVersion
from pybroker.storage_format.journal_end_layout import JournalEnd
from pybroker.storage_format.journal_layout import RecordType, ledger_changes
from pybroker.storage_format.segment_layout import EMPTY_EXTENT, LedgerExtent, SegmentIndex

# Limit of the table's column, minus some blocks of ids.
MAX_LEDGER_ID = 1 << 62


@dataclass(slots=True)
class OpenedStore:
    """The opened files and the recovered state, from which the store starts."""

    table: CheckpointTable
    facts: Facts
    extents: dict[int, LedgerExtent]
    files: JournalFiles
    journal_end: JournalEndFile
    reserved_ledger_ids: range
    damaged_cursors: list[str]


def is_new_store(directory: Path) -> bool:
    below = StoreDirectories.below(directory)
    has_files = any(path.is_dir() and any(path.iterdir()) for path in (below.ledgers, below.journal))
    return not has_files and not (below.table.exists() and below.table.stat().st_size)


def open_store(
    environment: StoreEnvironment,
    directories: StoreDirectories,
    stats: StoreStats,
    space: StorageSpace,
    known: KnownData,
    *,
    is_synced: bool,
) -> OpenedStore:
    """Open or create the files of a store, and recover its state. `is_synced`: each journal write is synced. Raises
    DamagedJournal, MissingData, other StoreErrors, and OSError.
    """
    disk, clock = environment.disk, environment.clock
    start_ms = clock.monotonic_ms()
    disk.make_directory(directories.ledgers)
    disk.make_directory(directories.journal)
    names = disk.list_names(directories.journal)
    segments = segment_sizes(disk.file_sizes(directories.ledgers))
    what_is_there = describe_files(len(segments), sum(name.endswith(JOURNAL_SUFFIX) for name in names))
    table = CheckpointTable(disk, directories.table, what_is_there)
    try:
        facts = table.load_facts(what_is_there)
        damaged_cursors = table.check()
        for cursor_id in damaged_cursors:
            logs.error("checkpoint.cursor_damaged", file=directories.table.name, cursor=cursor_id)
        extents = table.load_extents()
        generations = {generation: name for name in names if (generation := parse_journal_file_name(name)) is not None}
        # The mark of a clean stop is not used: a table that lost its last commits may contain the mark of an earlier
        # stop.
        covered_sequence = facts.sequence
        end = _journal_end(disk, directories, names, facts, known.mark)
        if not what_is_there and facts.commit == 0 and end is not None:
            # A new store beside metadata without topics continues the numbers of the earlier store.
            facts.sequence, facts.commit, facts.ledger_id = end.next_sequence, end.commit, max(1, known.mark.ledger)
        if known.is_copy and facts.is_journal_made and not facts.is_clean:
            raise CopiedDirectory(copied_directory_text(directories.table.parent))
        if facts.is_journal_made and not facts.is_clean:
            BatchOrder(facts.sequence, is_synced=is_synced).require_files(facts.first_generation, generations)
        missing = MissingFiles(disk, directories.ledgers, known.entry_counts, segments, facts.first_named_ledger_id)
        is_table_last = end is None or end.commit <= facts.commit
        absent = missing.absent_before_replay(facts, extents, is_table_last=is_table_last)
        try:
            _check_leftovers(
                disk, directories, facts, extents, segments, generations, missing, absent, is_synced=is_synced
            )
        except UnknownEntries as error:
            if is_synced:
                raise
            # a power failure may have removed them from the journal
            logs.warning("segment.entries_cut", reason=str(error))
        extents, deleted = _replay(
            environment, directories, table, facts, extents, generations, end, stats, is_synced=is_synced
        )
        missing.check_after_replay(extents, deleted)
        if facts.is_clean and facts.sequence != covered_sequence:
            logs.error(
                "checkpoint.clean_mark_wrong",
                file=directories.table.name,
                batches=facts.sequence - covered_sequence,
                note="checkpoint.db is older than the journal; the missing changes were read from the journal",
            )
        numbers = (number for name in names if (number := file_number(name)) is not None)
        facts.first_generation = max(facts.first_generation, *(number + 1 for number in numbers), 1)
        facts.commit = max(facts.commit, 0 if end is None else end.commit)
        table.commit_count = facts.commit
        if lost_ids := ids_not_given(facts.ledger_id, segments):
            raise StoreError(older_table_text(directories.table.name, lost_ids))
        facts.ledger_id = max(facts.ledger_id, first_free_ledger_id(segments, extents), known.mark.ledger)
        facts.first_named_ledger_id = first_named_ledger_id(facts, is_synced=is_synced)
        reserved = range(facts.ledger_id, facts.ledger_id + LEDGER_ID_BLOCK)
        facts.first_own_ledger_id = facts.ledger_id
        facts.ledger_id = reserved.stop
        facts.is_clean = facts.is_journal_made = 0
        facts.journal_end = facts.sequence
        # From this commit on, the old journal files are void and may be reused.
        table.commit(TableChange(asdict(facts)))
        # Before an old file is reused: from now on a table older than this commit is detected.
        journal_end = JournalEndFile(
            disk,
            directories.journal,
            JournalEnd(facts.sequence, 0, 0, table.commit_count),
            directories.table.parent,
        )
        file_bytes = space.options.journal_file_bytes
        files = JournalFiles(environment, directories.journal, file_bytes, facts.first_generation, space)
        files.adopt(names)
        files.start()
        _note_journal_made(table)
    except BaseException:
        table.abandon()
        raise
    stats.recovery_s = (clock.monotonic_ms() - start_ms) / 1000
    return OpenedStore(table, facts, extents, files, journal_end, reserved, damaged_cursors)


def copied_directory_text(directory: Path) -> str:
    return (
        f"{directory} is a copy, made while its broker ran, or after the broker was killed. Its files may be of different moments,"
        " so messages could be missing. Use `pybroker backup` and `pybroker restore`, or copy the directory of"
        f" a stopped broker. If no broker ran while it was copied, remove {directory / DIRECTORY_MARK_NAME} to start with it"
    )


def known_ends(facts: Facts, mark: StoreMark) -> tuple[JournalEnd, JournalEnd]:
    return JournalEnd(facts.journal_end, 0, 0, facts.commit), JournalEnd(mark.sequence, 0, 0, mark.commit)


def _journal_end(
    disk: Disk, directories: StoreDirectories, names: Collection[str], facts: Facts, mark: StoreMark
) -> JournalEnd | None:
    noted = [read_journal_end(disk, path) for path in (directories.journal, directories.table.parent)]
    if noted == [None, None] and JOURNAL_END_NAME in names:
        logs.warning(
            "journal.end_file_damaged", note="lost batches at the end of the journal may look like an incomplete write"
        )
    end = latest_end((*noted, *known_ends(facts, mark)))
    if end is not None and 0 < facts.commit < end.commit:
        note = "its last transactions are lost; the broker recovers their changes from the journal"
        logs.error("checkpoint.commits_lost", file=directories.table.name, commits=end.commit - facts.commit, note=note)
    return end


def _note_journal_made(table: CheckpointTable) -> None:
    """Record that this run has created a journal file, so that a later start detects the loss of the file."""
    try:
        table.commit(TableChange({"is_journal_made": 1}))
    except OSError as error:
        if not lacks_room(error):
            raise
        logs.warning("checkpoint.delayed", reason=error)  # the next checkpoint records it


def segment_sizes(sizes: Mapping[str, int]) -> dict[int, int]:
    """Return the sizes of segment files in bytes by ledger id, from sizes by file name. Raises StoreError for a name
    with a ledger id that is too large.
    """
    found = {ledger_id: size for name, size in sizes.items() if (ledger_id := parse_segment_name(name)) is not None}
    if found and max(found) > MAX_LEDGER_ID:
        raise StoreError(
            f"the name of the file ledgers/{segment_path(Path(), max(found))} contains a ledger id above {MAX_LEDGER_ID}: "
            "move the file out of the directory"
        )
    return found


def describe_files(segment_count: int, journal_file_count: int) -> str:
    counts = ((segment_count, "segment files"), (journal_file_count, "journal files"))
    return " and ".join(f"{count} {what}" for count, what in counts if count)


def first_free_ledger_id(segments: Mapping[int, int], extents: Mapping[int, LedgerExtent]) -> int:
    """Return an id above all existing ledgers. It does not rely on the stored next id, because using an id twice would
    mix the entries of two topics.
    """
    return max((0, *segments, *extents)) + 1


def ids_not_given(next_ledger_id: int, found: Iterable[int]) -> list[int]:
    """Return the ledger ids in `found` that no run has assigned. They prove that `checkpoint.db` has lost transactions,
    because ids are reserved by a transaction that is always synced.
    """
    return sorted(ledger_id for ledger_id in found if ledger_id >= next_ledger_id)


def older_table_text(table: str, ledger_ids: Iterable[int]) -> str:
    return (
        f"{table} is older than the ledgers: it does not contain ledger {told_ids(ledger_ids)}, so its last changes are"
        f" lost, including cursors. Restore the newest {table}, with {table}-wal if it existed; or run `pybroker ledger repair`"
        " to see what it would change"
    )


def first_named_ledger_id(facts: Facts, *, is_synced: bool) -> int:
    """Return the lowest id of the ledgers that must exist if the metadata lists them. A ledger with a lower id may be
    missing, because a run without journal sync may have created it. If this run is not synced, return
    NAMES_NOT_CERTAIN, which is above all ids. `facts`: the values at the start of this run.
    """
    if not is_synced:
        return NAMES_NOT_CERTAIN
    # First synced run after an unsynced one: the metadata of existing ledgers stays uncertain.
    return min(facts.first_named_ledger_id, facts.ledger_id)


def _check_leftovers(
    disk: Disk,
    directories: StoreDirectories,
    facts: Facts,
    extents: Mapping[int, LedgerExtent],
    segments: Mapping[int, int],
    generations: Mapping[int, str],
    missing: MissingFiles,
    absent: Collection[MissingEntries],
    *,
    is_synced: bool,
) -> None:
    """Check segment files before any change. Raises UnknownEntries for an entry that neither extent nor journal
    contains, MissingData if a file ends before its extent or entries are `absent`, and the journal does not delete the
    ledger.

    Such files exist only after a crash during a checkpoint, or after a deletion. Only then the journal is read twice.
    """
    newest = max(extents, default=0)
    suspects = [
        ledger_id
        for ledger_id, size in segments.items()
        if (size > extents[ledger_id].end_offset if ledger_id in extents else ledger_id > newest)
    ]
    short = missing.short_files(extents)
    if not suspects and not short and not absent:
        return
    order = BatchOrder(facts.sequence, is_synced=is_synced)
    known = dict(extents)
    deleted: set[int] = set()
    ends = {ledger_id: extent.entry_count for ledger_id, extent in extents.items()}
    for generation, name in sorted(generations.items()):
        if generation < facts.first_generation:
            continue
        data = _read_file(disk, directories.journal / name, bytearray())
        try:
            live = order.live_batches(name, scan_file(data, generation, order.next_sequence))
        except (LayoutError, DamagedJournal):
            require_none(short)
            missing.check_absent(absent, ())
            return  # the replay reports the error
        for batch in live:
            body = memoryview(data)[batch.body_offset : batch.body_offset + batch.body_length]
            for record_type, ledger_id, end_entry_id in ledger_changes(body):
                if record_type is RecordType.APPEND:
                    ends[ledger_id] = end_entry_id
                elif record_type is RecordType.LEDGER_CREATED:
                    known[ledger_id], ends[ledger_id] = EMPTY_EXTENT, 0
                else:
                    known.pop(ledger_id, None)
                    deleted.add(ledger_id)
    require_none([found for found in short if found.ledger_id in known])
    missing.check_absent(absent, deleted)
    for ledger_id in suspects:
        if (extent := known.get(ledger_id)) is None:
            continue  # sealed or deleted, so never written again
        with disk.open_for_read(segment_path(directories.ledgers, ledger_id)) as file:
            for held in held_entries(file, extent):
                if held.ledger_id != ledger_id or held.entry_id >= ends[ledger_id]:
                    raise UnknownEntries(ledger_id, held)


def _replay(
    environment: StoreEnvironment,
    directories: StoreDirectories,
    table: CheckpointTable,
    facts: Facts,
    extents: Mapping[int, LedgerExtent],
    generations: Mapping[int, str],
    end: JournalEnd | None,
    stats: StoreStats,
    *,
    is_synced: bool,
) -> tuple[dict[int, LedgerExtent], set[int]]:
    """Replay the whole journal. Return the extents afterwards, and the deleted ledgers. Raises DamagedJournal.

    A second thread stores one file while this one reads and applies the next, because half of each is waiting for the
    device.
    """
    disk = environment.disk
    order = BatchOrder(facts.sequence, is_synced=is_synced)
    replay = Replay(extents)
    store = _ReplayStore(disk, directories, table, extents)
    live_generations = sorted(number for number in generations if number >= facts.first_generation)
    for generation in live_generations:
        disk.expect_read(directories.journal / generations[generation])
    buffers = deque((bytearray(), bytearray()))
    with disk.thread_of(environment.threads, "recovery") as thread:
        storing: Future[None] | None = None
        for generation in live_generations:
            name = generations[generation]
            # The file that last used this buffer is stored: at most the previous file is still in progress.
            data = _read_file(disk, directories.journal / name, buffers.popleft())
            buffers.append(data)
            live = _apply_file(replay, order, name, generation, data)
            if storing is not None:
                storing.result()
            if live:
                facts.sequence = order.next_sequence
                facts.ledger_id = max(facts.ledger_id, replay.max_ledger_id + 1)
                facts.cursor_number = max(facts.cursor_number, replay.max_cursor_number + 1)
                storing = thread.submit(store.store, asdict(facts), replay.take())
        if storing is not None:
            storing.result()
    order.check_end(end, generations)
    for cut in order.cut_tails:
        is_known = end is not None and end.next_sequence == cut.sequence
        stats.journal_cut_bytes += cut.size_bytes
        logs.warning(
            "journal.tail_cut",
            file=cut.file_name,
            offset=cut.offset,
            bytes=cut.size_bytes,
            reason=cut.reason,
            note="no message in it had a receipt" if is_known else "messages in it may have had receipts",
        )
    stats.recovered_entries = replay.entry_count
    stats.recovered_bytes = replay.size_bytes
    stats.dropped_entries_of_deleted_ledgers = replay.dropped_entry_count
    return store.extents, store.deleted_ledgers


def _apply_file(replay: Replay, order: BatchOrder, name: str, generation: int, data: bytearray) -> bool:
    try:
        scanned = scan_file(data, generation, order.next_sequence)
    except UnknownVersion as error:
        raise DamagedJournal(f"journal file {name} cannot be read: {error}") from error
    except LayoutError as error:
        raise DamagedJournal(f"journal file {name} is damaged at offset 0: {error}") from error
    for offset in scanned.covered_damage:
        logs.warning(
            "journal.damaged", file=name, offset=offset, note="nothing is lost: a checkpoint has stored this data"
        )
    live = order.live_batches(name, scanned)
    view = memoryview(data)
    for batch in live:
        replay.apply(name, view, batch)
    return bool(live)


class _ReplayStore:
    def __init__(
        self, disk: Disk, directories: StoreDirectories, table: CheckpointTable, extents: Mapping[int, LedgerExtent]
    ) -> None:
        self._disk = disk
        self._directory = directories.ledgers
        self._table = table
        self.extents = dict(extents)  # the committed ones
        self.deleted_ledgers: set[int] = set()

    def store(self, facts: dict[str, int], replayed: Replayed) -> None:
        self.extents.update(dict.fromkeys(replayed.created_ledgers, EMPTY_EXTENT))
        for ledger_id in replayed.deleted_ledgers:
            self.extents.pop(ledger_id, None)
        self.deleted_ledgers |= replayed.deleted_ledgers
        shelf = CursorRegistry(facts["cursor_number"])
        for record in replayed.cursor_records:
            shelf.apply(record)
        change = TableChange(facts, extents=dict(self.extents))
        change.cursors = [
            CursorChange(
                cursor.cursor_id, cursor.deleted_number > 0, cursor.snapshot, cursor.deltas, facts["cursor_number"] - 1
            )
            for cursor in shelf.dirty()
        ]
        works = [
            # Only new blocks are written. The index of older blocks is created when the ledger is sealed.
            LedgerWork(
                ledger_id,
                self.extents[ledger_id],
                SegmentIndex(),
                ledger.payloads,
                ledger.message_counts,
                is_sealed=False,
            )
            for ledger_id, ledger in replayed.ledgers.items()
        ]
        job = CheckpointJob(change, works, sorted(replayed.deleted_ledgers), syncs_slices=False)
        job.leftovers = Leftovers.CHECKED
        for ledger_id, moved in run_checkpoint(self._disk, self._directory, self._table, job).items():
            self.extents[ledger_id] = moved.extent


def _read_file(disk: Disk, path: Path, buffer: bytearray) -> bytearray:
    """Read the whole file, into `buffer` if the buffer has the file's size."""
    with disk.open_for_read(path) as file:
        if len(buffer) != file.size():
            buffer = bytearray(file.size())
        if file.read_into(buffer) != len(buffer):
            raise OSError(errno.EIO, "the file was truncated while the broker read it", str(path))
        return buffer
