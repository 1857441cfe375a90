"""`pybroker ledger repair`: makes a damaged data directory usable again from its undamaged data.

Nothing is deleted: replaced files move to `taken-away-<time>` in the directory, and a segment file is copied there
before it changes. The repair rewrites `checkpoint.db` and, if necessary, `metadata.db`, and appends the journal's
entries to their segments. Lost entries keep their positions; reading one of them fails with an error. The logs of
transaction coordinators cannot have gaps and are rewritten.

Memory: the entries of the journal, and the file and log of a damaged database.

Failure: after an interruption, move the files in `taken-away-<time>` back and run the repair again.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary
from pybroker.local_store.checkpoint.checkpoint_table import CheckpointTable, CursorChange, Facts, TableChange
from pybroker.local_store.journal.journal_end import JOURNAL_END_NAME
from pybroker.local_store.journal.journal_files import file_number
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_reader import BlockWalk, FoundBlock, load_sealed
from pybroker.local_store.segments.segment_tail import held_entries
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.local_store.start_up import ids_not_given, older_table_text
from pybroker.managed_ledger.info.managed_ledger_info import FORMAT_VERSION, ManagedLedgerInfo, decode_info
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.orphaned_ledgers import other_ledger_ids
from pybroker.metadata.metadata_paths import MANAGED_LEDGERS
from pybroker.storage_format.journal_end_layout import JournalEnd
from pybroker.storage_format.journal_layout import AppendRecord, LedgerRecord, RecordType
from pybroker.storage_format.segment_layout import (
    EMPTY_EXTENT,
    SEGMENT_HEADER_BYTES,
    LedgerExtent,
    SegmentIndex,
    encode_block,
    encode_segment_header,
    no_publish_time,
    split_into_blocks,
)
from pybroker.tools.data_files import LOG_SUFFIX, METADATA_FILE, METADATA_MARK, DataFiles, NotUsable, opened
from pybroker.tools.known_losses import NOT_ACCEPTED, certain_lines, finding_of, missing_ledgers, places_of_absent
from pybroker.tools.repair_cursors import LOG_PREFIX, CursorRepair, RepairedTopic
from pybroker.tools.repair_metadata import LAST_CHANGES, lost_values, read_metadata, write_metadata
from pybroker.tools.repair_plan import JournalRun, Piece, RepairPlan, continue_ledger, lost_places, span
from pybroker.tools.salvaged_metadata import Row
from pybroker.tools.stored_state import NO_METADATA, NO_NAME, NO_TOPIC, Finding, StoredState
from pybroker.tools.transaction_ends import record_of_nothing

EXIT_OK = 0
EXIT_NEEDED = 1
EXIT_NOT_USABLE = 2
LAST_RECORDS = f"{JOURNAL_END_NAME}: perhaps the last entries and acknowledgements of any topic"
_LOST_PLACES_IN_A_BLOCK = 4096


def main(directory: Path, *, applies: bool, accepts_loss: bool = False) -> int:
    """Print findings, repairs and losses, and repair if `applies` is set. Return the exit code, which is 1 if a repair
    is needed and was not applied.

    `accepts_loss`: repair even if stored data is missing.
    """
    try:
        with opened(directory) as files:
            repair = Repair(directory, files)
            plan = repair.plan()
            sys.stdout.write("".join(f"{line}\n" for line in plan.lines()))
            if not plan.is_needed:
                return EXIT_OK
            if plan.missing and not accepts_loss:
                sys.stdout.write(f"{NOT_ACCEPTED}\n")
                return EXIT_NEEDED
            if not applies:
                sys.stdout.write("nothing was changed: use --apply to repair\n")
                return EXIT_NEEDED
            sys.stdout.write(f"done; the replaced files are in {repair.apply()}\n")
            return EXIT_OK
    except (NotUsable, StoreError, OSError) as error:
        sys.stderr.write(f"pybroker: {error}\n")
        return EXIT_NOT_USABLE


class Repair:
    """One repair of a locked directory: `plan`, which changes nothing, then `apply`."""

    def __init__(self, directory: Path, files: DataFiles) -> None:
        self._directory = directory
        self._files = files
        self._plan = RepairPlan()
        self._is_damaged = False
        self._state = StoredState(files, self._found, lambda _: None)
        self._rows: list[Row] = []
        self._cursors: dict[str, tuple[bytes | None, list[bytes]]] = {}
        self._documents: dict[str, tuple[ManagedLedgerInfo, LedgerList]] = {}  # by path, without deleted topics
        self._topic_of: dict[int, str] = {}
        self._topics: set[str] = set()
        self._sealed_entries: dict[int, int] = {}
        self._last_ledgers: dict[str, int] = {}
        self._listed: set[int] = set()  # ledgers in the ledger lists of topics
        self._stated: dict[int, int] = {}  # entry counts of closed ledgers according to the metadata
        self._has_entries = False
        self._max_sequence = 0
        self._max_ledger_id = 0
        self._created: set[int] = set()

    def plan(self) -> RepairPlan:
        plan, state = self._plan, self._state
        state.load_table()
        runs = self._read_journal()
        held = self._look_at_segments()
        self._has_entries |= bool(runs)
        self._read_metadata()
        for ledger_id in sorted((held.keys() | runs.keys() | state.extents.keys() | self._created) - state.deleted):
            if held.get(ledger_id, EMPTY_EXTENT) is None:
                continue  # sealed: complete in its file
            extent = held.get(ledger_id) or EMPTY_EXTENT
            recorded = state.extents.get(ledger_id, EMPTY_EXTENT)
            pieces = continue_ledger(max(extent.entry_count, recorded.entry_count), runs.get(ledger_id, ()))
            if recorded.entry_count > extent.entry_count:
                pieces.insert(0, Piece(extent.entry_count, recorded.entry_count - extent.entry_count, None, ()))
            plan.extents[ledger_id] = extent
            end = max(extent.entry_count, *(piece.first_entry_id + piece.count for piece in pieces), 0)
            if (stated := self._stated.get(ledger_id, 0)) > end:
                # The topic counts these entries. They are recorded as lost, because readers would otherwise wait for
                # them.
                pieces.append(Piece(end, stated - end, None, ()))
            if pieces:
                plan.pieces[ledger_id] = pieces
        if state.are_facts_known and (
            unknown := ids_not_given(state.next_ledger_id, held.keys() | self._topic_of.keys())
        ):
            table = self._files.directories.table.name
            self._found(Finding(table, None, "", older_table_text(table, unknown)))
            plan.lost.append(LAST_RECORDS)
        self._keep_absent_ledgers(held)
        unnamed = self._unnamed(held)
        if (unnamed or self._find_deleted_ledgers()) and LAST_CHANGES not in plan.lost:
            plan.lost.append(LAST_CHANGES)  # metadata is older than the ledgers
        if LAST_CHANGES in plan.lost:
            self._tell_what_topics_may_have_had()
        cursors = self._cursor_repair()
        cursors.run()
        for path, count in cursors.damaged_logs.items():
            plan.findings.append(
                Finding(
                    METADATA_FILE, None, path, f"{count} records of this transaction log are lost or damaged"
                ).line()
            )
        self._find_missing()
        plan.rebuilds_table = (
            self._is_damaged or bool(plan.missing) or plan.rebuilds_metadata or bool(unnamed) or cursors.is_needed
        )
        plan.lost += cursors.lost
        if not plan.rebuilds_table:
            return plan
        for ledger_id in state.deleted & held.keys():
            plan.taken_ledgers.setdefault(ledger_id, "the journal contains the deletion of the ledger")
        self._take_unnamed(unnamed, held)
        plan.lost += lost_places(self._topic_of, plan.pieces)
        for ledger_id in sorted(self._listed - state.deleted):
            reached = plan.extents.get(ledger_id)
            pieces = plan.pieces.get(ledger_id, [])
            # The end of a damaged journal is unknown. The file of a sealed ledger has all its entries.
            is_certain = not (state.lacks_journal or state.is_end_unknown) and state.are_extents_known
            if (reached is not None and not is_certain) or (reached is None and ledger_id not in held):
                end = (reached or EMPTY_EXTENT).entry_count + sum(piece.count for piece in pieces)
                topic = self._topic_of[ledger_id]
                plan.lost.append(
                    f"{topic}, perhaps positions from {ledger_id}:{end} on, if no file contains these entries"
                )
        self._repair_cursors(cursors)
        if plan.missing:
            plan.certain = certain_lines(cursors.topics, plan.pieces, self._cursors)
        return plan

    # Missing stored data

    def _keep_absent_ledgers(self, held: Mapping[int, LedgerExtent | None]) -> None:
        """Record every ledger that a topic lists, even without entries, because the broker does not start without
        it.
        """
        plan = self._plan
        listed = {ledger_id: self._stated.get(ledger_id, 0) for ledger_id in {*self._listed, *self._stated}}
        extents, places = places_of_absent(listed, {*held, *plan.extents} - self._state.deleted)
        plan.extents |= extents
        plan.pieces |= places

    def _find_missing(self) -> None:
        plan, state = self._plan, self._state
        named = {**dict.fromkeys(self._listed), **state.known.entry_counts}
        ledgers = missing_ledgers(self._files, state, named)
        plan.findings += [finding_of(missing).line() for missing in ledgers]
        plan.missing = [*state.missing, *map(str, ledgers)]

    # Cursors and transactions

    def _cursor_repair(self) -> CursorRepair:
        topics = {
            path: RepairedTopic(path, info, self._repaired_ledgers(ledgers))
            for path, (info, ledgers) in self._documents.items()
        }
        return CursorRepair(self._state, topics, self._entries_of, LAST_CHANGES in self._plan.lost)

    def _repaired_ledgers(self, stored: LedgerList) -> LedgerList:
        ledgers = LedgerList()
        for row in stored.rows():
            count = row.entry_count if row.is_sealed else self._entry_count_of(row.ledger_id)
            ledgers.add_ledger(row.ledger_id)
            ledgers.close_ledger(LedgerSummary(row.ledger_id, count, count, 0), 0)
        return ledgers

    def _entry_count_of(self, ledger_id: int) -> int:
        extent = self._plan.extents.get(ledger_id)
        if extent is None:
            return self._sealed_entries.get(ledger_id, 0)
        return extent.entry_count + sum(piece.count for piece in self._plan.pieces.get(ledger_id, ()))

    def _entries_of(self, ledger_id: int) -> Iterator[tuple[int, bytes]]:
        path = segment_path(self._files.directories.ledgers, ledger_id)
        extent = self._plan.extents.get(ledger_id)
        if path.exists() and extent != EMPTY_EXTENT:
            with self._files.disk.open_for_read(path) as file:
                sealed = load_sealed(file, ledger_id, no_publish_time).place
                walk = BlockWalk(file, ledger_id, sealed if extent is None else LedgerLocation(extent, SegmentIndex()))
                while (step := walk.next()) is not None:
                    if isinstance(step, FoundBlock):
                        payloads, is_right = walk.window.payloads(step, 0, len(step.block.lengths))
                        for number, payload in enumerate(payloads):
                            if is_right[number]:
                                yield step.block.first_entry_id + number, payload
        for piece in self._plan.pieces.get(ledger_id, ()):
            for number, payload in enumerate(piece.payloads or ()):
                yield piece.first_entry_id + number, payload

    def _repair_cursors(self, cursors: CursorRepair) -> None:
        plan = self._plan
        plan.done += cursors.done
        self._cursors = cursors.records
        for path in cursors.damaged_logs:
            self._fill_log(cursors, cursors.topics[path])
        for coordinator, highest_id in cursors.ends.forgotten_ids().items():
            self._remember_ids(cursors, coordinator, highest_id)
        changed = {topic.path: topic.info for topic in cursors.topics.values() if topic.is_changed}
        if changed:
            plan.rebuilds_metadata = True
            rows = {path: (path, value, version) for path, value, version in self._rows}
            for path, info in changed.items():
                version = rows[path][2] + 1 if path in rows else 0
                rows[path] = (path, msgspec.json.encode(info), version)
            self._rows = list(rows.values())

    def _fill_log(self, cursors: CursorRepair, log: RepairedTopic) -> None:
        """Rewrite a transaction log that lacks records, because a coordinator's log cannot have gaps."""
        coordinator = int(log.path.removeprefix(LOG_PREFIX))
        nothing = record_of_nothing(cursors.ends.highest_id(coordinator))
        self._plan.lost.append(
            f"{log.path}: records; transactions of coordinator {coordinator} that are open according to them are aborted"
        )
        for row in log.ledgers.rows():
            found = dict(self._entries_of(row.ledger_id))
            if len(found) < row.entry_count:
                payloads = [found.get(entry_id, nothing) for entry_id in range(row.entry_count)]
                self._plan.extents[row.ledger_id] = EMPTY_EXTENT
                self._plan.pieces[row.ledger_id] = [Piece(0, len(payloads), payloads, (1,) * len(payloads))]

    def _remember_ids(self, cursors: CursorRepair, coordinator: int, highest_id: int) -> None:
        """Record `highest_id` as assigned in a coordinator's log, because topics reject the ids of ended
        transactions.
        """
        path = f"{LOG_PREFIX}{coordinator}"
        if path not in self._documents:
            document = ManagedLedgerInfo(FORMAT_VERSION, msgspec.Raw(LedgerList().encode()), {}, 0)
            self._documents[path] = document, LedgerList()
            cursors.topics[path] = RepairedTopic(path, document, LedgerList())
        info, ledgers = self._documents[path]
        ledger_id = max(ledgers.ledger_ids(), default=0)
        if ledger_id not in self._plan.extents or ledger_id not in ledgers.open_ledger_ids():
            ledger_id = max(self._state.next_ledger_id, self._max_ledger_id + 1, max(self._known_ledger_ids()) + 1)
            self._max_ledger_id = ledger_id
            ledgers.add_ledger(ledger_id)
            info.ledgers = msgspec.Raw(ledgers.encode())
            cursors.topics[path].is_changed = True
            self._topic_of[ledger_id] = path
            self._plan.extents[ledger_id] = EMPTY_EXTENT
        piece = Piece(self._entry_count_of(ledger_id), 1, [record_of_nothing(highest_id)], (1,))
        self._plan.pieces.setdefault(ledger_id, []).append(piece)
        self._plan.done.append(f"record in {path} that transaction ids up to {highest_id} are assigned")

    def _known_ledger_ids(self) -> Collection[int]:
        return {0, *self._plan.extents, *self._topic_of, *self._plan.taken_ledgers}

    def _found(self, finding: Finding) -> None:
        self._plan.findings.append(finding.line())
        if finding.file == JOURNAL_END_NAME:
            self._plan.takes_journal_end = True
            self._plan.lost.append(LAST_RECORDS)
        else:
            self._is_damaged |= finding.is_damage

    def _read_journal(self) -> dict[int, list[JournalRun]]:
        runs: dict[int, list[JournalRun]] = {}
        for batch in self._state.read_journal():
            self._max_sequence = max(self._max_sequence, batch.header.sequence)
            for record in batch.records:
                if isinstance(record, AppendRecord):
                    payloads = [bytes(payload) for payload in record.payloads]
                    run = JournalRun(record.first_entry_id, payloads, tuple(record.message_counts))
                    runs.setdefault(record.ledger_id, []).append(run)
                elif isinstance(record, LedgerRecord):
                    self._max_ledger_id = max(self._max_ledger_id, record.ledger_id)
                    if record.type is RecordType.LEDGER_CREATED:
                        self._created.add(record.ledger_id)
        for ledger_id in self._state.deleted:
            runs.pop(ledger_id, None)
        return runs

    def _look_at_segments(self) -> dict[int, LedgerExtent | None]:
        held: dict[int, LedgerExtent | None] = {}
        for ledger_id, name in self._files.segment_names().items():
            with self._files.disk.open_for_read(self._files.directories.ledgers / name) as file:
                loaded = load_sealed(file, ledger_id, no_publish_time)
                self._has_entries |= loaded.place.extent.entry_count > 0
                recorded = self._state.extents.get(ledger_id)
                if loaded.place.is_end_known and recorded is None:
                    held[ledger_id] = None
                    self._sealed_entries[ledger_id] = loaded.place.extent.entry_count
                    continue
                extent = loaded.place.extent
                held[ledger_id] = extent if extent.entry_count else EMPTY_EXTENT
                foreign = next((h for h in held_entries(file, held[ledger_id] or EMPTY_EXTENT)), None)
                if not extent.entry_count and foreign is not None:
                    self._plan.taken_ledgers[ledger_id] = f"its file contains entries of ledger {foreign.ledger_id}"
                end = 0 if recorded is None else recorded.entry_count + self._state.appended.get(ledger_id, 0)
                if recorded is not None and extent.entry_count > end:
                    self._found(
                        Finding(
                            name,
                            None,
                            span(ledger_id, end, extent.entry_count - end),
                            "these entries are neither in checkpoint.db nor in the journal",
                        )
                    )
        return held

    # Metadata

    def _read_metadata(self) -> None:
        plan, found = self._plan, read_metadata(self._files)
        plan.findings += found.findings
        plan.lost += found.lost
        plan.takes_mark = found.is_mark_damaged
        plan.rebuilds_metadata = found.is_damaged
        for path, value, version in found.rows:
            if path.startswith(f"{MANAGED_LEDGERS}/") and not self._add_topic(path, value):
                plan.rebuilds_metadata = True
                plan.dropped_documents.append(path)
                plan.lost.append(f"{path}: the managed ledger info, and therefore the whole topic")
                continue
            self._rows.append((path, value, version))
        if not self._topics and self._has_entries and not found.is_damaged:
            plan.rebuilds_metadata = True
            what = NO_TOPIC if self._files.has(METADATA_FILE) else NO_METADATA
            plan.findings.append(Finding(METADATA_FILE, None, "", what).line())
            plan.lost.append(lost_values(None))

    def _name_lost_topics(self) -> None:
        for cursor_id in self._state.cursor_ids():
            if not any(self._state.cursor_records(cursor_id)):
                continue  # deleted
            path = cursor_id.removesuffix("/delayed").rpartition("/")[0]
            if path not in self._topics:
                self._topics.add(path)
                self._plan.lost.append(f"{path}: the list of ledgers, and therefore the whole topic")

    def _add_topic(self, path: str, value: bytes) -> bool:
        try:
            info = decode_info(path, value)
            ledgers = LedgerList.decode(bytes(info.ledgers), 0)
            self._topic_of.update(dict.fromkeys((*ledgers.ledger_ids(), *other_ledger_ids(info)), path))
        except StoreError:
            return False
        self._topics.add(path)
        if info.deleted:
            return True
        self._documents[path] = info, ledgers
        self._listed.update(ledgers.ledger_ids())
        self._stated.update((row.ledger_id, row.entry_count) for row in ledgers.rows())
        if info.compacted is not None:
            self._stated[info.compacted.ledger] = info.compacted.entries
        self._last_ledgers[path] = max(ledgers.ledger_ids(), default=0)
        return True

    def _tell_what_topics_may_have_had(self) -> None:
        for path, last in sorted(self._last_ledgers.items()):
            self._plan.lost.append(
                f"{path}, perhaps all entries after ledger {last}, in ledgers that the metadata does not list"
            )

    def _find_deleted_ledgers(self) -> bool:
        found = sorted(self._listed & self._state.deleted)
        for ledger_id in found:
            reason = "the journal contains the deletion of the ledger, so the managed ledger info is outdated"
            where = f"ledger {ledger_id} of {self._topic_of[ledger_id]}"
            self._plan.findings.append(Finding(METADATA_FILE, None, where, reason).line())
        return bool(found)

    def _unnamed(self, held: Mapping[int, LedgerExtent | None]) -> dict[int, int]:
        """Return the entry counts of ledgers without a topic: those with which the broker does not start, or all if the
        metadata is rewritten.
        """
        plan, state = self._plan, self._state
        if not self._files.has(METADATA_FILE) and not plan.rebuilds_metadata:
            return {}  # the metadata was in memory
        found = {}
        for ledger_id in sorted((held.keys() | plan.extents.keys()) - self._topic_of.keys() - state.deleted):
            extent = plan.extents.get(ledger_id)
            count = self._sealed_entries.get(ledger_id, 0) if extent is None else extent.entry_count
            count += sum(piece.count for piece in plan.pieces.get(ledger_id, ()))
            is_lost = count > 0 and ledger_id >= state.facts.first_named_ledger_id
            if is_lost:
                name = f"{ledger_id:020d}.ledger"
                plan.findings.append(Finding(name, None, span(ledger_id, 0, count), NO_NAME).line())
            if is_lost or plan.rebuilds_metadata:
                found[ledger_id] = count
        return found

    def _take_unnamed(self, unnamed: Mapping[int, int], held: Mapping[int, LedgerExtent | None]) -> None:
        plan = self._plan
        if not (plan.rebuilds_metadata or unnamed):
            return
        self._name_lost_topics()
        for ledger_id, count in unnamed.items():
            plan.pieces.pop(ledger_id, None)
            plan.extents.pop(ledger_id, None)
            self._max_ledger_id = max(self._max_ledger_id, ledger_id)
            if ledger_id in held:
                plan.taken_ledgers.setdefault(ledger_id, "no topic refers to the ledger")
            if count or ledger_id in held:
                which = span(ledger_id, 0, count) if count else f"ledger {ledger_id}"
                plan.lost.append(f"no topic, {which}: their topic is unknown")
            if self._is_damaged:
                plan.lost.append(
                    f"no topic, perhaps positions from {ledger_id}:{count} on, if no file contains these entries"
                )

    # Application of the plan

    def apply(self) -> Path:
        plan = self._plan
        taken = self._directory / time.strftime("taken-away-%Y%m%d-%H%M%S", time.gmtime())
        taken.mkdir(mode=0o700)
        mark = self._directory / METADATA_MARK
        if (plan.takes_mark or plan.rebuilds_metadata) and mark.exists():
            mark.replace(taken / mark.name)
        if plan.rebuilds_table:
            self._rebuild(taken)
        elif plan.takes_journal_end:
            (self._files.directories.journal / JOURNAL_END_NAME).replace(taken / JOURNAL_END_NAME)
            _sync_directory(self._files.directories.journal)
        _sync_directory(self._directory)
        return taken

    def _rebuild(self, taken: Path) -> None:
        plan, directories = self._plan, self._files.directories
        (taken / "ledgers").mkdir()
        for ledger_id in plan.taken_ledgers:
            segment_path(directories.ledgers, ledger_id).replace(segment_path(taken / "ledgers", ledger_id))
        extents = {}
        for ledger_id, extent in plan.extents.items():
            path = segment_path(directories.ledgers, ledger_id)
            pieces = plan.pieces.get(ledger_id, [])
            if path.exists() and (pieces or path.stat().st_size > extent.end_offset):
                shutil.copyfile(path, taken / "ledgers" / path.name)
            extents[ledger_id] = _continue_file(path, ledger_id, extent, pieces)
        _sync_directory(directories.ledgers)
        numbers = [number for path in directories.journal.glob("*") if (number := file_number(path.name)) is not None]
        new_table = self._directory / "checkpoint.db.repaired"
        new_metadata = self._directory / f"{METADATA_FILE}.repaired"
        self._write_table(new_table, extents, max(numbers, default=0) + 1)
        if plan.rebuilds_metadata:
            write_metadata(new_metadata, self._rows)
        if directories.journal.exists():
            directories.journal.replace(taken / "journal")
        _take_database(directories.table, taken)
        new_table.replace(directories.table)
        if plan.rebuilds_metadata:
            _take_database(self._directory / METADATA_FILE, taken)
            new_metadata.replace(self._directory / METADATA_FILE)

    def _write_table(self, path: Path, extents: dict[int, LedgerExtent], first_generation: int) -> None:
        state = self._state
        for suffix in ("", LOG_SUFFIX, "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        changes = []
        number = 1
        for cursor_id, (snapshot, deltas) in sorted(self._cursors.items()):
            first = None if snapshot is None else (number, snapshot)
            numbered = list(enumerate(deltas, number + 1))
            number += len(deltas) + 1
            changes.append(CursorChange(cursor_id, False, first, numbered, number - 1))
        known = max(*self._known_ledger_ids(), *extents, 0)
        end = state.known_end or JournalEnd(0, 0, 0, 0)
        commit = max(state.facts.commit, end.commit)
        facts = Facts(
            sequence=max(self._max_sequence + 1, state.facts.sequence, end.next_sequence),
            first_generation=max(first_generation, state.facts.first_generation),
            cursor_number=number + 1,
            ledger_id=max(state.facts.ledger_id, self._max_ledger_id + 1, known + 1, state.known.mark.ledger),
            commit=commit + 1,
            first_named_ledger_id=state.facts.first_named_ledger_id,
        )
        table = CheckpointTable(Disk(), path, "")
        try:
            table.check()
            table.commit_count = commit
            table.commit(TableChange(asdict(facts), extents=extents, cursors=changes))
        finally:
            table.close()


def _continue_file(path: Path, ledger_id: int, extent: LedgerExtent, pieces: list[Piece]) -> LedgerExtent:
    if not pieces and not path.exists():
        return EMPTY_EXTENT
    data: list[bytes | memoryview] = []
    entries, messages, size_bytes = extent.entry_count, extent.message_count, extent.size_bytes
    for piece in pieces:
        if piece.payloads is None:
            for start in range(0, piece.count, _LOST_PLACES_IN_A_BLOCK):
                count = min(piece.count - start, _LOST_PLACES_IN_A_BLOCK)
                head, *_ = encode_block(ledger_id, piece.first_entry_id + start, [b"\0"] * count, [1] * count)
                data += [
                    head,
                    b"\1" * count,
                ]  # wrong checksums on purpose, so that readers get an error
            messages += piece.count
            size_bytes += piece.count
        else:
            for start, end in split_into_blocks(piece.payloads):
                payloads, counts = piece.payloads[start:end], piece.message_counts[start:end]
                data += encode_block(ledger_id, piece.first_entry_id + start, payloads, counts)
            messages += sum(piece.message_counts)
            size_bytes += sum(map(len, piece.payloads))
        entries += piece.count
    offset = extent.end_offset
    if not offset and data:
        data.insert(0, encode_segment_header(ledger_id))
        assert len(data[0]) == SEGMENT_HEADER_BYTES
    with open(path, "r+b" if path.exists() else "xb", opener=_for_the_owner) as file:
        file.truncate(offset)
        file.seek(offset)
        file.writelines(data)
        file.flush()
        os.fsync(file.fileno())
        return LedgerExtent(file.tell(), entries, messages, size_bytes)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _take_database(path: Path, taken: Path) -> None:
    for suffix in ("", LOG_SUFFIX, "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.replace(taken / file.name)


def _sync_directory(path: Path) -> None:
    if path.exists():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
