"""Pending transaction acks of one cursor: acknowledgements of open transactions, applied by a commit, discarded by an
abort. Pure.

They are part of the cursor's state and records, so a commit is one record that ends the transaction and acknowledges
its messages.

Their part of a record is MessagePack: a list of changes in order. A whole state has one change of kind 2 for each
coordinator, one of kind 1 for each remembered ended transaction, and one of kind 0 for each open transaction. So a
stored part does not mean that acks are pending.

* `[0, most, least, [[ledger, bitmap]...], [[ledger, entry, held bits, messages]...], up_to or nil]`: pending from now on
* `[1, most, least]`: ended
* `[2, most, least]`: all transactions of that coordinator up to `least` have ended, and their acks are removed

Invariants: no message has pending acks of two transactions; only one transaction has a cumulative ack, and then no
other has acks that it covers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec
from pyroaring import BitMap, FrozenBitMap

from pybroker.model import ack_set
from pybroker.model.position import MAX_ENTRY_ID, Position
from pybroker.model.txn_id import TxnId, is_passed, passed_by

_HELD, _ENDED, _LOW_WATER_MARK = range(3)
MAX_ENDED_REMEMBERED = 1000
"""The latest ended transactions above the low-water mark are remembered up to this number; their late acks are refused.
"""
HOLDS_PER_STEP = 256
"""Transactions or messages between two pauses of `holders_of`, which take a fraction of a millisecond."""
_NO_PARTS: Mapping[int, int] = {}
_NO_ENTRIES = FrozenBitMap()

Groups = Sequence[tuple[int, Sequence[int]]]
Parts = Sequence[tuple[Position, Sequence[int], int]]
"""Position, bit set of the messages that stay unacknowledged, and number of messages in the batch."""


class Hold:
    """The pending acks of one open transaction."""

    __slots__ = ("entries", "first", "parts", "up_to")

    def __init__(self) -> None:
        self.first: Position | None = None
        self.entries: dict[int, BitMap] = {}
        self.parts: dict[Position, tuple[int, int]] = {}
        """Pending messages of batches: their bits, and the number of messages in the batch."""
        self.up_to: Position | None = None
        """The position of a cumulative ack."""

    @property
    def groups(self) -> list[tuple[int, list[int]]]:
        return [(ledger_id, list(bitmap)) for ledger_id, bitmap in self.entries.items()]

    @property
    def left_parts(self) -> list[tuple[Position, list[int], int]]:
        """Return the batches of which the transaction has acknowledged some messages, as (position, ack set, number of
        messages in the batch). The ack set contains the messages that the transaction has not acknowledged.
        """
        return [
            (position, ack_set.to_words(ack_set.full(count) & ~bits), count)
            for position, (bits, count) in self.parts.items()
        ]

    @property
    def entry_count(self) -> int:
        """The number of entries with a pending ack, without the entries of a cumulative ack."""
        return sum(map(len, self.entries.values())) + len(self.parts)


class _PartHolders:
    """The transactions with pending acks of messages of each batch. Most batches have one, which is stored without a
    collection.
    """

    __slots__ = ("_by_position",)

    def __init__(self) -> None:
        self._by_position: dict[Position, TxnId | dict[TxnId, None]] = {}

    def of(self, position: Position) -> Iterable[TxnId]:
        found = self._by_position.get(position, ())
        return (found,) if isinstance(found, TxnId) else found

    def add(self, position: Position, txn: TxnId) -> None:
        found = self._by_position.setdefault(position, txn)
        if isinstance(found, dict):
            found[txn] = None
        elif found != txn:
            self._by_position[position] = {found: None, txn: None}

    def remove(self, position: Position, txn: TxnId) -> None:
        found = self._by_position[position]
        if isinstance(found, dict):
            del found[txn]
        if not isinstance(found, dict) or not found:
            del self._by_position[position]

    def as_dict(self) -> dict[Position, set[TxnId]]:
        return {position: set(self.of(position)) for position in self._by_position}


class _FirstPositions:
    """A heap of the first position of each open transaction. An outdated position is dropped when it reaches the
    top.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[Position, TxnId]] = []

    def add(self, position: Position, txn: TxnId) -> None:
        heappush(self._heap, (position, txn))

    def tidy(self, open_holds: Mapping[TxnId, Hold]) -> None:
        """Rebuild the heap if it is larger than twice the number of open transactions plus 64."""
        if len(self._heap) > 2 * len(open_holds) + 64:
            self._heap = [(hold.first, txn) for txn, hold in open_holds.items() if hold.first is not None]
            heapify(self._heap)

    def without(self, own: TxnId, open_holds: Mapping[TxnId, Hold]) -> Position | None:
        heap, own_row = self._heap, None
        found = None
        while heap:
            position, txn = heap[0]
            hold = open_holds.get(txn)
            if hold is not None and hold.first == position:
                if txn != own:
                    found = position
                    break
                own_row = heap[0]
            heappop(heap)
        if own_row is not None:
            heappush(heap, own_row)
        return found


