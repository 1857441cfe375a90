"""Transaction buffer: the positions of a topic's messages that belong to open or aborted transactions. Pure.

Each open transaction has one bitmap of entries per ledger. Aborted messages and markers share one bitmap per ledger.

The caller reports messages with `offered` when they are passed to the store, and with `stored` or `failed` afterwards;
it reports markers with `offered_end`, and with `ended` or `end_failed` afterwards. Stored entries are reported in
ledger order, also during recovery.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import msgspec
from pyroaring import BitMap

from pybroker.errors import NotAllowedError, StoreError, TooManyRequests
from pybroker.managed_ledger.max_read_position import without_ledgers
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId, is_passed, passed_by

FORMAT_VERSION = 1
MAX_ENDED_REMEMBERED = 10_000
"""Number of remembered ended transactions above the low-water mark, whose late messages are rejected. Until the low-water mark
passes it, a forgotten transaction could open again."""


class OpenTransaction:
    """Entries of one open transaction, which blocks delivery from its first message on."""

    __slots__ = ("entries", "entry_count", "first", "opened_ms", "owner", "row")

    def __init__(self, first: Position, opened_ms: int, owner: str) -> None:
        self.first = first
        self.opened_ms = opened_ms
        """Time when the first message on this topic was stored, in milliseconds since 1970."""
        self.owner = owner
        self.entries: dict[int, BitMap] = {}
        self.entry_count = 0
        self.row: msgspec.Raw | None = None
        """Cached encoding for snapshots while the transaction is unchanged. Few transactions change between snapshots."""


class _StoredTransaction(msgspec.Struct, array_like=True):
    most: int
    least: int
    first: tuple[int, int]
    opened_ms: int
    owner: str
    entries: list[tuple[int, bytes]]


class _Snapshot(msgspec.Struct, array_like=True):
    """State up to and including the position `up_to`, with bitmaps in the portable Roaring format. Transactions are
    decoded one by one, so that a thread that restores thousands of them releases the interpreter lock.
    """

    version: int
    up_to: tuple[int, int]
    open: list[msgspec.Raw]
    hidden: list[tuple[int, bytes]]
    low_water_marks: dict[int, int]
    ended: list[tuple[int, int]]
    committed_total: int
    aborted_total: int


class _Version(msgspec.Struct, array_like=True):
    version: int


_VERSIONS = msgspec.msgpack.Decoder(_Version)
_SNAPSHOTS = msgspec.msgpack.Decoder(_Snapshot)
_TRANSACTIONS = msgspec.msgpack.Decoder(_StoredTransaction)


class TransactionBuffer:
    """Open and aborted transactions of one topic."""

    def __init__(self, max_open: int = 0) -> None:
        """`max_open`: maximum number of open transactions; 0 for no limit."""
        self.max_open = max_open
        self.open: OrderedDict[TxnId, OpenTransaction] = OrderedDict()
        self.hidden: dict[int, BitMap] = {}
        self.up_to = Position(-1, -1)
        """Position of the last entry that this state covers."""
        self.committed_total = 0
        self.aborted_total = 0
        self._in_flight: dict[TxnId, int] = {}
        self._only_in_flight = 0  # number of transactions without stored messages
        self._ending: set[TxnId] = set()
        self._ended: OrderedDict[TxnId, None] = OrderedDict()
        self._low_water_marks: dict[int, int] = {}
        self._has_late: set[int] = set()  # coordinators that may have late transactions

    @property
    def limit(self) -> Position | None:
        """Position of the first message of the oldest open transaction; None if no transaction is open. Consumers and
        readers must not receive entries from this position on.
        """
        return next(iter(self.open.values())).first if self.open else None

    def is_known(self, txn: TxnId) -> bool:
        """Return whether the transaction has not ended, and has messages on this topic that are stored or being stored."""
        return txn in self.open or txn in self._in_flight

    def has_ended(self, txn: TxnId) -> bool:
        return txn in self._ended or txn in self._ending or self._is_passed(txn)

    @property
    def low_water_marks(self) -> Mapping[int, int]:
        return self._low_water_marks

    def low_water_mark(self, coordinator: int) -> int:
        """Return the highest transaction number (`TxnId.least`) up to which all transactions of this coordinator have
        ended; 0 if unknown.
        """
        return self._low_water_marks.get(coordinator, 0)

    def _is_passed(self, txn: TxnId) -> bool:
        return is_passed(txn.least, self.low_water_mark(txn.most))

    def highest_ids(self) -> dict[int, int]:
        found = dict(self._low_water_marks)
        for most, least in (*self.open, *self._ended):
            found[most] = max(least, found.get(most, 0))
        return found

    # --- messages ----------------------------------------------------------------------------------------------------

    def require_open(self, txn: TxnId) -> None:
        """Check that the transaction accepts messages. Raises NotAllowedError if it has ended, TooManyRequests at the
        limit of open transactions.
        """
        if self.has_ended(txn):
            raise NotAllowedError(f"Transaction {txn} has been ended. Please use a new transaction to send message.")
        if 0 < self.max_open <= len(self.open) + len(self._in_flight) and not self.is_known(txn) and self._is_full():
            raise TooManyRequests(
                f"the topic has {self.max_open} open transactions, which is the maximum "
                "(maxOpenTransactionsPerTopic): end some of them, or try again later"
            )

    def _is_full(self) -> bool:
        return len(self.open) + self._only_in_flight >= self.max_open

    def offered(self, txn: TxnId, entries: int) -> None:
        if not self.is_known(txn):
            self._only_in_flight += 1
        self._in_flight[txn] = self._in_flight.get(txn, 0) + entries

    def failed(self, txn: TxnId, entries: int) -> None:
        left = self._in_flight[txn] - entries
        assert left >= 0, "more results than messages in flight"
        if left:
            self._in_flight[txn] = left
        else:
            del self._in_flight[txn]
            self._only_in_flight -= txn not in self.open

    def stored(self, txn: TxnId, first: Position, entries: int, now_ms: int, owner: str) -> None:
        """Record that `entries` entries of the transaction are durable. `first`: position of the first entry. `now_ms`:
        milliseconds since 1970. `owner`: name of the producer.
        """
        self.failed(txn, entries)
        self.found(txn, first, entries, now_ms, owner)

    def found(self, txn: TxnId, first: Position, entries: int, now_ms: int, owner: str) -> None:
        transaction = self.open.get(txn)
        if transaction is None:
            transaction = self.open[txn] = OpenTransaction(first, now_ms, owner)
            self._only_in_flight -= txn in self._in_flight
        bitmap = transaction.entries.get(first.ledger_id)
        if bitmap is None:
            bitmap = transaction.entries[first.ledger_id] = BitMap()
        bitmap.add_range(first.entry_id, first.entry_id + entries)
        transaction.entry_count += entries
        transaction.row = None
        self._reached(first, entries)

    def passed(self, first: Position, entries: int) -> None:
        self._reached(first, entries)

    def _reached(self, first: Position, entries: int) -> None:
        self.up_to = max(self.up_to, Position(first.ledger_id, first.entry_id + entries - 1))

    # --- ends --------------------------------------------------------------------------------------------------------

    def offered_end(self, txn: TxnId) -> None:
        """Record that the end of the transaction is being stored, so that it accepts no more messages."""
        self._ending.add(txn)

    def end_failed(self, txn: TxnId) -> None:
        """Record that the marker of the transaction's end could not be stored. The transaction stays open."""
        self._ending.discard(txn)
        if self._is_passed(txn):
            self._has_late.add(txn.most)

    def ended(self, txn: TxnId, action: TxnAction, marker: Position | None) -> None:
        """Record the end of the transaction. `marker`: position of the marker of this end; None if no marker was
        stored.
        """
        self._ending.discard(txn)
        transaction = self.open.pop(txn, None)
        if transaction is not None:
            self._only_in_flight += txn in self._in_flight
            if action is TxnAction.ABORT:
                self.aborted_total += 1
                for ledger_id, bitmap in transaction.entries.items():
                    self._hide(ledger_id, bitmap)
            else:
                self.committed_total += 1
        if marker is not None:
            self._hide(marker.ledger_id, BitMap([marker.entry_id]))
            self._reached(marker, 1)
        self.note_ended(txn)

    def note_ended(self, txn: TxnId) -> None:
        """Record the end of a transaction that may have no messages on this topic, so that later messages are rejected."""
        if not self._is_passed(txn):
            self._ended[txn] = None
            self._ended.move_to_end(txn)
            if len(self._ended) > MAX_ENDED_REMEMBERED:
                self._ended.popitem(last=False)

    def raise_low_water_mark(self, coordinator: int, least: int) -> list[TxnId]:
        """Record that all transactions of this coordinator up to the number `least` (`TxnId.least`) have ended. Return
        those of them that are still open on this topic, oldest first; the caller aborts them.

        Later calls return a transaction again, until its end marker is being stored.
        """
        before = self.low_water_mark(coordinator)
        if least > before:
            self._low_water_marks[coordinator] = least
            for txn in passed_by(self._ended, coordinator, before, least):
                del self._ended[txn]
        elif coordinator not in self._has_late:
            return []
        # Transactions below an earlier mark have ended, or are known to remain.
        above = 0 if coordinator in self._has_late else before
        late = [txn for txn in self._late(coordinator, above) if txn not in self._ending]
        (self._has_late.add if late else self._has_late.discard)(coordinator)
        return late

    def _late(self, coordinator: int, above: int) -> list[TxnId]:
        mark = self.low_water_mark(coordinator)
        late = passed_by(self.open, coordinator, above, mark)
        late.sort(key=lambda txn: self.open[txn].first)
        return late + [txn for txn in passed_by(self._in_flight, coordinator, above, mark) if txn not in self.open]

    def recovered(self) -> None:
        """Finish recovery: abort open transactions up to the low-water mark, without storing a marker."""
        for coordinator in self._low_water_marks:
            for txn in self._late(coordinator, 0):
                self.ended(txn, TxnAction.ABORT, None)

    def _hide(self, ledger_id: int, bitmap: BitMap) -> None:
        hidden = self.hidden.get(ledger_id)
        if hidden is None:
            self.hidden[ledger_id] = bitmap.copy()
        else:
            hidden |= bitmap

    def forget_ledgers(self, has_ledger: Callable[[int], bool]) -> None:
        gone = [ledger_id for ledger_id in self.hidden if not has_ledger(ledger_id)]
        for ledger_id in gone:
            del self.hidden[ledger_id]
        for transaction in self.open.values():
            if any(not has_ledger(ledger_id) for ledger_id in transaction.entries):
                transaction.entries = without_ledgers(
                    transaction.entries, [each for each in transaction.entries if not has_ledger(each)]
                )
                transaction.row = None

    # --- snapshots -----------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        snapshot = _Snapshot(
            FORMAT_VERSION,
            (self.up_to.ledger_id, self.up_to.entry_id),
            [_row(txn, each) for txn, each in self.open.items()],
            _encoded(self.hidden.items()),
            self._low_water_marks,
            [(txn.most, txn.least) for txn in self._ended],
            self.committed_total,
            self.aborted_total,
        )
        return msgspec.msgpack.encode(snapshot)

    @staticmethod
    def restore(record: bytes, max_open: int = 0) -> TransactionBuffer:
        """Decode a snapshot. `max_open`: maximum number of open transactions (0: no limit). Raises StoreError if the
        snapshot is invalid.
        """
        try:
            version = _VERSIONS.decode(record).version
            if version > FORMAT_VERSION:
                raise StoreError(
                    f"the stored transaction snapshot of the topic has format version {version}, but this broker reads only "
                    f"versions up to {FORMAT_VERSION}: start the newer version that wrote it"
                )
            found = _SNAPSHOTS.decode(record)
            buffer = TransactionBuffer(max_open)
            buffer.up_to = Position(*found.up_to)
            buffer.hidden = _decoded(found.hidden)
            buffer._low_water_marks = found.low_water_marks
            buffer._ended = OrderedDict((TxnId(*each), None) for each in found.ended)
            buffer.committed_total, buffer.aborted_total = found.committed_total, found.aborted_total
            for each in map(_TRANSACTIONS.decode, found.open):
                transaction = OpenTransaction(Position(*each.first), each.opened_ms, each.owner)
                transaction.entries = _decoded(each.entries)
                transaction.entry_count = sum(map(len, transaction.entries.values()))
                buffer.open[TxnId(each.most, each.least)] = transaction
        except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
            raise StoreError(
                f"the stored transaction snapshot of the topic ({len(record)} bytes) is damaged: {error}. Run `pybroker ledger "
                "verify`"
            ) from error
        return buffer

    def check_invariants(self) -> None:
        firsts = [each.first for each in self.open.values()]
        assert firsts == sorted(firsts), "transactions are not sorted by their first messages"
        seen: dict[int, BitMap] = {ledger_id: bitmap.copy() for ledger_id, bitmap in self.hidden.items()}
        for txn, each in self.open.items():
            assert txn not in self._ended, "an ended transaction is open"
            for ledger_id, bitmap in each.entries.items():
                assert not seen.get(ledger_id, BitMap()) & bitmap, "an entry is in two transactions, or is aborted"
                seen[ledger_id] = seen.get(ledger_id, BitMap()) | bitmap
        assert all(count > 0 for count in self._in_flight.values())
        assert self._only_in_flight == sum(txn not in self.open for txn in self._in_flight)


def _row(txn: TxnId, transaction: OpenTransaction) -> msgspec.Raw:
    if transaction.row is None:
        stored = _StoredTransaction(
            txn.most,
            txn.least,
            (transaction.first.ledger_id, transaction.first.entry_id),
            transaction.opened_ms,
            transaction.owner,
            _encoded(transaction.entries.items()),
        )
        transaction.row = msgspec.Raw(msgspec.msgpack.encode(stored))
    return transaction.row


def _encoded(bitmaps: Iterable[tuple[int, BitMap]]) -> list[tuple[int, bytes]]:
    rows = []
    for ledger_id, bitmap in bitmaps:
        bitmap.run_optimize()
        rows.append((ledger_id, bitmap.serialize()))
    return rows


def _decoded(rows: list[tuple[int, bytes]]) -> dict[int, BitMap]:
    return {ledger_id: BitMap.deserialize(data) for ledger_id, data in rows}
