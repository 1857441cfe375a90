"""The positions that wait for redelivery, and the redelivery count of each entry, of a subscription."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from pyroaring import BitMap

from pybroker.model.position import Position


class Waiting(ABC):
    """Positions of entries that wait to be sent, in subscriptions that serve several consumers."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __bool__(self) -> bool: ...

    @abstractmethod
    def __contains__(self, position: Position) -> bool: ...

    @abstractmethod
    def count_among(self, ledger_id: int, entry_ids: BitMap) -> int: ...

    @abstractmethod
    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None: ...

    @abstractmethod
    def discard_up_to(self, position: Position) -> None: ...

    @abstractmethod
    def clear(self) -> None: ...


class ReplaySet(Waiting):
    """Positions to be read again before new entries, lowest first."""

    __slots__ = ("by_ledger",)

    def __init__(self) -> None:
        self.by_ledger: dict[int, BitMap] = {}
        """The entries by ledger id, changed by this class alone. No bitmap is empty."""

    def __len__(self) -> int:
        return sum(len(entries) for entries in self.by_ledger.values())

    def __bool__(self) -> bool:
        return bool(self.by_ledger)

    def __contains__(self, position: Position) -> bool:
        entries = self.by_ledger.get(position.ledger_id)
        return entries is not None and position.entry_id in entries

    def count_among(self, ledger_id: int, entry_ids: BitMap) -> int:
        entries = self.by_ledger.get(ledger_id)
        return 0 if entries is None else int(entries.intersection_cardinality(entry_ids))

    def add(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        added = BitMap(entry_ids)
        if not added:
            return
        entries = self.by_ledger.get(ledger_id)
        if entries is None:
            self.by_ledger[ledger_id] = added
        else:
            entries |= added

    def add_all(self, other: ReplaySet) -> None:
        for ledger_id, entries in other.by_ledger.items():
            self.add(ledger_id, entries)

    @property
    def part_count(self) -> int:
        return len(self.by_ledger)

    def first(self) -> Position:
        """Return the lowest position; the set must not be empty."""
        ledger_id = min(self.by_ledger)
        return Position(ledger_id, self.by_ledger[ledger_id].min())

    def __iter__(self) -> Iterator[Position]:
        for ledger_id, entries in self.by_ledger.items():
            for entry_id in entries:
                yield Position(ledger_id, entry_id)

    def discard(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        entries = self.by_ledger.get(ledger_id)
        if entries is None:
            return
        # Clients may acknowledge ids that never existed and exceed a bitmap's range.
        last = entries.max()
        entries -= BitMap([entry_id for entry_id in entry_ids if 0 <= entry_id <= last])
        if not entries:
            del self.by_ledger[ledger_id]

    def discard_up_to(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self.by_ledger if ledger_id <= position.ledger_id]:
            entries = self.by_ledger[ledger_id]
            if ledger_id == position.ledger_id:
                entries.remove_range(0, min(position.entry_id, entries.max()) + 1)
            if ledger_id < position.ledger_id or not entries:
                del self.by_ledger[ledger_id]

    def take(self, max_entries: int, before: Position | None = None) -> list[Position]:
        """Remove and return the lowest positions, ascending, at most `max_entries`; with `before`, only positions
        before it.
        """
        taken: list[Position] = []
        for ledger_id in sorted(self.by_ledger):
            entries = self.by_ledger[ledger_id]
            chosen = entries[: max_entries - len(taken)]
            if before is not None and ledger_id >= before.ledger_id:
                if ledger_id == before.ledger_id:
                    chosen &= BitMap(range(before.entry_id))
                else:
                    chosen = BitMap()
                if not chosen:
                    break
            taken.extend([Position(ledger_id, entry_id) for entry_id in chosen])
            if len(chosen) == len(entries):
                del self.by_ledger[ledger_id]
            else:
                entries -= chosen
            if len(taken) == max_entries:
                break
        return taken

    def clear(self) -> None:
        self.by_ledger.clear()


class RedeliveryCounts:
    """How often each entry was returned for redelivery; the count of an absent entry is 0.

    Subscription types with one active consumer rewind the cursor and count nothing.
    """

    __slots__ = ("by_ledger",)

    def __init__(self) -> None:
        self.by_ledger: dict[int, dict[int, int]] = {}
        """The counts by ledger id and entry id, changed by this class alone. No inner dict is empty."""

    def __bool__(self) -> bool:
        return bool(self.by_ledger)

    def increase(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        counts = self.by_ledger.get(ledger_id)
        if counts is None:
            if not entry_ids:
                return
            counts = self.by_ledger[ledger_id] = {}
        for entry_id in entry_ids:
            counts[entry_id] = counts.get(entry_id, 0) + 1

    def column(self, ledger_id: int, entry_ids: Sequence[int]) -> list[int] | None:
        counts = self.by_ledger.get(ledger_id)
        if counts is None:
            return None
        column = [counts.get(entry_id, 0) for entry_id in entry_ids]
        return column if any(column) else None

    def count_waiting(self, waiting: Waiting) -> int:
        return sum(waiting.count_among(ledger_id, BitMap(counts)) for ledger_id, counts in self.by_ledger.items())

    def forget(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        counts = self.by_ledger.get(ledger_id)
        if counts is None:
            return
        for entry_id in entry_ids:
            counts.pop(entry_id, None)
        if not counts:
            del self.by_ledger[ledger_id]

    def forget_up_to(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self.by_ledger if ledger_id <= position.ledger_id]:
            counts = self.by_ledger[ledger_id]
            if ledger_id == position.ledger_id:
                self.forget(ledger_id, [entry_id for entry_id in counts if entry_id <= position.entry_id])
            else:
                del self.by_ledger[ledger_id]

    def clear(self) -> None:
        self.by_ledger.clear()
