"""Conversion of positions in the source of a copy to positions in the target. Pure.

Each source ledger becomes one target ledger with the same entries, so only ledger ids change. A position in a deleted
ledger becomes the position in front of the next ledger, which acknowledges the same entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord, encode_whole
from pybroker.model.position import Position


class PositionMap:
    """Converts the positions of one topic. `ledgers` are tuples of source id, target id and entries, ascending.
    `trimmed` has the target ids of trimmed ledgers, which occur only in positions of compacted entries.
    """

    def __init__(self, ledgers: Sequence[tuple[int, int, int]], trimmed: Mapping[int, int] | None = None) -> None:
        assert ledgers, "a managed ledger has a ledger"
        self._sources = [source for source, _, _ in ledgers]
        self._targets = [target for _, target, _ in ledgers]
        assert self._sources == sorted(self._sources), "source ledgers are in their order"
        assert self._targets == sorted(set(self._targets)), "target ledgers are in the order of the source ledgers"
        self._exact = dict(zip(self._sources, self._targets, strict=True)) | dict(trimmed or {})
        self._end = Position(self._targets[-1], ledgers[-1][2] - 1)

    def mark(self, position: Position) -> Position:
        target = self._exact.get(position.ledger_id)
        if target is not None:
            return Position(target, position.entry_id)
        index = bisect_right(self._sources, position.ledger_id)
        return Position(self._targets[index], -1) if index < len(self._targets) else self._end

    def entry(self, position: Position) -> Position:
        """Convert the position of an entry. Raises StoreError if its ledger is not copied."""
        target = self._exact.get(position.ledger_id)
        if target is None:
            raise StoreError(f"entry {position} cannot be copied: its ledger is missing in the topic's list of ledgers")
        return Position(target, position.entry_id)

    def state(self, state: bytes) -> bytes:
        """Convert the stored state of a cursor. The cursor must have no pending transaction acks.

        The result has no records of ended transactions. In the source, such a record serves to refuse late
        acknowledgements of its transaction. The target can receive none, because its message ids differ. Without these
        records, the coordinators of the target can use the same transaction ids again.
        """
        record = CursorRecord(state)
        holes = {self._exact[ledger_id]: holes for ledger_id, holes in record.holes.items() if ledger_id in self._exact}
        sets = {
            self.entry(position): bits
            for position, bits in record.ack_sets.items()
            if position.ledger_id in self._exact
        }
        return encode_whole(self.mark(record.mark_delete_position), holes, sets)
