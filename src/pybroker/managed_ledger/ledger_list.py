"""The list of the ledgers of one managed ledger with their sizes. It finds the next and previous entry of a position,
and counts the entries between positions.

Entry ids of a ledger are dense (0 to count - 1) and ledgers are ordered by id. While the next ledger is already listed,
pending appends may still be stored in the previous one. Trimming leaves gaps between ledger ids.

The position after the last entry is expressed in the ledger of the last entry, not in a later empty ledger. So it stays
correct wherever the next entry is stored. Positions in deleted ledgers precede the next existing ledger.

Invariants: ledger ids increase; the totals are the sums over the ledgers; `_entries_before[i]` is the number of entries
before ledger i. Once a ledger was added, there is always one, and `last_position` never moves back: the newest entry
exists while any entry does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence

import msgspec

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary, LedgerTotals
from pybroker.model.position import EARLIEST, Position

FORMAT_VERSION = 1


class _StoredLedger(msgspec.Struct, omit_defaults=True):
    """One ledger in the metadata; without counts until it is sealed, since they are not final. `messages`
    is None if the store does not know it.

    `closed`: time of sealing in milliseconds since 1970; absent in documents of earlier versions.
    """

    id: int
    sealed: bool = True
    entries: int = 0
    messages: int | None = 0
    bytes: int = 0
    closed: int = 0


class _StoredVersion(msgspec.Struct):
    """The property that every version has."""

    version: int


class _StoredList(_StoredVersion):
    """The list in the metadata."""

    ledgers: list[_StoredLedger]


class LedgerRow:
    """One ledger, changed only by the list. `closed_ms` (milliseconds since 1970) is valid once the ledger is sealed;
    `message_count` is None if unknown.
    """

    __slots__ = ("closed_ms", "entry_count", "is_sealed", "ledger_id", "message_count", "size_bytes")

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.is_sealed = False
        self.closed_ms = 0
        self.entry_count = 0
        self.message_count: int | None = 0
        self.size_bytes = 0


class LedgerList:
    """The ledgers of one managed ledger, which owns the list; cursors read it."""

    def __init__(self, sealed: Iterable[LedgerSummary] = ()) -> None:
        self._ids: list[int] = []
        self._entries_before: list[int] = []
        self._ledgers: list[LedgerRow] = []
        self.entry_count = 0
        self.size_bytes = 0
        for summary in sealed:
            self.add_ledger(summary.ledger_id)
            self.close_ledger(summary, 0)

    @property
    def message_count(self) -> int | None:
        """The number of messages in all ledgers; None if it is unknown for any ledger."""
        return _message_count(self._ledgers)

    def __len__(self) -> int:
        return len(self._ids)

    # --- changes -----------------------------------------------------------------------------------------------------

    def add_ledger(self, ledger_id: int) -> None:
        assert not self._ids or ledger_id > self._ids[-1], "ledger ids must rise"
        self._entries_before.append(self._entries_before[-1] + self._ledgers[-1].entry_count if self._ids else 0)
        self._ids.append(ledger_id)
        self._ledgers.append(LedgerRow(ledger_id))

    def added(self, ledger_id: int, entry_count: int, message_count: int, size_bytes: int) -> None:
        ledger = self._ledgers[-1]
        if ledger.ledger_id != ledger_id or ledger.message_count is None or ledger.is_sealed:
            index = self._index_of(ledger_id)
            if not self._ledgers[index].is_sealed:  # a summary that was reported before
                self._grow(index, entry_count, message_count, size_bytes)
            return
        # `_grow` of the last ledger, without its call: this runs for each message.
        ledger.entry_count += entry_count
        ledger.message_count += message_count
        ledger.size_bytes += size_bytes
        self.entry_count += entry_count
        self.size_bytes += size_bytes

    def close_ledger(self, summary: LedgerSummary, closed_ms: int) -> None:
        """Set the final counts of a sealed ledger and its closing time in milliseconds since 1970. Idempotent. Raises
        StoreError if the ledger has lost entries that were confirmed.
        """
        index = self._index_of(summary.ledger_id)
        ledger = self._ledgers[index]
        if summary.entry_count < ledger.entry_count:
            raise StoreError(
                f"ledger {summary.ledger_id} has lost entries: it has {summary.entry_count} entries, but "
                f"{ledger.entry_count} entries were confirmed. Restore the ledger from a backup"
            )
        if summary.message_count is not None:
            message_count: int | None = summary.message_count - (ledger.message_count or 0)
        elif summary.entry_count == ledger.entry_count:
            message_count = 0  # Nothing was added to the entries that this owner has counted.
        else:
            message_count = None
        self._grow(
            index,
            summary.entry_count - ledger.entry_count,
            message_count,
            summary.size_bytes - ledger.size_bytes,
        )
        if not ledger.is_sealed:
            ledger.is_sealed = True
            ledger.closed_ms = closed_ms

    def remove(self, ledger_ids: Collection[int]) -> None:
        """Remove sealed ledgers; at least one ledger must stay. Unknown ids are ignored."""
        dropped = set(ledger_ids)
        last = self.last_position
        kept: list[LedgerRow] = []
        before: list[int] = []
        entries_kept = 0
        for ledger in self._ledgers:
            if ledger.ledger_id not in dropped:
                kept.append(ledger)
                before.append(entries_kept)
                entries_kept += ledger.entry_count
                continue
            assert ledger.is_sealed, "a ledger that takes appends stays"
            self.entry_count -= ledger.entry_count
            self.size_bytes -= ledger.size_bytes
        assert kept, "one ledger stays"
        self._ids = [ledger.ledger_id for ledger in kept]
        self._entries_before = before
        self._ledgers = kept
        assert self.last_position >= last, "the newest entry goes last"

    def _grow(self, index: int, entry_count: int, message_count: int | None, size_bytes: int) -> None:
        ledger = self._ledgers[index]
        ledger.entry_count += entry_count
        if ledger.message_count is not None:
            ledger.message_count = None if message_count is None else ledger.message_count + message_count
        ledger.size_bytes += size_bytes
        self.entry_count += entry_count
        self.size_bytes += size_bytes
        for later in range(index + 1, len(self._ids)):
            self._entries_before[later] += entry_count

    def _index_of(self, ledger_id: int) -> int:
        index = bisect_left(self._ids, ledger_id)
        assert self._ids[index : index + 1] == [ledger_id], f"ledger {ledger_id} is not in the list"
        return index

    # --- single ledgers ----------------------------------------------------------------------------------------------

    def ledger_ids(self) -> list[int]:
        return list(self._ids)

    def open_ledger_ids(self) -> list[int]:
        return [ledger.ledger_id for ledger in self._ledgers if not ledger.is_sealed]

    def rows(self) -> Sequence[LedgerRow]:
        """Return all ledgers, oldest first. The sequence is valid until the list changes."""
        return self._ledgers

    def has_ledger(self, ledger_id: int) -> bool:
        return self.row_of(ledger_id) is not None

    def row_of(self, ledger_id: int) -> LedgerRow | None:
        index = bisect_left(self._ids, ledger_id)
        return self._ledgers[index] if self._ids[index : index + 1] == [ledger_id] else None

    def summaries(self) -> list[LedgerSummary]:
        return [
            LedgerSummary(ledger.ledger_id, ledger.entry_count, ledger.message_count, ledger.size_bytes)
            for ledger in self._ledgers
        ]

    def entry_count_of(self, ledger_id: int) -> int:
        """Return the number of entries of a ledger; 0 for an unknown ledger."""
        ids = self._ids
        if ids and ids[-1] == ledger_id:  # the usual case: the ledger that grows
            return self._ledgers[-1].entry_count
        index = bisect_left(ids, ledger_id)
        return self._ledgers[index].entry_count if index < len(ids) and ids[index] == ledger_id else 0

    def entry_counts_of(self, ledger_ids: Collection[int]) -> list[tuple[int, int]]:
        """Return (ledger id, number of entries) of each of these ledgers that is in the list."""
        return [(each, self.entry_count_of(each)) for each in ledger_ids if self.has_ledger(each)]

    def has_entry(self, position: Position) -> bool:
        return 0 <= position.entry_id < self.entry_count_of(position.ledger_id)

    # --- neighbours --------------------------------------------------------------------------------------------------

    @property
    def first_position(self) -> Position:
        """The position of the oldest entry; without entries, the position of the next entry."""
        return self.normalize(EARLIEST)

    @property
    def last_position(self) -> Position:
        """The position of the newest entry; without entries, entry id -1 of the first ledger, or `EARLIEST` without ledgers."""
        for ledger in reversed(self._ledgers):
            if ledger.entry_count:
                return Position(ledger.ledger_id, ledger.entry_count - 1)
        return Position(self._ids[0], -1) if self._ids else EARLIEST

    @property
    def end_position(self) -> Position:
        """The position after the newest entry, in the same ledger. If the next append goes to another ledger,
        `normalize` converts this position to the first position of that ledger.
        """
        last = self.last_position
        return Position(last.ledger_id, last.entry_id + 1)

    def normalize(self, position: Position) -> Position:
        """Return the position of the first entry at or after `position`; `end_position` if there is none."""
        ledger_id, entry_id = position
        ids = self._ids
        if ids and ids[-1] == ledger_id and 0 <= entry_id < self._ledgers[-1].entry_count:
            return position  # the usual case: an entry of the ledger that grows
        for index in range(bisect_left(self._ids, ledger_id), len(self._ids)):
            first_entry_id = max(0, entry_id) if self._ids[index] == ledger_id else 0
            if first_entry_id < self._ledgers[index].entry_count:
                return Position(self._ids[index], first_entry_id)
        return self.end_position

    def entry_from(self, position: Position) -> Position | None:
        """Return the position of the first entry at or after `position`; None if there is none."""
        ledger_id, entry_id = position
        ids = self._ids
        if ids and ids[-1] == ledger_id:  # the usual case: the ledger that grows
            first_entry_id = max(0, entry_id)
            if first_entry_id >= self._ledgers[-1].entry_count:
                return None
            return position if first_entry_id == entry_id else Position(ledger_id, first_entry_id)
        found = self.normalize(position)
        return found if self.has_entry(found) else None

    def is_at_end(self, position: Position) -> bool:
        """Return whether `position` is at or after the end of the last ledger. A position in an earlier ledger is not,
        even if no entry follows it.
        """
        ids = self._ids
        return bool(ids) and ids[-1] == position.ledger_id and position.entry_id >= self._ledgers[-1].entry_count

    def next_position(self, position: Position) -> Position:
        return self.normalize(Position(position.ledger_id, position.entry_id + 1))

    def floor(self, position: Position) -> Position:
        """Return the position of the last entry at or before `position`; entry -1 of the first ledger if there is none."""
        ledger_id, entry_id = position
        index = bisect_left(self._ids, ledger_id)
        if index < len(self._ids) and self._ids[index] == ledger_id:
            last_entry_id = min(entry_id, self._ledgers[index].entry_count - 1)
            if last_entry_id >= 0:
                return Position(ledger_id, last_entry_id)
        for before in range(index - 1, -1, -1):
            if self._ledgers[before].entry_count:
                return Position(self._ids[before], self._ledgers[before].entry_count - 1)
        return Position(self._ids[0], -1) if self._ids else EARLIEST

    def previous_position(self, position: Position) -> Position:
        """Return the position of the last entry before `position`; entry -1 of the first ledger if there is none."""
        return self.floor(Position(position.ledger_id, position.entry_id - 1))

    # --- distances ---------------------------------------------------------------------------------------------------

    def entries_between(self, after: Position, to: Position) -> int:
        """Count the entries after `after`, up to and including `to`."""
        return max(0, self._rank(to) - self._rank(after))

    def entries_after(self, position: Position) -> int:
        if not self._ids:
            return 0
        return self._entries_before[-1] + self._ledgers[-1].entry_count - self._rank(position)

    def totals_behind(self, ledger_id: int) -> LedgerTotals:
        """Return the numbers of messages and bytes of all ledgers with a higher id than `ledger_id`."""
        behind = self._ledgers[bisect_right(self._ids, ledger_id) :]
        return LedgerTotals(_message_count(behind), sum(ledger.size_bytes for ledger in behind))

    def _rank(self, position: Position) -> int:
        """Count the entries of all listed ledgers up to and including `position`."""
        ledger_id, entry_id = position
        ids = self._ids
        if not ids:
            return 0
        index = len(ids) - 1 if ids[-1] == ledger_id else bisect_left(ids, ledger_id)
        if index == len(ids):
            return self._entries_before[-1] + self._ledgers[-1].entry_count
        if ids[index] != ledger_id:
            return self._entries_before[index]
        return self._entries_before[index] + min(max(0, entry_id + 1), self._ledgers[index].entry_count)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def encode(self, without: Collection[int] = ()) -> bytes:
        rows = [
            _StoredLedger(
                ledger.ledger_id,
                entries=ledger.entry_count,
                messages=ledger.message_count,
                bytes=ledger.size_bytes,
                closed=ledger.closed_ms,
            )
            if ledger.is_sealed
            else _StoredLedger(ledger.ledger_id, sealed=False)
            for ledger in self._ledgers
            if ledger.ledger_id not in without
        ]
        return msgspec.json.encode(_StoredList(FORMAT_VERSION, rows))

    @staticmethod
    def decode(data: bytes, now_ms: int) -> LedgerList:
        """Decode a stored list of ledgers. A ledger without a closing time gets `now_ms`, so that retention keeps it
        longer. The size of an open ledger is unknown until `close_ledger`. Raises StoreError.
        """
        try:
            version = msgspec.json.decode(data, type=_StoredVersion).version
            if version > FORMAT_VERSION:
                raise StoreError(
                    f"the list of ledgers in the metadata of the topic has format version {version}, but this broker "
                    f"reads only versions up to {FORMAT_VERSION}: start the newer version that wrote it"
                )
            rows = msgspec.json.decode(data, type=_StoredList).ledgers
        except msgspec.DecodeError as error:
            raise StoreError(
                f"the list of ledgers in the metadata of the topic is damaged: {error}. Restore the metadata from a backup"
            ) from error
        ledgers = LedgerList()
        for row in rows:
            if ledgers._ids and row.id <= ledgers._ids[-1]:
                raise StoreError(
                    f"the list of ledgers in the metadata of the topic is damaged: ledger {row.id} follows ledger "
                    f"{ledgers._ids[-1]}, but ledger ids must rise. Restore the metadata from a backup"
                )
            ledgers.add_ledger(row.id)
            if row.sealed:
                ledgers.close_ledger(LedgerSummary(row.id, row.entries, row.messages, row.bytes), row.closed or now_ms)
        return ledgers


def _message_count(rows: Sequence[LedgerRow]) -> int | None:
    total = 0
    for row in rows:
        if row.message_count is None:
            return None
        total += row.message_count
    return total
