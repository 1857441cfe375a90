"""The index of delayed entries of a subscription: which entries wait for their delivery time, and which are due.

The index is kept in memory, and stored periodically (`delayed_record.py`), so that it need not be built by reading the
topic again.

Memory: eight bytes per entry plus its share of a bitmap; a million entries take 9 to 10 MB. New entries are in a small
heap. A full heap becomes one *run* per ledger, an array of numbers in order of due times:

    due time in milliseconds, 42 bits (up to the year 2109) | entry id less the run's first one, 22 bits

An acknowledged entry is removed from the bitmap immediately, and from its run when the run reaches it. An entry with a
changed time is listed more than once: `ChangedDelays` determines which time counts.

Invariants: `members` has exactly the waiting entries, each of which is in the heap or in a run. Other entries of a run
were removed or are duplicates, and are skipped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby
from typing import NamedTuple

from pyroaring import BitMap

from pybroker.dispatch.delayed.changed_delays import MAX_CHANGED_DELAYS, ChangedDelays
from pybroker.model.position import MAX_ENTRY_ID, Position

RUN_ENTRIES = 1024
"""Number of newest entries at which the heap of new entries becomes runs."""
MAX_DUE_MS = (1 << 42) - 1
_SPAN_BITS = 22
_SPAN_MASK = (1 << _SPAN_BITS) - 1
# Measured with Python's allocator: a run with its array, a ledger's bitmap, a heap entry with its numbers.
_RUN_BYTES, _BITMAP_BYTES, _HEAP_ENTRY_BYTES = 300, 200, 130


class Delayed(NamedTuple):
    """A delayed entry; instances are ordered by due time."""

    due_ms: int
    ledger_id: int
    entry_id: int

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


class DelayedRun:
    """Delayed entries of one ledger in order of due times. The first `index` entries were already delivered or dropped."""

    __slots__ = ("first_entry_id", "index", "last_entry_id", "ledger_id", "packed")

    def __init__(self, ledger_id: int, first_entry_id: int, packed: array[int]) -> None:
        """`packed`: due times and entry ids in the format of the module, ascending, not empty."""
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = first_entry_id + max(number & _SPAN_MASK for number in packed)
        self.packed = packed
        self.index = 0

    @property
    def due_ms(self) -> int:
        return self.packed[self.index] >> _SPAN_BITS

    @property
    def entry_id(self) -> int:
        return self.first_entry_id + (self.packed[self.index] & _SPAN_MASK)

    def entry_ids(self) -> BitMap:
        return BitMap([self.first_entry_id + (number & _SPAN_MASK) for number in self.packed[self.index :]])

    def left(self) -> Iterator[Delayed]:
        for number in self.packed[self.index :]:
            yield Delayed(number >> _SPAN_BITS, self.ledger_id, self.first_entry_id + (number & _SPAN_MASK))


class DeliveryTimes:
    """Precision with which a topic observes delivery times (`isDelayedDeliveryDeliverAtTimeStrict` and the tick time)."""

    __slots__ = ("is_strict", "tick_ms")

    def __init__(self, tick_ms: int, is_strict: bool) -> None:
        self.tick_ms = tick_ms
        self.is_strict = is_strict

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the latest delivery time (milliseconds since 1970) whose entries are due at `now_ms`: `now_ms` if
        delivery times are strict, else one tick later.
        """
        return now_ms if self.is_strict else now_ms + self.tick_ms

    def alarm_ms(self, due_ms: int, last_alarm_ms: int) -> int:
        """Return the time of the next search for due entries. `due_ms`: the time at which the next entry is due;
        `last_alarm_ms`: the time of the previous search. All times are milliseconds since 1970.

        If delivery times are strict, searches are at least one tick apart: an entry may be up to one tick late, and is
        never early. Otherwise the result is `due_ms`.
        """
        return max(due_ms, last_alarm_ms + self.tick_ms) if self.is_strict else due_ms


