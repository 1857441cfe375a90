"""`pybroker ledger dump`: prints ledgers, entries, cursors and the live journal as text or JSON.

Damaged data is reported and skipped; `verify` reports details.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.disk.disk import DiskFile
from pybroker.dispatch.delayed.delayed_record import stored_runs
from pybroker.errors import DamagedEntries, StoreError
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_reader import load_sealed, read_entries, scan
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR, delayed_record_id
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import Position
from pybroker.storage_format.journal_layout import AppendRecord, CursorRecord
from pybroker.storage_format.segment_layout import EMPTY_EXTENT, SegmentIndex, no_publish_time
from pybroker.tools.data_files import METADATA_FILE, DataFiles, NotUsable, TopicLedgers, opened
from pybroker.tools.items import Item, described_entry, item_text
from pybroker.tools.stored_state import Finding, JournalItem, LiveBatch, StoredState

_READ_ENTRIES = 1000
_READ_BYTES = 1 << 20
_EXIT_NOT_USABLE = 2


def main(directory: Path, ledger_id: int | None, *, with_payloads: bool, is_json: bool) -> int:
    try:
        with opened(directory) as files:
            for item in Dump(files, ledger_id, with_payloads=with_payloads).items():
                sys.stdout.write(f"{json.dumps(item) if is_json else item_text(item)}\n")
    except (NotUsable, OSError) as error:
        sys.stderr.write(f"pybroker: {error}\n")
        return _EXIT_NOT_USABLE
    return 0


class Dump:
    """The output of one data directory."""

    def __init__(self, files: DataFiles, ledger_id: int | None, *, with_payloads: bool) -> None:
        self._files = files
        self._only_ledger_id = ledger_id
        self._with_payloads = with_payloads
        self._damages: list[Finding] = []
        self._state = StoredState(files, self._damages.append, lambda _: None)
        self._topics: list[TopicLedgers] = []

    def items(self) -> Iterator[Item]:
        self._state.load_table()
        self._load_topics()
        yield from self._take_damages()
        if self._only_ledger_id is None:
            yield {"kind": "store", **asdict(self._state.facts)}
        for batch in self._state.read_journal():
            yield from self._batch_items(batch)
        yield from self._take_damages()
        yield from self._ledgers()
        if self._only_ledger_id is None:
            yield from self._cursors()

    def _load_topics(self) -> None:
        if self._files.has(METADATA_FILE):
            try:
                self._topics, failures = self._files.load_topics()
                self._damages += [Finding(METADATA_FILE, None, path, reason) for path, reason in failures]
            except StoreError as error:
                self._damages.append(Finding(METADATA_FILE, None, "", self._files.told(error)))

    def _take_damages(self) -> Iterator[Item]:
        for finding in self._damages:
            yield {"kind": "damage" if finding.is_damage else "note", "text": finding.line()}
        self._damages.clear()

    # Journal

    def _batch_items(self, batch: LiveBatch) -> Iterator[Item]:
        header = batch.header
        if self._only_ledger_id is None:
            yield {
                "kind": "journal_batch",
                "file": batch.file,
                "offset": header.body_offset,
                "sequence": header.sequence,
                "records": len(batch.records),
                "size_bytes": header.body_length,
            }
        for record in batch.records:
            yield from self._record_items(record)

    def _record_items(self, record: JournalItem) -> Iterator[Item]:
        if isinstance(record, CursorRecord):
            if self._only_ledger_id is None:
                size_bytes = len(record.data)
                yield {
                    "kind": record.type.name.lower(),
                    "cursor": record.cursor_id,
                    "number": record.number,
                    "size_bytes": size_bytes,
                }
        elif self._only_ledger_id in {None, record.ledger_id}:
            if isinstance(record, AppendRecord):
                for number, payload in enumerate(record.payloads):
                    entry_id = record.first_entry_id + number
                    yield self._entry(
                        record.ledger_id, entry_id, bytes(payload), record.message_counts[number], "journal"
                    )
            else:
                yield {"kind": record.type.name.lower(), "ledger": record.ledger_id}

    # Ledgers

    def _ledgers(self) -> Iterator[Item]:
        topic_of = {ledger_id: topic.path for topic in self._topics for ledger_id in topic.ledgers.ledger_ids()}
        ledger_ids = self._state.extents.keys() | self._files.segment_names().keys() | topic_of.keys()
        for ledger_id in sorted(ledger_ids - self._state.deleted):
            if self._only_ledger_id not in {None, ledger_id}:
                continue
            path = segment_path(self._files.directories.ledgers, ledger_id)
            try:
                with self._files.disk.open_for_read(path) as file:
                    place = self._place(file, ledger_id)
                    yield self._ledger(ledger_id, place, topic_of.get(ledger_id))
                    yield from self._entries(file, path, ledger_id, place)
            except FileNotFoundError:
                yield self._ledger(ledger_id, None, topic_of.get(ledger_id))
            except StoreError as error:
                yield {"kind": "damage", "text": f"{path.name}: {error}"}

    def _place(self, file: DiskFile, ledger_id: int) -> LedgerLocation:
        extent = self._state.extents.get(ledger_id)
        if extent is None:
            return load_sealed(file, ledger_id, no_publish_time).place
        known = LedgerLocation(extent, SegmentIndex())
        return known if extent == EMPTY_EXTENT else scan(file, ledger_id, known, no_publish_time).place

    def _ledger(self, ledger_id: int, place: LedgerLocation | None, topic: str | None) -> Item:
        state = self._state.extents.get(ledger_id)
        extent = place.extent if place is not None else state or EMPTY_EXTENT
        return {
            "kind": "ledger",
            "ledger": ledger_id,
            "topic": topic,
            "state": "open" if state is not None else "missing" if place is None else "sealed",
            "entries": extent.entry_count,
            "messages": extent.message_count,
            "size_bytes": extent.size_bytes,
            "entries_in_journal": self._state.appended.get(ledger_id, 0),
        }

    def _entries(self, file: DiskFile, path: Path, ledger_id: int, place: LedgerLocation) -> Iterator[Item]:
        entry_id = 0
        while entry_id < place.extent.entry_count:
            try:
                run = read_entries(file, path, ledger_id, place, entry_id, _READ_ENTRIES, _READ_BYTES)
            except DamagedEntries as error:
                yield {"kind": "damage", "text": str(error)}
                entry_id = error.last_entry_id + 1
                continue
            for payload, message_count in zip(run.payloads, run.message_counts, strict=True):
                yield self._entry(ledger_id, entry_id, payload, message_count, "segment")
                entry_id += 1

    def _entry(self, ledger_id: int, entry_id: int, payload: bytes, message_count: int, where: str) -> Item:
        item = {
            "kind": "entry",
            "position": f"{ledger_id}:{entry_id}",
            "in": where,
            "size_bytes": len(payload),
            "messages": message_count,
            **described_entry(payload),
        }
        if self._with_payloads:
            item["payload"] = payload.hex()
        return item

    # Cursors

    def _cursors(self) -> Iterator[Item]:
        named = {info.id: (topic, name, info) for topic in self._topics for name, info in topic.info.cursors.items()}
        delayed_ids = {delayed_record_id(cursor_id) for cursor_id, (_, _, info) in named.items() if info.delayed}
        transaction_ids = {
            delayed_record_id(cursor_id) for cursor_id, (_, name, _) in named.items() if name == TRANSACTIONS_CURSOR
        }
        for cursor_id in sorted(named.keys() | set(self._state.cursor_ids())):
            snapshot, deltas = self._state.cursor_records(cursor_id)
            if cursor_id not in named and snapshot is None and not deltas:
                continue  # deleted
            if cursor_id in transaction_ids:
                yield _transactions_item(cursor_id, deltas if snapshot is None else [snapshot, *deltas])
                continue
            if cursor_id in delayed_ids:
                yield _delayed_item(cursor_id, deltas if snapshot is None else [snapshot, *deltas])
                continue
            item: Item = {"kind": "cursor", "cursor": cursor_id, "deltas": len(deltas)}
            if cursor_id in named:
                topic, name, info = named[cursor_id]
                item |= {"topic": topic.path, "subscription": name, "properties": info.properties}
                try:
                    ledgers = self._ledgers_as_stored(topic)
                    state = CursorState.restore(ledgers, Position(*info.position), snapshot, deltas)
                    item["mark_delete"] = str(state.mark_delete_position)
                    item["individually_deleted"] = state.individually_deleted_text()
                    item["backlog_entries"] = state.backlog_entries
                except StoreError as error:
                    item["damage"] = str(error)
            yield item

    def _ledgers_as_stored(self, topic: TopicLedgers) -> LedgerList:
        for ledger_id in topic.ledgers.open_ledger_ids():
            extent = self._state.extents.get(ledger_id, EMPTY_EXTENT)
            missing = (
                extent.entry_count + self._state.appended.get(ledger_id, 0) - topic.ledgers.entry_count_of(ledger_id)
            )
            topic.ledgers.added(ledger_id, max(0, missing), 0, 0)
        return topic.ledgers


def _delayed_item(record_id: str, records: list[bytes]) -> Item:
    item: Item = {"kind": "delayed_entries", "cursor": record_id, "records": len(records)}
    try:
        item["entries"] = sum(len(run.packed) for run in stored_runs(records))
    except StoreError as error:
        item["damage"] = str(error)
    return item


def _transactions_item(record_id: str, records: list[bytes]) -> Item:
    """Describe the newest snapshot of a topic's transactions. Later changes are in the topic's entries."""
    item: Item = {"kind": "transactions", "cursor": record_id, "records": len(records)}
    try:
        if records:
            buffer = TransactionBuffer.restore(records[-1])
            item["up_to"] = str(buffer.up_to)
            item["open"] = [str(txn) for txn in buffer.open]
            item["hidden_entries"] = sum(map(len, buffer.hidden.values()))
    except StoreError as error:
        item["damage"] = str(error)
    return item
