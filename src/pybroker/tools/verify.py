"""`pybroker ledger verify`: reads all stored data of a data directory and reports all damage with its location.

It checks the rows of `checkpoint.db`, the batches of the journal, all blocks, payloads and indexes of segments, the
records of cursors, and whether everything in the metadata exists with the recorded sizes. An incomplete batch at the
end of the journal is not damage: a crash leaves it, and no entry in it had a receipt.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.disk.disk import DiskFile
from pybroker.dispatch.delayed.delayed_record import stored_runs
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_reader import BlockWalk, FoundBlock, Gap, load_sealed
from pybroker.local_store.segments.segment_tail import held_entries, unknown_entry
from pybroker.local_store.start_up import ids_not_given, older_table_text
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR, delayed_record_id
from pybroker.managed_ledger.orphaned_ledgers import other_ledger_ids
from pybroker.model.position import Position
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.segment_layout import (
    SEGMENT_HEADER_BYTES,
    LedgerExtent,
    SegmentIndex,
    check_segment_header,
    no_publish_time,
)
from pybroker.tools.data_files import METADATA_FILE, METADATA_MARK, DataFiles, NotUsable, TopicLedgers, opened
from pybroker.tools.repair_metadata import doubts
from pybroker.tools.stored_state import NO_METADATA, NO_NAME, NO_TOPIC, Finding, StoredState

EXIT_OK = 0
EXIT_DAMAGED = 1
EXIT_NOT_USABLE = 2


def main(directory: Path) -> int:
    findings: list[Finding] = []

    def report(finding: Finding) -> None:
        findings.append(finding)
        sys.stdout.write(f"{finding.line()}\n")
        sys.stdout.flush()

    try:
        with opened(directory) as files, _progress() as progress:
            verifier = Verifier(files, report, progress)
            verifier.run()
    except (NotUsable, OSError) as error:
        sys.stderr.write(f"pybroker: {error}\n")
        return EXIT_NOT_USABLE
    damages = sum(finding.is_damage for finding in findings)
    sys.stdout.write(f"{verifier.summary()}: {f'{damages} damaged places' if damages else 'no damage'}\n")
    return EXIT_DAMAGED if damages else EXIT_OK


class Verifier:
    """One verification of a directory. `progress` receives processed bytes and total bytes."""

    def __init__(
        self, files: DataFiles, report: Callable[[Finding], None], progress: Callable[[int, int], None]
    ) -> None:
        self._files = files
        self._report = report
        self._progress = progress
        self._state = StoredState(files, report, self._advance)
        self._done_bytes = 0
        self._total_bytes = 0
        self._batches = 0
        self._entries = 0  # in segments
        self._ledgers: dict[int, LedgerExtent] = {}  # as found in their files
        self._cursors = 0

    def summary(self) -> str:
        entries = self._entries + sum(self._state.appended.values())
        ledgers = self._ledgers.keys() | self._state.appended.keys()
        return (
            f"{len(ledgers)} ledgers, {entries} entries, {self._batches} live journal batches, {self._cursors} cursors"
        )

    def run(self) -> None:
        files, state = self._files, self._state
        state.load_table()
        segments = files.segment_names()
        directories = files.directories
        paths = [directories.journal / name for name in state.live_journal().values()]
        paths += [directories.ledgers / name for name in segments.values()]
        self._total_bytes = sum(path.stat().st_size for path in paths)
        for _ in state.read_journal():
            self._batches += 1
        for ledger_id, name in segments.items():
            if ledger_id not in state.deleted:
                self._verify_segment(ledger_id, name)
        for ledger_id, extent in state.extents.items():
            if extent.end_offset and ledger_id not in segments:
                self._damage(f"{ledger_id:020d}.ledger", None, _span(ledger_id, 0, extent.entry_count), "is missing")
        topics = self._load_topics()
        self._verify_ledger_lists(topics, segments)
        self._verify_cursors(topics)

    # Segments

    def _verify_segment(self, ledger_id: int, name: str) -> None:
        extent = self._state.extents.get(ledger_id)
        with self._files.disk.open_for_read(self._files.directories.ledgers / name) as file:
            if extent is None:
                self._verify_sealed(file, ledger_id, name)
            elif extent.end_offset:
                try:
                    check_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0), ledger_id)
                except LayoutError as error:
                    self._damage(name, 0, f"ledger {ledger_id}", str(error))
                self._verify_blocks(file, ledger_id, name, LedgerLocation(extent, SegmentIndex()))
                self._ledgers[ledger_id] = extent
            if extent is not None:
                self._verify_leftovers(file, ledger_id, name, extent)

    def _verify_leftovers(self, file: DiskFile, ledger_id: int, name: str, extent: LedgerExtent) -> None:
        """Check the entries in the file after the ledger's recorded end. A broker start overwrites them with the
        journal's entries, and rejects entries that the journal lacks.
        """
        end_entry_id = extent.entry_count + self._state.appended.get(ledger_id, 0)
        for held in held_entries(file, extent):
            if held.ledger_id != ledger_id or held.entry_id >= end_entry_id:
                self._damage(name, held.offset, f"ledger {ledger_id}", unknown_entry(held))
                return

    def _verify_sealed(self, file: DiskFile, ledger_id: int, name: str) -> None:
        try:
            loaded = load_sealed(file, ledger_id, no_publish_time)
        except StoreError as error:
            raise NotUsable(f"{name}: {error}") from error
        if self._state.are_extents_known:  # otherwise it may be a ledger without index
            for offset, reason in loaded.faults:
                self._damage(name, offset, f"ledger {ledger_id}", reason)
        self._verify_blocks(file, ledger_id, name, loaded.place)
        self._ledgers[ledger_id] = loaded.place.extent

    def _verify_blocks(self, file: DiskFile, ledger_id: int, name: str, place: LedgerLocation) -> None:
        index = place.index
        points = dict(zip(index.offsets, range(len(index)), strict=True))
        messages = size_bytes = 0
        is_whole = True
        walk = BlockWalk(file, ledger_id, place)
        while (step := walk.next()) is not None:
            if isinstance(step, Gap):
                positions = _span(ledger_id, step.first_entry_id, step.end_entry_id)
                self._damage(name, step.offset, positions, step.reason)
                is_whole = False
                continue
            point = points.pop(step.offset, None)
            if point is not None and is_whole:
                wanted = (index.place_of(point)[1], *index.totals_of(point))
                if wanted != (step.block.first_entry_id, messages, size_bytes):
                    self._damage(name, step.offset, f"ledger {ledger_id}", "the index does not match this block")
            self._verify_payloads(walk, step, ledger_id, name)
            messages += sum(step.block.message_counts)
            size_bytes += step.block.payload_bytes
            self._advance(step.end_offset - step.offset)
        extent = place.extent
        if is_whole and place.is_end_known:
            if (messages, size_bytes) != (extent.message_count, extent.size_bytes):
                recorded = f"{extent.message_count} messages of {extent.size_bytes} bytes"
                reason = f"the blocks contain {messages} messages of {size_bytes} bytes, but {recorded} are recorded"
                self._damage(name, walk.offset, f"ledger {ledger_id}", reason)
            if points:
                self._damage(
                    name, min(points), f"ledger {ledger_id}", "the index refers to a block that does not exist"
                )

    def _verify_payloads(self, walk: BlockWalk, found: FoundBlock, ledger_id: int, name: str) -> None:
        count = len(found.block.lengths)
        _, is_right = walk.window.payloads(found, 0, count)
        self._entries += count
        offset = found.end_offset - found.block.payload_bytes
        for number, right in enumerate(is_right):
            if not right:
                entry_id = found.block.first_entry_id + number
                self._damage(name, offset, _span(ledger_id, entry_id, entry_id + 1), "wrong checksum of the payload")
            offset += found.block.lengths[number]

    # Metadata and cursors

    def _load_topics(self) -> list[TopicLedgers] | None:
        if not self._files.has(METADATA_FILE):
            if self._files.has(METADATA_MARK):
                self._damage(METADATA_FILE, None, "", "is missing")
            elif self._has_entries():
                self._damage(METADATA_FILE, None, "", NO_METADATA)
            return None
        for finding in doubts(self._files):
            self._report(finding)
        try:
            topics, failures = self._files.load_topics()
        except StoreError as error:
            self._damage(METADATA_FILE, None, "", self._files.told(error))
            return None
        if not topics and not failures and self._has_entries():
            self._damage(METADATA_FILE, None, "", NO_TOPIC)
        for path, reason in failures:
            self._damage(METADATA_FILE, None, path, reason)
        return topics if not failures else None

    def _has_entries(self) -> bool:
        return bool(self._entries or self._state.appended)

    def _verify_ledger_lists(self, topics: list[TopicLedgers] | None, segments: dict[int, str]) -> None:
        if topics is None:
            return
        named: set[int] = set()
        for topic in topics:
            named.update(topic.ledgers.ledger_ids(), other_ledger_ids(topic.info))
            if not topic.info.deleted:
                self._verify_ledger_list(topic, segments)
        state = self._state
        if state.are_facts_known and (unknown := ids_not_given(state.next_ledger_id, named | segments.keys())):
            table = self._files.directories.table.name
            self._damage(table, None, "", older_table_text(table, unknown))
        for ledger_id in sorted((segments.keys() | state.extents.keys()) - named - state.deleted):
            name = segments.get(ledger_id, f"{ledger_id:020d}.ledger")
            found = self._ledgers.get(ledger_id)
            count = (0 if found is None else found.entry_count) + state.appended.get(ledger_id, 0)
            if count and ledger_id >= state.facts.first_named_ledger_id:
                self._damage(name, None, _span(ledger_id, 0, count), NO_NAME)
            else:
                self._note(name, f"ledger {ledger_id}", "orphaned: no topic refers to the ledger")

    def _verify_ledger_list(self, topic: TopicLedgers, segments: dict[int, str]) -> None:
        state = self._state
        open_ids = set(topic.ledgers.open_ledger_ids())
        summaries = topic.ledgers.summaries()
        if (compacted := topic.info.compacted) is not None:
            summaries.append(LedgerSummary(compacted.ledger, compacted.entries, 0, compacted.bytes))
        for summary in summaries:
            ledger_id = summary.ledger_id
            where = f"ledger {ledger_id} of {topic.path}"
            is_known = ledger_id in state.extents or ledger_id in segments
            if ledger_id in state.deleted or not is_known:
                if state.are_extents_known:
                    self._damage(f"{ledger_id:020d}.ledger", None, where, "is missing")
                continue
            found = self._ledgers.get(ledger_id)
            stored = (0 if found is None else found.entry_count) + state.appended.get(ledger_id, 0)
            if ledger_id not in open_ids and stored != summary.entry_count:
                reason = f"has {stored} entries, but {summary.entry_count} according to the metadata"
                self._damage(segments.get(ledger_id, METADATA_FILE), None, where, reason)

    def _verify_cursors(self, topics: list[TopicLedgers] | None) -> None:
        state = self._state
        by_id = {info.id: (topic, info) for topic in topics or () for info in topic.info.cursors.values()}
        delayed_ids = {delayed_record_id(cursor_id) for cursor_id, (_, info) in by_id.items() if info.delayed}
        transaction_ids = {
            delayed_record_id(cursor.id)
            for topic in topics or ()
            for name, cursor in topic.info.cursors.items()
            if name == TRANSACTIONS_CURSOR
        }
        for cursor_id in state.cursor_ids():
            snapshot, deltas = state.cursor_records(cursor_id)
            if snapshot is None and not deltas:
                continue  # deleted
            named = by_id.get(cursor_id)
            try:
                if cursor_id in transaction_ids:
                    for record in deltas if snapshot is None else [snapshot, *deltas]:
                        TransactionBuffer.restore(record)
                    continue
                if cursor_id in delayed_ids:
                    for _ in stored_runs(deltas if snapshot is None else [snapshot, *deltas]):
                        pass
                    continue
                self._cursors += 1
                if named is not None:
                    topic, info = named
                    CursorState.restore(topic.ledgers, Position(*info.position), snapshot, deltas)
                elif topics is not None:
                    self._note(
                        self._files.directories.table.name,
                        f"cursor {cursor_id}",
                        "orphaned: no topic refers to the cursor",
                    )
            except StoreError as error:
                self._damage(self._files.directories.table.name, None, f"cursor {cursor_id}", str(error))

    def _damage(self, file: str, offset: int | None, positions: str, reason: str) -> None:
        self._report(Finding(file, offset, positions, reason))

    def _note(self, file: str, positions: str, reason: str) -> None:
        self._report(Finding(file, None, positions, reason, is_damage=False))

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress(self._done_bytes, self._total_bytes)


def _span(ledger_id: int, first_id: int, end_id: int) -> str:
    if end_id - first_id == 1:
        return f"position {ledger_id}:{first_id}"
    if end_id <= first_id:
        return f"positions from {ledger_id}:{first_id}"
    return f"positions {ledger_id}:{first_id} to {ledger_id}:{end_id - 1}"


def _show_nothing(_done_bytes: int, _total_bytes: int) -> None: ...


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield _show_nothing
        return
    # imported here, because it is optional
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("verify"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verify")
        yield lambda done, total: bar.update(task, completed=done, total=total)