class DelayedIndex:
    """The delayed entries of one subscription. New entries are collected, and then divided into runs (`DelayedRun`),
    which the subscription stores. Adding an entry that already waits changes nothing.
    """

    def __init__(self, changed: ChangedDelays | None = None) -> None:
        """`changed`: the delivery times that an administrator changed. Its owner must call `move` after each change."""
        self._changed = ChangedDelays() if changed is None else changed
        self._members: dict[int, BitMap] = {}  # no bitmap is empty
        self._count = 0
        self._newest: list[Delayed] = []  # a heap
        self._runs: list[tuple[int, int, DelayedRun]] = []  # a heap: due time, serial, run
        self._serial = 0

    def __len__(self) -> int:
        return self._count

    @property
    def members(self) -> Mapping[int, BitMap]:
        return self._members

    @property
    def size_bytes(self) -> int:
        runs = sum(_RUN_BYTES + run.packed.itemsize * len(run.packed) for _, _, run in self._runs)
        bitmaps = sum(_BITMAP_BYTES + _container_bytes(bitmap) for bitmap in self._members.values())
        return runs + bitmaps + _HEAP_ENTRY_BYTES * len(self._newest)

    # --- add ---------------------------------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_ids: Sequence[int], due_times_ms: Sequence[int]) -> bool:
        """Add delayed entries with their delivery times. Return True if this created new runs, which the caller must
        store.
        """
        members = self._members.get(ledger_id)
        if members is None:
            members = self._members[ledger_id] = BitMap()
        before = len(members)
        if self._changed:  # includes entries whose times were changed after they were taken, in case they are returned
            due_times_ms = self._changed.applied(ledger_id, entry_ids, due_times_ms)
        for entry_id, due_ms in zip(entry_ids, due_times_ms, strict=True):
            if entry_id not in members:
                members.add(entry_id)
                heappush(self._newest, Delayed(min(due_ms, MAX_DUE_MS), ledger_id, entry_id))
        self._count += len(members) - before
        if not members:
            del self._members[ledger_id]
        if len(self._newest) < RUN_ENTRIES:
            return False
        self.seal_newest()
        return True

    def move(self, position: Position) -> bool:
        """Apply the delivery time that an administrator has set for the entry at `position`. Return False if the entry
        is not delayed.
        """
        due_ms = self._changed.get(position)
        members = self._members.get(position.ledger_id)
        if due_ms is None or members is None or position.entry_id not in members:
            return False
        heappush(self._newest, Delayed(due_ms, *position))
        if len(self._newest) >= 2 * (RUN_ENTRIES + len(self._changed)):  # twice the number that may be valid
            self._newest = [*self._counting_newest()]
            heapify(self._newest)
        return True

    def _counting_newest(self) -> set[Delayed]:
        return {each for each in self._newest if self._counts(each)}

    def seal_newest(self) -> None:
        by_position = sorted(self._counting_newest(), key=lambda delayed: delayed[1:])
        self._newest.clear()
        for ledger_id, group in groupby(by_position, lambda delayed: delayed.ledger_id):
            waiting = list(group)
            while waiting:
                first = waiting[0].entry_id
                part = [delayed for delayed in waiting if delayed.entry_id - first <= _SPAN_MASK]
                packed = sorted(delayed.due_ms << _SPAN_BITS | delayed.entry_id - first for delayed in part)
                self._push(DelayedRun(ledger_id, first, array("Q", packed)))
                waiting = waiting[len(part) :]
            self._members[ledger_id].run_optimize()

    def add_run(self, run: DelayedRun, unwanted: BitMap) -> None:
        entries = run.entry_ids() - unwanted
        if not entries:
            return
        members = self._members.setdefault(run.ledger_id, BitMap())
        before = len(members)
        members |= entries
        self._count += len(members) - before
        self._push(run)

    def _push(self, run: DelayedRun) -> None:
        self._serial += 1
        heappush(self._runs, (run.due_ms, self._serial, run))

    # --- take --------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        while (first := self._first()) is not None:
            if self._counts(first):
                return first.due_ms
            self._pop()
        return None

    def due_count(self, cutoff_ms: int) -> int:
        """Return the number of entries that are due at `cutoff_ms` (milliseconds since 1970). It may include
        acknowledged entries.
        """
        newest = sum(each.due_ms <= cutoff_ms for each in self._newest)
        last = (cutoff_ms + 1) << _SPAN_BITS
        due = newest + sum(
            bisect_left(run.packed, last, run.index) - run.index for due_ms, _, run in self._runs if due_ms <= cutoff_ms
        )
        return min(due, self._count)

    def take_due(self, cutoff_ms: int, max_entries: int) -> list[Delayed]:
        taken: list[Delayed] = []
        while self._count and len(taken) < max_entries:
            delayed = self._first()
            if delayed is None or delayed.due_ms > cutoff_ms:
                break
            self._pop()
            if not self._counts(delayed):
                continue
            members = self._members[delayed.ledger_id]
            members.remove(delayed.entry_id)
            self._count -= 1
            if not members:
                del self._members[delayed.ledger_id]
            taken.append(delayed)
        if not self._count:
            self.clear()
        return taken

    def _counts(self, delayed: Delayed) -> bool:
        members = self._members.get(delayed.ledger_id)
        if members is None or delayed.entry_id not in members:
            return False
        return not self._changed or self._changed.get(delayed.position) in (None, delayed.due_ms)

    def _first(self) -> Delayed | None:
        if self._is_among_newest():
            return self._newest[0]
        if not self._runs:
            return None
        due_ms, _, run = self._runs[0]
        return Delayed(due_ms, run.ledger_id, run.entry_id)

    def _is_among_newest(self) -> bool:
        newest, runs = self._newest, self._runs
        return bool(newest) and (not runs or newest[0].due_ms < runs[0][0])

    def _pop(self) -> None:
        if self._is_among_newest():
            heappop(self._newest)
            return
        _, serial, run = self._runs[0]
        run.index += 1
        if run.index < len(run.packed):
            heapreplace(self._runs, (run.due_ms, serial, run))
        else:
            heappop(self._runs)

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        members = self._members.get(ledger_id)
        if members is None:
            return
        # Clients may acknowledge ids that never existed and exceed a bitmap's range.
        self._remove(ledger_id, members & BitMap([each for each in entry_ids if 0 <= each <= MAX_ENTRY_ID]))

    def discard_up_to(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self._members if ledger_id <= position.ledger_id]:
            members = self._members[ledger_id]
            if ledger_id == position.ledger_id:
                members = members & BitMap(range(min(position.entry_id, members.max()) + 1))
            self._remove(ledger_id, members)
        kept = [each for each in self._runs if Position(each[2].ledger_id, each[2].last_entry_id) > position]
        if len(kept) < len(self._runs):
            heapify(kept)
            self._runs = kept

    def _remove(self, ledger_id: int, entries: BitMap) -> None:
        members = self._members[ledger_id]
        self._count -= len(entries)
        if len(entries) == len(members):
            del self._members[ledger_id]
        else:
            members -= entries
        if not self._count:
            self.clear()

    def clear(self) -> None:
        self._members.clear()
        self._count = 0
        self._newest.clear()
        self._runs.clear()

    # --- storing -----------------------------------------------------------------------------------------------------

    @property
    def last_serial(self) -> int:
        return self._serial

    def runs_after(self, serial: int) -> list[DelayedRun]:
        """Return the runs that the index created after run number `serial` (0: all runs), for storing them. The newest
        entries, which are not in a run yet, are missing.
        """
        return [run for _, number, run in self._runs if number > serial]

    def check_invariants(self) -> None:
        assert self._count == sum(len(members) for members in self._members.values())
        assert all(self._members.values()), "an empty bitmap is kept"
        kept = self._counting_newest()
        for due_ms, _, run in self._runs:
            assert due_ms == run.due_ms, "the heap of runs is not up to date"
            assert list(run.packed) == sorted(run.packed)
            kept.update(filter(self._counts, run.left()))
        positions = {each.position for each in kept}
        for ledger_id, members in self._members.items():
            assert all(Position(ledger_id, entry_id) in positions for entry_id in members), (
                "a delayed entry is in no run"
            )
        assert len(self._newest) < 2 * (RUN_ENTRIES + MAX_CHANGED_DELAYS)
        assert self._count or not (self._newest or self._runs), "runs are kept although no entry is delayed"


def _container_bytes(bitmap: BitMap) -> int:
    statistics = bitmap.get_statistics()
    return (
        statistics["n_bytes_array_containers"]
        + statistics["n_bytes_run_containers"]
        + statistics["n_bytes_bitset_containers"]
    )
