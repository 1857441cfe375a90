"""The acknowledgements of one subscription: mark-delete position, individually deleted entries, partly acknowledged
batches.

Individually deleted entries are in one bitmap per ledger, created by the first acknowledgement out of order and removed
when the gap in front of it closes: ten million alternating holes take a few megabytes. A partly acknowledged batch has
a bit set (`model/ack_set.py`). A trimmed ledger has no bitmap and counts as deleted.

Invariants: the entry after the mark-delete position is not acknowledged; bitmaps and bit sets contain only existing
entries after it; a deleted entry has no bit set; `_hole_count` is the number of deleted entries in the bitmaps, so the
backlog is exact without a scan.

The caller stores the state: it takes the changes since the last call as a delta, or the whole state as a snapshot
(`cursor_record.py`). A snapshot and the deltas after it restore the state, even if the snapshot already contains the
deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord, encode_changes, encode_whole
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.pending_transaction_acks import PendingTransactionAcks
from pybroker.model import ack_set
from pybroker.model.entry_runs import end_of_run
from pybroker.model.position import MAX_ENTRY_ID, Position

DEFAULT_MAX_RANGES_SHOWN = 10_000

AckSets = dict[int, dict[int, int]]  # ledger id → entry id → bits; no inner dict is empty


@dataclass(frozen=True, slots=True)
class AcknowledgedPart:
    """The acknowledgements of one ledger after the mark-delete position: the ids of acknowledged entries (`deleted`),
    and of partly acknowledged batches (`partial`), which have `remaining_messages` unacknowledged messages together.
    """

    ledger_id: int
    deleted: BitMap
    partial: BitMap
    remaining_messages: int


class CursorState:
    """The acknowledgement state of one cursor. `ledgers` is the managed ledger's list of ledgers."""

    def __init__(self, ledgers: LedgerList, mark_delete_position: Position) -> None:
        self._ledgers = ledgers
        self.mark_ledger_id = mark_delete_position.ledger_id
        self._mark_entry_id = mark_delete_position.entry_id
        self.holes: dict[int, BitMap] = {}
        """The individually deleted entries by ledger id, changed by this class alone. No bitmap is empty."""
        self._hole_count = 0
        self.ack_sets: AckSets = {}
        """The bit sets of partly acknowledged batches, changed by this class alone."""
        # The changes since the last delta. After a reset, the next delta contains the whole state and no changes are
        # listed, so no list grows for a cursor whose deltas are never taken.
        self._is_changed = False
        self._is_replaced = True
        self._new_holes: dict[int, BitMap] = {}
        self._new_ack_sets: set[Position] = set()
        self.held = PendingTransactionAcks()
        """`held_changed` reports a change."""

    @property
    def mark_delete_position(self) -> Position:
        return Position(self.mark_ledger_id, self._mark_entry_id)

    @property
    def backlog_entries(self) -> int:
        return self._ledgers.entries_after(self.mark_delete_position) - self._hole_count

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def acknowledge(self, ledger_id: int, entry_ids: Sequence[int]) -> int:
        """Acknowledge entries of one ledger, in any order. Repeated and unknown ids are ignored. Return the number of
        newly deleted entries.
        """
        if len(entry_ids) == 1:
            return self._delete_one(ledger_id, entry_ids[0])
        entries = self._existing(ledger_id, entry_ids)
        if not entries:
            return 0
        deleted = self._delete_run(ledger_id, entries)
        if not deleted:
            deleted = self._delete_out_of_order(ledger_id, entries)
        return deleted

    def acknowledge_batch(self, position: Position, words: Sequence[int], message_count: int) -> int:
        """Acknowledge the messages of a batch whose bits in `words` are 0. Return the number of messages that are still
        unacknowledged; 0 if the entry is deleted or never existed.

        `message_count` should be taken from the stored entry. A client may send a larger number, with which the entry
        would never be deleted.
        """
        ledger_id, entry_id = position
        if not self._ledgers.has_entry(position) or self.is_deleted(ledger_id, entry_id):
            return 0
        sets = self.ack_sets.get(ledger_id)
        before = None if sets is None else sets.get(entry_id)
        after = ack_set.left_of(message_count, words)
        if before is not None:
            after &= before
        if not after:
            self._delete_one(ledger_id, entry_id)
            return 0
        # Without a set before, all of the batch was unacknowledged.
        if after != before if before is not None else after.bit_count() != message_count:
            if sets is None:
                sets = self.ack_sets[ledger_id] = {}
            sets[entry_id] = after
            self._new_ack_sets.add(position)
            self._is_changed = True
        return after.bit_count()

    def mark_delete_to(self, position: Position) -> int:
        """Acknowledge all entries up to and including `position`. Return the number of newly deleted entries.

        A position after the last entry is ignored, so that a wrong position does not delete the whole backlog.
        """
        if position > self._ledgers.last_position:
            return 0
        target = self._ledgers.floor(position)
        if target.entry_id < 0 or target <= self.mark_delete_position:
            return 0
        before = self.backlog_entries
        self._move_mark(target)
        self._advance()
        return before - self.backlog_entries

    def move_mark_over_gone(self, position: Position) -> None:
        """Move the mark-delete position forward to `position` if all entries in between, including the entry at
        `position`, have been trimmed.
        """
        mark = self.mark_delete_position
        if position > mark and not self._ledgers.entries_between(mark, position):
            self._move_mark(position)

    def mark_delete_to_batch(self, position: Position, words: Sequence[int], message_count: int) -> int:
        """Acknowledge the entries before `position`, and the messages of the batch at `position` whose bits in `words`
        are 0. Return the number of newly deleted entries.
        """
        if not self._ledgers.has_entry(position):
            return 0
        before = self.backlog_entries
        self.mark_delete_to(self._ledgers.previous_position(position))
        self.acknowledge_batch(position, words, message_count)
        return before - self.backlog_entries

    def reset(self, mark_delete_position: Position) -> None:
        """Set the mark-delete position, and forget all acknowledgements after it."""
        self.mark_ledger_id, self._mark_entry_id = mark_delete_position
        self.holes.clear()
        self._hole_count = 0
        self.ack_sets.clear()
        self.held.clear()
        self.forget_deltas()

    def held_changed(self) -> None:
        """Record that the pending transaction acks (`held`) have changed and must be stored."""
        self._is_changed = True

    def forget_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Remove the acknowledgements of trimmed ledgers. Call this only after the list of ledgers has been stored
        without these ledgers: the next stored state of the cursor lacks their acknowledgements.
        """
        for ledger_id in ledger_ids:
            holes = self.holes.pop(ledger_id, None)
            if holes is not None:
                self._hole_count -= len(holes)
            self._new_holes.pop(ledger_id, None)
            self.ack_sets.pop(ledger_id, None)
        self._advance()

    # --- queries -----------------------------------------------------------------------------------------------------

    def is_deleted(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether the entry is acknowledged or trimmed."""
        if Position(ledger_id, entry_id) <= self.mark_delete_position or not self._ledgers.has_ledger(ledger_id):
            return True
        holes = self.holes.get(ledger_id)
        return holes is not None and entry_id <= MAX_ENTRY_ID and entry_id in holes

    def has_deleted_all_of(self, ledger_id: int) -> bool:
        entry_count = self._ledgers.entry_count_of(ledger_id)
        if Position(ledger_id, entry_count - 1) <= self.mark_delete_position:
            return True
        holes = self.holes.get(
            ledger_id
        )  # The mark-delete position's own ledger has a bitmap only if some of its entries are not
        # acknowledged.
        return holes is not None and len(holes) == entry_count

    def undeleted_in(self, ledger_id: int, first_entry_id: int, count: int) -> list[int] | None:
        """Return the ids of the unacknowledged entries among the `count` entries from `first_entry_id` on; None if all
        are unacknowledged, which is the usual case.
        """
        end = first_entry_id + count
        start = first_entry_id
        if ledger_id < self.mark_ledger_id or not self._ledgers.entry_count_of(ledger_id):
            return []
        if ledger_id == self.mark_ledger_id and first_entry_id <= self._mark_entry_id:
            start = min(end, self._mark_entry_id + 1)
        holes = self.holes.get(ledger_id)
        if holes is None or not holes.range_cardinality(start, end):
            return None if start == first_entry_id else list(range(start, end))
        return list(BitMap(range(start, end)) - holes)

    def first_undeleted(self, position: Position) -> Position:
        """Return the position of the first unacknowledged entry at or after `position`; if there is none, the position
        of the next entry of the topic.
        """
        return self.first_wanted(position, {})

    def first_wanted(self, position: Position, unwanted: Mapping[int, BitMap]) -> Position:
        """Return the position of the first entry at or after `position` that is neither acknowledged nor among the
        entries `unwanted` (by ledger id); if there is none, the position of the next entry of the topic.
        """
        found = self._ledgers.normalize(max(position, self._ledgers.next_position(self.mark_delete_position)))
        while True:
            ledger_id, entry_id = found
            bitmaps = [each for each in (self.holes.get(ledger_id), unwanted.get(ledger_id)) if each is not None]
            if all(entry_id not in each for each in bitmaps):
                return found
            passed = bitmaps[0] if len(bitmaps) == 1 else bitmaps[0] | bitmaps[1]
            found = self._ledgers.next_position(Position(ledger_id, end_of_run(passed, entry_id)))

    def ack_set_of(self, ledger_id: int, entry_id: int) -> list[int] | None:
        """Return the ack set of a partly acknowledged batch as 64-bit words; None for any other entry."""
        sets = self.ack_sets.get(ledger_id)
        bits = None if sets is None else sets.get(entry_id)
        return None if bits is None else ack_set.to_words(bits)

    def ack_sets_in(self, ledger_id: int, first_entry_id: int, count: int) -> list[list[int] | None] | None:
        """Return the ack sets of the `count` entries from `first_entry_id` on, None for each entry without one. Return
        None if no entry has an ack set, which is the usual case.
        """
        sets = self.ack_sets.get(ledger_id)
        entry_ids = range(first_entry_id, first_entry_id + count)
        if sets is None or sets.keys().isdisjoint(entry_ids):
            return None
        return [ack_set.to_words(sets[entry_id]) if entry_id in sets else None for entry_id in entry_ids]

    def remaining_messages(self, ledger_id: int, entry_id: int) -> int:
        """Return the number of unacknowledged messages of a partly acknowledged batch; 0 for any other entry."""
        sets = self.ack_sets.get(ledger_id)
        return 0 if sets is None else sets.get(entry_id, 0).bit_count()

    def deleted_in(self, ledger_id: int) -> BitMap:
        if ledger_id < self.mark_ledger_id:
            return BitMap(range(self._ledgers.entry_count_of(ledger_id)))
        front = self._mark_entry_id + 1 if ledger_id == self.mark_ledger_id else 0
        return BitMap(range(front)) | self.holes.get(ledger_id, BitMap())

    def nth_undeleted(self, count: int) -> Position:
        """Return the position of the `count`-th unacknowledged entry after the mark-delete position; the last entry if
        there are fewer.
        """
        left = count
        for row in self._ledgers.rows():
            if row.ledger_id < self.mark_ledger_id:
                continue
            start = self._mark_entry_id + 1 if row.ledger_id == self.mark_ledger_id else 0
            holes = self.holes.get(row.ledger_id, BitMap())
            undeleted = max(0, row.entry_count - start - len(holes))
            if undeleted >= left:
                return Position(row.ledger_id, _nth_missing(holes, start, row.entry_count, left))
            left -= undeleted
        return self._ledgers.last_position

    def acknowledged_behind(self) -> list[AcknowledgedPart]:
        """Return a copy of the acknowledgements after the mark-delete position, one part for each ledger that has some."""
        parts = []
        for ledger_id in self.holes.keys() | self.ack_sets.keys():
            sets = self.ack_sets.get(ledger_id, {})
            remaining_messages = sum(bits.bit_count() for bits in sets.values())
            deleted = self.holes.get(ledger_id, BitMap()).copy()
            parts.append(AcknowledgedPart(ledger_id, deleted, BitMap(sets), remaining_messages))
        return parts

    @property
    def last_acknowledged(self) -> Position:
        """The position of the last entry of which a message is acknowledged; if there is none, the mark-delete
        position.
        """
        last = self.mark_delete_position
        for ledger_id in self.holes.keys() | self.ack_sets.keys():
            holes = self.holes.get(ledger_id)
            end = max(holes.max() if holes else -1, max(self.ack_sets.get(ledger_id, ()), default=-1))
            last = max(last, Position(ledger_id, end))
        return last

    def deleted_ranges(self, max_ranges: int) -> list[tuple[Position, Position]]:
        """Return the first `max_ranges` ranges of individually deleted entries as (first, last) positions. A range
        never extends over two ledgers.
        """
        ranges: list[tuple[Position, Position]] = []
        for ledger_id in sorted(self.holes):
            holes = self.holes[ledger_id]
            start: int | None = holes.min()
            while start is not None and len(ranges) < max_ranges:
                end = end_of_run(holes, start)
                ranges.append((Position(ledger_id, start), Position(ledger_id, end)))
                start = holes.next_set_bit(end + 1) if end < holes.max() else None
        return ranges

    @property
    def deleted_range_count(self) -> int:
        """The number of ranges of individually deleted entries. A range never extends over two ledgers."""
        return sum(len(holes) - holes.intersection_cardinality(holes.shift(1)) for holes in self.holes.values())

    @property
    def deleted_ranges_bytes(self) -> int:
        return sum(len(holes.serialize()) for holes in self.holes.values())

    def individually_deleted_text(self, max_ranges: int = DEFAULT_MAX_RANGES_SHOWN) -> str:
        """Return the ranges of individually deleted entries in Pulsar's notation, for example
        `[(5:0..5:3],(7:-1..7:0]]`.
        """
        ranges = [
            f"({first.ledger_id}:{first.entry_id - 1}..{last}]" for first, last in self.deleted_ranges(max_ranges)
        ]
        return f"[{','.join(ranges)}]"

    def check_invariants(self) -> None:
        mark = self.mark_delete_position
        following = self._ledgers.next_position(mark)
        assert not self.is_deleted(*following), "the mark-delete position can move on"
        assert self._hole_count == sum(len(holes) for holes in self.holes.values())
        assert 0 <= self.backlog_entries <= self._ledgers.entry_count
        for ledger_id, holes in self.holes.items():
            assert holes, "an empty bitmap is kept"
            assert Position(ledger_id, holes.min()) > mark, "a hole in front of the mark-delete position"
            assert self._ledgers.has_entry(Position(ledger_id, holes.max())), "a hole without an entry"
        for ledger_id, sets in self.ack_sets.items():
            assert sets, "an empty table of ack sets is kept"
            for entry_id, bits in sets.items():
                assert bits > 0, "an acknowledged batch has an ack set"
                assert not self.is_deleted(ledger_id, entry_id), "a deleted entry has an ack set"

    # --- stored form -------------------------------------------------------------------------------------------------

    def take_delta(self) -> bytes | None:
        """Return a record of the changes since the last call; None without changes. The caller must store the record,
        or call `forget_deltas` if it cannot.
        """
        if not self._is_changed:
            return None
        if self._is_replaced:
            delta = self.snapshot()
            self.held.take_changes()
        else:
            sets = {
                position: self.ack_sets[position.ledger_id][position.entry_id]
                for position in sorted(self._new_ack_sets)
                if position.entry_id in self.ack_sets.get(position.ledger_id, {})
            }
            delta = encode_changes(self.mark_delete_position, self._new_holes, sets, self.held.take_changes())
        self._is_changed = False
        self._is_replaced = False
        self._new_holes = {}
        self._new_ack_sets = set()
        return delta

    def take_whole(self) -> bytes | None:
        """Return a record of the whole state, for a store that cannot store changes; None if nothing has changed. The
        caller must store the record, or call `forget_deltas` if it cannot.
        """
        if self._is_changed:
            self.forget_deltas()
        return self.take_delta()

    def forget_deltas(self) -> None:
        """Make `take_delta` return the whole state next, because an earlier record was not stored."""
        self._is_changed = True
        self._is_replaced = True
        self._new_holes = {}
        self._new_ack_sets = set()

    def snapshot(self) -> bytes:
        """Return a record of the whole state. The next delta may repeat changes that the record already contains."""
        sets = {
            Position(ledger_id, entry_id): bits
            for ledger_id, by_entry in self.ack_sets.items()
            for entry_id, bits in by_entry.items()
        }
        return encode_whole(self.mark_delete_position, self.holes, sets, self.held.whole())

    @staticmethod
    def restore(
        ledgers: LedgerList, created_at: Position, snapshot: bytes | None, deltas: Iterable[bytes]
    ) -> CursorState:
        """Return the state that `snapshot` and later `deltas` contain; without them, the state of a new cursor with the
        mark-delete position `created_at`. Acknowledgements of entries that do not exist are dropped. Raises StoreError.
        """
        state = CursorState(ledgers, created_at)
        if snapshot is not None:
            state._apply(CursorRecord(snapshot))
        for delta in deltas:
            state._apply(CursorRecord(delta))
        state._settle()
        return state

    # --- internal ----------------------------------------------------------------------------------------------------

    def _delete_one(self, ledger_id: int, entry_id: int) -> int:
        if entry_id >= self._ledgers.entry_count_of(ledger_id):
            return 0
        if ledger_id == self.mark_ledger_id and entry_id == self._mark_entry_id + 1:
            if self.holes or self.ack_sets:
                self._move_mark(Position(ledger_id, entry_id))
                self._advance()
            else:
                # The next entry in order: nearly every acknowledgement of a healthy subscription.
                self._mark_entry_id = entry_id
                self._is_changed = True
            return 1
        if entry_id < 0 or ledger_id < self.mark_ledger_id:
            return 0
        if ledger_id == self.mark_ledger_id and entry_id <= self._mark_entry_id:
            return 0
        holes = self.holes.get(ledger_id)
        if holes is None:
            holes = self.holes[ledger_id] = BitMap()
        elif entry_id in holes:
            return 0
        holes.add(entry_id)
        if not self._is_replaced:
            _add(self._new_holes, ledger_id, entry_id)
        self._hole_count += 1
        self._is_changed = True
        sets = self.ack_sets.get(ledger_id)
        if sets is not None and sets.pop(entry_id, None) is not None and not sets:
            del self.ack_sets[ledger_id]
        if entry_id == 0:  # Only the first entry of a ledger can follow a mark in another one.
            self._advance()
        return 1

    def _existing(self, ledger_id: int, entry_ids: Sequence[int]) -> BitMap:
        if ledger_id < self.mark_ledger_id:
            return BitMap()
        first = self._mark_entry_id + 1 if ledger_id == self.mark_ledger_id else 0
        end = self._ledgers.entry_count_of(ledger_id)
        if min(entry_ids, default=end) < first or max(entry_ids, default=end) >= end:
            return BitMap([entry_id for entry_id in entry_ids if first <= entry_id < end])
        return BitMap(entry_ids)

    def _delete_run(self, ledger_id: int, entries: BitMap) -> int:
        """Delete entries that follow the mark-delete position without a gap. Return 0 if they do not."""
        first, last = entries.min(), entries.max()
        if last - first + 1 != len(entries) or self.holes:
            return 0
        if self._ledgers.next_position(self.mark_delete_position) != (ledger_id, first):
            return 0
        self._move_mark(Position(ledger_id, last))
        return len(entries)

    def _delete_out_of_order(self, ledger_id: int, entries: BitMap) -> int:
        holes = self.holes.get(ledger_id)
        if holes is not None:
            entries -= holes
            if not entries:
                return 0
        _unite(self.holes, ledger_id, entries)
        deleted = len(entries)
        self._hole_count += deleted
        self._is_changed = True
        if not self._is_replaced:
            _unite(self._new_holes, ledger_id, entries)
        sets = self.ack_sets.get(ledger_id)
        if sets is not None:
            _drop_ack_sets(sets, entries)
            if not sets:
                del self.ack_sets[ledger_id]
        self._advance()
        return deleted

    def _advance(self) -> None:
        while self.holes:
            following = self._ledgers.next_position(self.mark_delete_position)
            holes = self.holes.get(following.ledger_id)
            if holes is None or following.entry_id not in holes:
                return
            self._move_mark(Position(following.ledger_id, end_of_run(holes, following.entry_id)))

    def _move_mark(self, position: Position) -> None:
        before = self.mark_delete_position
        self.mark_ledger_id, self._mark_entry_id = position
        self._is_changed = True
        if self.holes:
            self._hole_count -= _drop_bitmaps(self.holes, position)
        if self._new_holes:
            _drop_bitmaps(self._new_holes, position)
        if self.ack_sets:
            self._drop_ack_sets_up_to(position, before)

    def _drop_ack_sets_up_to(self, position: Position, before: Position) -> None:
        if position.ledger_id == before.ledger_id:
            sets = self.ack_sets.get(position.ledger_id)
            if sets is None:
                return
            # Batches acknowledged in order: examine only the few positions that the mark passes.
            if position.entry_id - before.entry_id < len(sets):
                for entry_id in range(before.entry_id + 1, position.entry_id + 1):
                    sets.pop(entry_id, None)
            else:
                _drop_up_to(sets, position.entry_id)
            if not sets:
                del self.ack_sets[position.ledger_id]
            return
        for ledger_id in [ledger_id for ledger_id in self.ack_sets if ledger_id <= position.ledger_id]:
            sets = self.ack_sets[ledger_id]
            if ledger_id == position.ledger_id:
                _drop_up_to(sets, position.entry_id)
            if ledger_id < position.ledger_id or not sets:
                del self.ack_sets[ledger_id]

    def _apply(self, record: CursorRecord) -> None:
        """Apply a record. `_settle` must follow the last record, and removes entries before the mark-delete position."""
        if record.is_whole:
            self.reset(record.mark_delete_position)
        self.mark_ledger_id, self._mark_entry_id = max(self.mark_delete_position, record.mark_delete_position)
        for ledger_id, deleted in record.holes.items():
            _unite(self.holes, ledger_id, deleted)
        for (ledger_id, entry_id), bits in record.ack_sets.items():
            self.ack_sets.setdefault(ledger_id, {})[entry_id] = bits
        if record.held:
            try:
                self.held.apply(record.held)
            except ValueError as error:
                raise StoreError(
                    f"the stored pending transaction acks of the subscription are damaged: {error}. Run `pybroker ledger verify`"
                ) from error

    def _settle(self) -> None:
        _drop_bitmaps(self.holes, self.mark_delete_position)
        self._drop_ack_sets_up_to(self.mark_delete_position, Position(-1, -1))
        for ledger_id in list(self.holes):
            holes = self.holes[ledger_id]
            end = self._ledgers.entry_count_of(ledger_id)
            if holes and holes.max() >= end:
                holes.remove_range(end, holes.max() + 1)
            if not holes:
                del self.holes[ledger_id]
        for ledger_id in list(self.ack_sets):
            sets = self.ack_sets[ledger_id]
            end = self._ledgers.entry_count_of(ledger_id)
            holes = self.holes.get(ledger_id, BitMap())
            for entry_id in [entry_id for entry_id in sets if entry_id >= end or entry_id in holes]:
                del sets[entry_id]
            if not sets:
                del self.ack_sets[ledger_id]
        self._hole_count = sum(len(holes) for holes in self.holes.values())
        self._advance()
        self._is_changed = False
        self._is_replaced = False


