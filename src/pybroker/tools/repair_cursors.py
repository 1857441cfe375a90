"""Repair of cursors and transactions: makes them consistent with the entries and with the transaction logs.

Undamaged records of a cursor are kept. If some are lost, the report states up to which position acknowledgements are
certain. A topic's transaction buffer is recomputed from its entries if it may be outdated. A transaction that is open
in a topic or subscription but ended at its coordinator is ended there, too: as in the logs or in markers of other
topics, otherwise with an abort, which the report lists.

This module writes nothing; `Repair` writes `records` and the changed managed ledger infos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from pyroaring import BitMap

from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.broker.transactions.transaction_recovery import note_stored
from pybroker.dispatch.delayed.delayed_record import stored_runs
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.managed_ledger_info import (
    TRANSACTIONS_CURSOR,
    CursorInfo,
    ManagedLedgerInfo,
    delayed_record_id,
)
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.pending_transaction_acks import Hold
from pybroker.metadata.metadata_paths import MANAGED_LEDGERS
from pybroker.model.entry_runs import end_of_run
from pybroker.model.position import EARLIEST, Position
from pybroker.model.system_topics import TRANSACTION_LOG
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.tools.stored_state import StoredState
from pybroker.tools.transaction_ends import TransactionEnds
from pybroker.wire.transaction_metadata import of_transaction

DEDUPLICATION_CURSOR = "pulsar.dedup"
LOG_PREFIX = f"{MANAGED_LEDGERS}/pulsar/system/persistent/{TRANSACTION_LOG}"
_DELAYED_SUFFIX = delayed_record_id("")

Entries = Callable[[int], Iterator[tuple[int, bytes]]]
"""Yields the readable entries of a ledger with their ids."""


@dataclass(slots=True)
class RepairedTopic:
    """A topic's managed ledger info, and its ledgers' entry counts after the repair."""

    path: str
    info: ManagedLedgerInfo
    ledgers: LedgerList
    is_changed: bool = False


@dataclass(slots=True)
class CursorRepair:
    """The repair of the cursors of all topics. `run` sets the records to write and the texts to report."""

    state: StoredState
    topics: dict[str, RepairedTopic]
    entries: Entries
    is_metadata_older: bool
    """Whether managed ledger infos may lack later changes."""
    records: dict[str, tuple[bytes | None, list[bytes]]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    damaged_logs: dict[str, int] = field(default_factory=dict)
    """Paths of damaged coordinators' logs, with the number of unreadable entries."""
    ends: TransactionEnds = field(default_factory=TransactionEnds)
    _has_all_markers: bool = False

    def run(self) -> None:
        if self.is_metadata_older:
            self._name_cursors_again()
        self._read_logs()
        for topic in self.topics.values():
            self._repair_buffer(topic)
        for topic in self.topics.values():
            for name, cursor in topic.info.cursors.items():
                if name != TRANSACTIONS_CURSOR:
                    self._repair_cursor(topic, name, cursor)

    # --- managed ledger infos that are older than their cursors ------------------------------------------------------

    def _name_cursors_again(self) -> None:
        """Add cursors that have records to managed ledger infos that lack them, because the infos are outdated."""
        named = {cursor.id for topic in self.topics.values() for cursor in topic.info.cursors.values()}
        for cursor_id in self.state.cursor_ids():
            own_id = cursor_id.removesuffix(_DELAYED_SUFFIX)
            if not any(self.state.cursor_records(cursor_id)):
                continue  # deleted
            path, _, quoted = own_id.rpartition("/")
            topic, name = self.topics.get(path), unquote(quoted.rpartition("#")[0])
            if topic is None or not name:
                continue
            if own_id not in named:
                before = topic.info.cursors.get(name)
                if before is not None and _serial_of(before.id) >= _serial_of(own_id):
                    continue
                position = Position(topic.ledgers.first_position.ledger_id, -1)
                topic.info.cursors[name] = CursorInfo(own_id, (position.ledger_id, position.entry_id))
                topic.is_changed = True
                named.add(own_id)
                self.done.append(f"restore the cursor {name!r} of {topic.path} from its records")
            if cursor_id != own_id and not topic.info.cursors[name].delayed:
                topic.info.cursors[name].delayed = topic.is_changed = True

    # --- transactions ------------------------------------------------------------------------------------------------

    @property
    def is_needed(self) -> bool:
        return bool(self.done or self.damaged_logs)

    def _read_logs(self) -> None:
        for path, topic in self.topics.items():
            number = _coordinator_of(path)
            if number is None:
                continue
            payloads = [payload for _, payload in self._entries_after(topic, EARLIEST)]
            lacking = topic.ledgers.entry_count - len(payloads) + self.ends.read_log(number, payloads)
            if lacking:
                self.damaged_logs[path] = lacking

    def _repair_buffer(self, topic: RepairedTopic) -> None:
        cursor = topic.info.cursors.get(TRANSACTIONS_CURSOR)
        if cursor is None and not self.is_metadata_older:
            return
        record_id = "" if cursor is None else delayed_record_id(cursor.id)
        snapshot, deltas = self.state.cursor_records(record_id)
        buffer = _last_buffer([*deltas[::-1], *([] if snapshot is None else [snapshot])])
        is_stale = cursor is None or self.state.may_lack_records(record_id, is_each_whole=True)
        is_stale = is_stale or (buffer is not None and not topic.info.cursors[TRANSACTIONS_CURSOR].delayed)
        if buffer is None:
            buffer = TransactionBuffer()
            buffer.up_to = EARLIEST if is_stale or cursor is None else Position(*cursor.position)
        for position, payload in self._entries_after(topic, buffer.up_to):
            note_stored(buffer, EntryRun(position.ledger_id, position.entry_id, [payload], [1]), 0)
            if (found := of_transaction(payload)) is not None:
                self.ends.seen(found.txn)
                if found.ends is not None:
                    self.ends.marked(found.txn, found.ends)
        for each in buffer.highest_ids().items():
            self.ends.seen(TxnId(*each))
        has_ended_some = self._end_in_buffer(topic, buffer)
        if cursor is None:
            if not buffer.highest_ids():
                return  # no transactional entries
            ledger_id = topic.ledgers.first_position.ledger_id
            cursor = CursorInfo(f"{topic.path}/{TRANSACTIONS_CURSOR}#repaired.{ledger_id}", (ledger_id, -1))
            topic.info.cursors[TRANSACTIONS_CURSOR] = cursor
            topic.is_changed = True
        self.records[cursor.id] = self._whole_records(topic, TRANSACTIONS_CURSOR, cursor)
        record_id = delayed_record_id(cursor.id)
        if not (is_stale or has_ended_some):
            self.records[record_id] = snapshot, deltas
            return
        buffer.forget_ledgers(topic.ledgers.has_ledger)
        self.records[record_id] = buffer.snapshot(), []
        self.done.append(f"recompute the transactions of {topic.path} from its entries")
        if not cursor.delayed:
            cursor.delayed = topic.is_changed = True

    def _end_in_buffer(self, topic: RepairedTopic, buffer: TransactionBuffer) -> bool:
        forgotten = [txn for txn in buffer.open if not self.ends.will_end(txn)]
        for txn in forgotten:
            places = _spans(buffer.open[txn].entries)
            action = self._action_of(txn)
            if action is None:
                self.lost.append(
                    f"{topic.path}, {places}: the end of transaction {txn} is not stored anywhere; the messages of "
                    "the transaction are aborted"
                )
            buffer.ended(txn, action or TxnAction.ABORT, None)
        for txn in buffer.open if self._may_lack_ends else ():
            if self.ends.is_open(txn):
                self.lost.append(
                    f"{topic.path}, {_spans(buffer.open[txn].entries)}: perhaps the end of transaction {txn}: the transaction "
                    "is aborted at its timeout, unless its client commits it"
                )
        return bool(forgotten)

    @property
    def _may_lack_ends(self) -> bool:
        return (
            self.state.lacks_journal or self.state.is_end_unknown or self.is_metadata_older or bool(self.damaged_logs)
        )

    def _action_of(self, txn: TxnId) -> TxnAction | None:
        found = self.ends.action_of(txn)
        if found is None and not self._has_all_markers:
            self._has_all_markers = True
            for topic in self.topics.values():
                for _, payload in self._entries_after(topic, EARLIEST):
                    said = of_transaction(payload)
                    if said is not None and said.ends is not None:
                        self.ends.marked(said.txn, said.ends)
            found = self.ends.action_of(txn)
        return found

    def _entries_after(self, topic: RepairedTopic, behind: Position) -> Iterator[tuple[Position, bytes]]:
        for row in topic.ledgers.rows():
            if row.ledger_id < behind.ledger_id:
                continue
            for entry_id, payload in self.entries(row.ledger_id):
                position = Position(row.ledger_id, entry_id)
                if position > behind:
                    yield position, payload

    # --- cursors -----------------------------------------------------------------------------------------------------

    def _repair_cursor(self, topic: RepairedTopic, name: str, cursor: CursorInfo) -> None:
        if name == DEDUPLICATION_CURSOR and self.is_metadata_older:
            return  # the info's sequence ids may be older than its records: the broker reads all again
        snapshot, deltas = self._whole_records(topic, name, cursor)
        state = CursorState.restore(topic.ledgers, Position(*cursor.position), snapshot, deltas)
        if _coordinator_of(topic.path) is not None:
            # A coordinator reads its log from the mark-delete position on, and the last record contains the highest
            # assigned id. If that record is lost, or the position is uncertain, all remaining records are read.
            if state.mark_delete_position < topic.ledgers.last_position and not self.state.may_lack_records(cursor.id):
                self.records[cursor.id] = snapshot, deltas
            return
        if self.state.is_end_unknown or self.state.may_lack_records(cursor.id):
            self.lost.append(f"{topic.path}, {name!r}: {_certain(state, snapshot, deltas)}")
        for each in state.held.highest_ids().items():
            self.ends.seen(TxnId(*each))
        if self._end_holds(topic, name, state):
            snapshot, deltas = state.snapshot(), []
        if snapshot is not None or deltas:
            self.records[cursor.id] = snapshot, deltas
        if cursor.delayed:
            self._repair_delayed(topic, name, delayed_record_id(cursor.id))

    def _whole_records(self, topic: RepairedTopic, name: str, cursor: CursorInfo) -> tuple[bytes | None, list[bytes]]:
        snapshot, deltas = self.state.cursor_records(cursor.id)
        position = Position(*cursor.position)
        try:
            CursorState.restore(topic.ledgers, position, snapshot, deltas)
        except StoreError:
            pass
        else:
            return snapshot, deltas
        kept = []
        for data in deltas if snapshot is None else [snapshot, *deltas]:
            try:
                CursorState.restore(topic.ledgers, position, None, [data])
            except StoreError as error:
                self.lost.append(f"{topic.path}, {name!r}: some of its acknowledgements: {error}")
            else:
                kept.append(data)
        return (snapshot, kept[1:]) if kept and kept[0] is snapshot else (None, kept)

    def _end_holds(self, topic: RepairedTopic, name: str, state: CursorState) -> bool:
        forgotten = [txn for txn in state.held.open if not self.ends.will_end(txn)]
        for txn in forgotten:
            places = _places_held(state.held.open[txn])
            action = self._action_of(txn)
            if action is None:
                self.lost.append(
                    f"{topic.path}, {name!r}: acknowledgements of {places} in transaction {txn}: the end of the transaction "
                    "is not stored anywhere, so these messages are delivered again"
                )
            hold = state.held.end(txn)
            if hold is not None and action is TxnAction.COMMIT:
                _acknowledge(state, hold)
            self.done.append(f"end transaction {txn} on {name!r} of {topic.path}")
        return bool(forgotten)

    def _repair_delayed(self, topic: RepairedTopic, name: str, record_id: str) -> None:
        snapshot, deltas = self.state.cursor_records(record_id)
        records = [data for data in ([] if snapshot is None else [snapshot]) + deltas if _holds_runs(data)]
        if records:
            self.records[record_id] = None, records
        if self.state.is_end_unknown or self.state.may_lack_records(record_id):
            self.lost.append(
                f"{topic.path}, {name!r}: perhaps changes of delivery times (REST): these messages have their original "
                "delivery times"
            )