class PendingTransactionAcks:
    """The pending transaction acks of one cursor."""

    def __init__(self) -> None:
        self.open: dict[TxnId, Hold] = {}
        self._entries: dict[int, BitMap] = {}  # of all
        self._parts: dict[int, dict[int, int]] = {}  # of all transactions: bits of pending messages
        self._part_holders = _PartHolders()
        self._firsts = _FirstPositions()
        self.cumulative: TxnId | None = None
        """The transaction that holds a cumulative one."""
        self._ended: dict[TxnId, None] = {}
        self._low_water_marks: dict[int, int] = {}
        self._changes: list[list[Any]] = []

    def __bool__(self) -> bool:
        return bool(self.open)

    # --- queries -----------------------------------------------------------------------------------------------------

    def has_ended(self, txn: TxnId) -> bool:
        return txn in self._ended or self._is_below_mark(txn)

    def _is_below_mark(self, txn: TxnId) -> bool:
        return is_passed(txn.least, self._low_water_marks.get(txn.most, 0))

    @property
    def was_used(self) -> bool:
        return bool(self.open or self._ended or self._low_water_marks)

    @property
    def low_water_marks(self) -> Mapping[int, int]:
        """The low-water mark of each transaction coordinator: all its transactions up to this sequence number have
        ended.
        """
        return self._low_water_marks

    def highest_ids(self) -> dict[int, int]:
        """Return, for each transaction coordinator, the highest known sequence number: the maximum of its open
        transactions, its remembered ended transactions, and its low-water mark.
        """
        found = dict(self._low_water_marks)
        for most, least in (*self.open, *self._ended):
            found[most] = max(least, found.get(most, 0))
        return found

    @property
    def up_to(self) -> Position | None:
        return None if self.cumulative is None else self.open[self.cumulative].up_to

    def among(self, ledger_id: int, entry_ids: Sequence[int]) -> BitMap:
        """Return the entries among `entry_ids` (ascending) that an open transaction has acknowledged as a whole."""
        up_to, bitmap = self.up_to, self._entries.get(ledger_id)
        if bitmap is None and (up_to is None or ledger_id > up_to.ledger_id):
            return BitMap()
        asked = BitMap(entry_ids)
        found = BitMap() if bitmap is None else asked & bitmap
        if up_to is not None and ledger_id <= up_to.ledger_id:
            if ledger_id < up_to.ledger_id:
                return asked
            asked.remove_range(up_to.entry_id + 1, max(up_to.entry_id, entry_ids[-1]) + 1)
            found |= asked
        return found

    def parts_of(self, ledger_id: int) -> Mapping[int, int]:
        """Return the batches of a ledger that open transactions have partly acknowledged: by entry id, a bit set of the
        acknowledged messages.
        """
        return self._parts.get(ledger_id, _NO_PARTS)

    def holder_of(self, position: Position, bits: int = -1) -> TxnId | None:
        """Return the open transaction that has acknowledged the entry at `position` or one of its messages; None if
        there is none. `bits`: a bit set of the batch indexes to check, by default all. For many messages use
        `holders_of`.
        """
        up_to = self.up_to
        if up_to is not None and position <= up_to:
            return self.cumulative
        for txn in self._part_holders.of(position):
            if self.open[txn].parts[position][0] & bits:
                return txn
        is_entry = 0 <= position.entry_id <= MAX_ENTRY_ID
        if is_entry and position.entry_id in self._entries.get(position.ledger_id, _NO_ENTRIES):
            for txn, hold in self.open.items():
                if position.entry_id in hold.entries.get(position.ledger_id, _NO_ENTRIES):
                    return txn
        return None

    def holders_of(self, messages: Sequence[tuple[Position, int]]) -> Generator[None, None, list[TxnId | None]]:
        """Return, for each of `messages`, the open transaction that has acknowledged it, or None. A message is a position
        and an index in its batch; the index -1 stands for any message of the entry.

        The generator pauses so that the event loop stays responsive; the result may miss changes during a pause.
        """
        whole = yield from self._holders_of_whole({position for position, _ in messages})
        asked_bits: dict[Position, int] = {}
        for position, index in messages:
            if position not in whole:
                asked_bits[position] = asked_bits.get(position, 0) | (0 if index < 0 else 1 << index)
        parts: dict[tuple[Position, int], TxnId] = {}
        for position, bits in asked_bits.items():
            for txn in self._part_holders.of(position):
                parts[position, -1] = txn
                for index in ack_set.indexes(self.open[txn].parts[position][0] & bits):
                    parts[position, index] = txn
            yield
        return [whole.get(position) or parts.get((position, index)) for position, index in messages]

    def _holders_of_whole(self, positions: Iterable[Position]) -> Generator[None, None, dict[Position, TxnId]]:
        """Return the transactions with a pending ack of these whole entries, individual or cumulative."""
        found: dict[Position, TxnId] = {}
        left: dict[int, BitMap] = {}
        up_to, cumulative = self.up_to, self.cumulative
        for position in positions:
            if up_to is not None and cumulative is not None and position <= up_to:
                found[position] = cumulative
            elif position.entry_id in self._entries.get(position.ledger_id, _NO_ENTRIES):
                left.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        for count, (txn, hold) in enumerate([*self.open.items()] if left else ()):
            for ledger_id in [*left] if len(left) <= len(hold.entries) else [*hold.entries]:
                taken = hold.entries.get(ledger_id, _NO_ENTRIES) & left.get(ledger_id, _NO_ENTRIES)
                if taken:
                    found.update((Position(ledger_id, entry_id), txn) for entry_id in taken)
                    left[ledger_id] -= taken
                    if not left[ledger_id]:
                        del left[ledger_id]
            if not left:
                break
            if count % HOLDS_PER_STEP == HOLDS_PER_STEP - 1:
                yield
        return found

    def conflict(self, txn: TxnId, up_to: Position | None, groups: Groups, parts: Parts) -> Position | None:
        """Check an acknowledgement by the transaction `txn`: a cumulative ack up to `up_to`, or, if that is None, an
        individual ack of the entries `groups` (ids by ledger). `parts`: its partly acknowledged batches; a cumulative
        ack has one if it ends inside a batch.

        Return one of its positions that an open transaction, perhaps `txn` itself, has already acknowledged; None if
        there is none. A cumulative ack may cover individual acks of the same transaction.
        """
        if up_to is not None:
            return self._conflict_up_to(txn, up_to, parts)
        held_up_to = self.up_to
        before: dict[int, BitMap] = {}  # in groups of the same ledger
        for ledger_id, entry_ids in groups:
            asked = BitMap(entry_ids)
            if len(asked) < len(entry_ids):
                return Position(ledger_id, _first_repeated(entry_ids))
            if ledger_id in before:
                if repeated := asked & before[ledger_id]:
                    return Position(ledger_id, repeated.min())
                before[ledger_id] |= asked
            else:
                before[ledger_id] = asked
            if held_up_to is not None and (ledger_id, asked.min()) <= held_up_to:
                return Position(ledger_id, asked.min())
            in_parts = self.parts_of(ledger_id)
            held = asked & self._entries.get(ledger_id, _NO_ENTRIES)
            held |= BitMap(entry_id for entry_id in (asked if in_parts else ()) if entry_id in in_parts)
            if held:
                return Position(ledger_id, held.min())
        seen: dict[Position, int] = {}
        for position, words, count in parts:
            bits = ack_set.full(count) & ~ack_set.left_of(count, words)
            is_covered = held_up_to is not None and position <= held_up_to
            taken = seen.get(position, 0) | self._bits_of_others(None, position)
            if is_covered or self._is_whole_of_other(None, position) or taken & bits:
                return position
            seen[position] = seen.get(position, 0) | bits
        return None

    def _conflict_up_to(self, txn: TxnId, up_to: Position, parts: Parts) -> Position | None:
        """Return the result of `conflict` for a cumulative ack.

        `parts` has the batch at which the ack ends, if it ends inside a batch.
        """
        held_up_to, own = self.up_to, self.open.get(txn)
        if held_up_to is not None and self.cumulative != txn:
            return held_up_to
        if (found := self._held_by_others_up_to(txn, up_to)) is not None:
            return found
        says_more = held_up_to is None or up_to > held_up_to
        for position, words, count in parts:
            bits = ack_set.full(count) & ~ack_set.left_of(count, words)
            own_bits = 0 if own is None or position not in own.parts else own.parts[position][0]
            if self._is_whole_of_other(own, position) or self._bits_of_others(own, position) & bits:
                return position
            says_more = says_more or bool(bits & ~own_bits)
        return None if says_more else up_to

    def _held_by_others_up_to(self, own: TxnId, up_to: Position) -> Position | None:
        found = self._firsts.without(own, self.open)
        return found if found is not None and found <= up_to else None

    def _is_whole_of_other(self, own: Hold | None, position: Position) -> bool:
        if position.entry_id not in self._entries.get(position.ledger_id, _NO_ENTRIES):
            return False
        return own is None or position.entry_id not in own.entries.get(position.ledger_id, _NO_ENTRIES)

    def _bits_of_others(self, own: Hold | None, position: Position) -> int:
        bits = self.parts_of(position.ledger_id).get(position.entry_id, 0)
        return bits if own is None or position not in own.parts else bits & ~own.parts[position][0]

    # --- changing ----------------------------------------------------------------------------------------------------

    def hold(self, txn: TxnId, up_to: Position | None, groups: Groups, parts: Parts) -> None:
        """Add an acknowledgement to the pending acks of the transaction `txn`. `conflict`, called with the same
        arguments, must have returned None.
        """
        bitmaps = [(ledger_id, BitMap(entry_ids)) for ledger_id, entry_ids in groups if entry_ids]
        bits = [
            (position, ack_set.full(count) & ~ack_set.left_of(count, words), count) for position, words, count in parts
        ]
        self._hold(txn, up_to, bitmaps, bits)
        self._changes.append(_held_row(txn, up_to, bitmaps, bits))

    def _hold(
        self,
        txn: TxnId,
        up_to: Position | None,
        bitmaps: Sequence[tuple[int, BitMap]],
        parts: Sequence[tuple[Position, int, int]],
    ) -> None:
        hold = self.open.get(txn)
        if hold is None:
            hold = self.open[txn] = Hold()
        first = hold.first
        for ledger_id, bitmap in bitmaps:
            first = _earlier(first, Position(ledger_id, bitmap.min()))
            for of in (hold.entries, self._entries):
                if ledger_id in of:
                    of[ledger_id] |= bitmap
                else:
                    of[ledger_id] = bitmap.copy()
        for position, bits, count in parts:
            first = _earlier(first, position)
            self._part_holders.add(position, txn)
            hold.parts[position] = (hold.parts.get(position, (0, 0))[0] | bits, count)
            by_entry = self._parts.setdefault(position.ledger_id, {})
            by_entry[position.entry_id] = by_entry.get(position.entry_id, 0) | bits
        if first is not None and first != hold.first:
            hold.first = first
            self._firsts.add(first, txn)
            self._firsts.tidy(self.open)
        if up_to is not None:
            hold.up_to = up_to if hold.up_to is None else max(hold.up_to, up_to)
            self.cumulative = txn

    def end(self, txn: TxnId) -> Hold | None:
        """Remove and return the pending acks of a transaction that has ended; None if it has none. Later acks of the
        transaction are refused. The end is recorded even without pending acks: otherwise a late ack after a restart
        would stay pending.
        """
        if txn in self.open or not self.has_ended(txn):
            self._changes.append([_ENDED, txn.most, txn.least])
        return self._end(txn)

    def _end(self, txn: TxnId) -> Hold | None:
        if not self._is_below_mark(txn):
            self._ended[txn] = None
            if len(self._ended) > MAX_ENDED_REMEMBERED:
                del self._ended[next(iter(self._ended))]
        hold = self.open.pop(txn, None)
        if hold is None:
            return None
        for ledger_id, bitmap in hold.entries.items():
            left = self._entries[ledger_id] - bitmap
            if left:
                self._entries[ledger_id] = left
            else:
                del self._entries[ledger_id]
        self._firsts.tidy(self.open)
        for position, (bits, _) in hold.parts.items():
            self._part_holders.remove(position, txn)
            by_entry = self._parts[position.ledger_id]
            by_entry[position.entry_id] &= ~bits
            if not by_entry[position.entry_id]:
                del by_entry[position.entry_id]
                if not by_entry:
                    del self._parts[position.ledger_id]
        if self.cumulative == txn:
            self.cumulative = None
        return hold

    def raise_low_water_mark(self, coordinator: int, least: int) -> list[TxnId]:
        """Record that all transactions of a coordinator up to sequence number `least` have ended. Return those that
        still have pending acks; the caller must call `end` for each.
        """
        if least <= self._low_water_marks.get(coordinator, 0):
            return []
        late = self._raise(coordinator, least)
        self._changes.append([_LOW_WATER_MARK, coordinator, least])
        return late

    def _raise(self, coordinator: int, least: int) -> list[TxnId]:
        before = self._low_water_marks.get(coordinator, 0)
        if least <= before:
            return []
        self._low_water_marks[coordinator] = least
        for txn in passed_by(self._ended, coordinator, before, least):
            del self._ended[txn]
        return passed_by(self.open, coordinator, before, least)

    def clear(self) -> None:
        for txn in list(self.open):
            self._end(txn)
            self._ended.pop(txn, None)

    # --- records -----------------------------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def take_changes(self) -> bytes:
        changes, self._changes = self._changes, []
        return msgspec.msgpack.encode(changes) if changes else b""

    def whole(self) -> bytes:
        rows = [[_LOW_WATER_MARK, *each] for each in self._low_water_marks.items()]
        rows += [[_ENDED, *txn] for txn in self._ended]
        rows += [
            _held_row(txn, hold.up_to, list(hold.entries.items()), _part_rows(hold))
            for txn, hold in self.open.items()
            if not self._is_below_mark(txn)
        ]
        return msgspec.msgpack.encode(rows) if rows else b""

    def apply(self, record: bytes) -> None:
        """Apply stored changes when the cursor is loaded. `record`: the part of a cursor record that contains changes of
        pending transaction acks. Raises ValueError if it is damaged.
        """
        try:
            for kind, most, least, *rest in msgspec.msgpack.decode(record, type=list[list[Any]]):
                txn = TxnId(int(most), int(least))
                if kind == _LOW_WATER_MARK:
                    for late in self._raise(*txn):
                        self._end(late)
                elif kind == _ENDED:
                    self._end(txn)
                elif not self._is_below_mark(txn):
                    entries, parts, up_to = rest
                    bitmaps = [(int(ledger_id), BitMap.deserialize(data)) for ledger_id, data in entries]
                    self._hold(
                        txn,
                        None if up_to is None else Position(*up_to),
                        bitmaps,
                        [
                            (Position(ledger_id, entry_id), int.from_bytes(bits, "little"), count)
                            for ledger_id, entry_id, bits, count in parts
                        ],
                    )
        except (msgspec.MsgspecError, TypeError, KeyError) as error:
            raise ValueError(
                f"the MessagePack value of the pending transaction acks cannot be decoded: {error}"
            ) from error

    def check_invariants(self) -> None:
        entries: dict[int, BitMap] = {}
        parts: dict[int, dict[int, int]] = {}
        for hold in self.open.values():
            for ledger_id, bitmap in hold.entries.items():
                assert bitmap, "an empty bitmap is kept"
                assert not bitmap & entries.get(ledger_id, BitMap()), (
                    "two transactions have acknowledged the same entry"
                )
                entries[ledger_id] = entries.get(ledger_id, BitMap()) | bitmap
            for position, (bits, _) in hold.parts.items():
                by_entry = parts.setdefault(position.ledger_id, {})
                assert not by_entry.get(position.entry_id, 0) & bits, (
                    "two transactions have acknowledged the same message"
                )
                by_entry[position.entry_id] = by_entry.get(position.entry_id, 0) | bits
        assert entries == self._entries
        assert parts == self._parts
        holders: dict[Position, set[TxnId]] = {}
        for txn, hold in self.open.items():
            for position in hold.parts:
                holders.setdefault(position, set()).add(txn)
            held = [Position(ledger_id, bitmap.min()) for ledger_id, bitmap in hold.entries.items()]
            assert hold.first == min([*held, *hold.parts], default=None)
        assert holders == self._part_holders.as_dict()
        firsts = {txn: hold.first for txn, hold in self.open.items() if hold.first is not None}
        for own in (TxnId(0, 0), *firsts):
            others = [first for txn, first in firsts.items() if txn != own]
            assert self._firsts.without(own, self.open) == min(others, default=None)
        cumulative = [txn for txn, hold in self.open.items() if hold.up_to is not None]
        assert cumulative == ([] if self.cumulative is None else [self.cumulative])


def _earlier(one: Position | None, other: Position) -> Position:
    return other if one is None else min(one, other)


def _first_repeated(entry_ids: Sequence[int]) -> int:
    seen: set[int] = set()
    for entry_id in entry_ids:
        if entry_id in seen:
            return entry_id
        seen.add(entry_id)
    raise AssertionError("no entry id occurs twice")


def _part_rows(hold: Hold) -> Iterator[tuple[Position, int, int]]:
    for position, (bits, count) in hold.parts.items():
        yield position, bits, count


def _held_row(
    txn: TxnId,
    up_to: Position | None,
    bitmaps: Sequence[tuple[int, BitMap]],
    parts: Iterator[tuple[Position, int, int]] | Sequence[tuple[Position, int, int]],
) -> list[Any]:
    return [
        _HELD,
        txn.most,
        txn.least,
        [[ledger_id, bitmap.serialize()] for ledger_id, bitmap in bitmaps],
        [[*position, bits.to_bytes((bits.bit_length() + 7) // 8, "little"), count] for position, bits, count in parts],
        None if up_to is None else list(up_to),
    ]