def _add(bitmaps: dict[int, BitMap], ledger_id: int, entry_id: int) -> None:
    bitmap = bitmaps.get(ledger_id)
    if bitmap is None:
        bitmap = bitmaps[ledger_id] = BitMap()
    bitmap.add(entry_id)


def _unite(bitmaps: dict[int, BitMap], ledger_id: int, entries: BitMap) -> None:
    bitmap = bitmaps.get(ledger_id)
    if bitmap is None:
        bitmaps[ledger_id] = entries.copy()
    else:
        bitmap |= entries


def _nth_missing(holes: BitMap, start: int, end: int, count: int) -> int:
    """Return the `count`-th entry of the range that is not in `holes`. It must exist."""
    low = start + count - 1
    high = end - 1
    while low < high:
        middle = (low + high) // 2
        if middle + 1 - start - holes.range_cardinality(start, middle + 1) >= count:
            high = middle
        else:
            low = middle + 1
    return low


def _drop_bitmaps(bitmaps: dict[int, BitMap], position: Position) -> int:
    dropped = 0
    for ledger_id in [ledger_id for ledger_id in bitmaps if ledger_id <= position.ledger_id]:
        bitmap = bitmaps[ledger_id]
        before = len(bitmap)
        if ledger_id < position.ledger_id:
            bitmap.clear()
        else:
            bitmap.remove_range(0, position.entry_id + 1)
        dropped += before - len(bitmap)
        if not bitmap:
            del bitmaps[ledger_id]
    return dropped


def _drop_up_to(sets: dict[int, int], last_entry_id: int) -> None:
    for entry_id in [entry_id for entry_id in sets if entry_id <= last_entry_id]:
        del sets[entry_id]


def _drop_ack_sets(sets: dict[int, int], entries: BitMap) -> None:
    if len(entries) <= len(sets):
        for entry_id in entries:
            sets.pop(entry_id, None)
    else:
        for entry_id in [entry_id for entry_id in sets if entry_id in entries]:
            del sets[entry_id]