def _coordinator_of(path: str) -> int | None:
    number = path.removeprefix(LOG_PREFIX)
    return int(number) if number != path and number.isdigit() else None


def _serial_of(cursor_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cursor_id.rpartition("#")[2].split(".") if part.isdigit())


def _last_buffer(records: Iterable[bytes]) -> TransactionBuffer | None:
    for record in records:
        try:
            return TransactionBuffer.restore(record)
        except StoreError:
            continue
    return None


def _holds_runs(record: bytes) -> bool:
    try:
        for _ in stored_runs([record]):
            pass
    except (StoreError, IndexError):
        return False
    return True


def _acknowledge(state: CursorState, hold: Hold) -> None:
    if hold.up_to is not None:
        state.mark_delete_to(hold.up_to)
    for ledger_id, entry_ids in hold.groups:
        state.acknowledge(ledger_id, entry_ids)
    for position, words, count in hold.left_parts:
        state.acknowledge_batch(position, words, count)


def _certain(state: CursorState, snapshot: bytes | None, deltas: list[bytes]) -> str:
    if snapshot is None and not deltas:
        return (
            f"perhaps all acknowledgements after {state.mark_delete_position}, the initial position: these messages are "
            "delivered again"
        )
    kept = sum(len(part.deleted) for part in state.acknowledged_behind())
    behind = f" and of {kept} entries after this position" if kept else ""
    return (
        "perhaps the last acknowledgements, or a seek: the acknowledgements of entries up to "
        f"{state.mark_delete_position}{behind} are certain; other messages are delivered again"
    )


def _places_held(hold: Hold) -> str:
    entries = {ledger_id: bitmap.copy() for ledger_id, bitmap in hold.entries.items()}
    for position in hold.parts:
        entries.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
    up_to = "" if hold.up_to is None else f"all entries up to {hold.up_to}"
    return " and ".join(filter(None, (up_to, _spans(entries) if entries else "")))


def _spans(entries: dict[int, BitMap]) -> str:
    spans: list[str] = []
    for ledger_id, bitmap in sorted(entries.items()):
        first: int | None = bitmap.min() if bitmap else None
        while first is not None:
            last = end_of_run(bitmap, first)
            spans.append(f"{ledger_id}:{first}" if last == first else f"{ledger_id}:{first} to {ledger_id}:{last}")
            first = bitmap.next_set_bit(last + 1) if last < bitmap.max() else None
    return f"positions {', '.join(spans)}"
