"""Parked entries: entries that no consumer may receive, because open transactions have acknowledged them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from pybroker.dispatch.dispatcher import Dispatcher, ReadPlan
from pybroker.managed_ledger.pending_transaction_acks import Hold
from pybroker.model.position import Position

PUT_BACK_AT_ONCE = 10_000


class ParkedEntries:
    """Parked entries of one subscription: one bitmap per ledger, and key hashes if the subscription type needs them."""

    def __init__(self) -> None:
        self._dispatcher: Dispatcher | None = None
        self._epoch: object = None
        self._max_bytes = 0
        self._entries: dict[int, BitMap] = {}
        self._hashes: dict[Position, int] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def clear(self) -> None:
        self._entries.clear()
        self._hashes.clear()

    def add(self, dispatcher: Dispatcher, plan: ReadPlan, position: Position, key_hash: int) -> None:
        if dispatcher is not self._dispatcher or plan.epoch is not self._epoch:
            self.clear()  # Earlier reads are no longer valid.
            self._dispatcher, self._epoch, self._max_bytes = dispatcher, plan.epoch, plan.max_bytes
        self._entries.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        if dispatcher.needs_key_hashes:
            self._hashes[position] = key_hash

    def forget(self, hold: Hold) -> None:
        """Remove the entries that a committing transaction (`hold`) acknowledged completely. Partly acknowledged
        batches stay.
        """
        for ledger_id, taken in self._held(hold, {}):
            if self._hashes:
                for entry_id in taken:
                    self._hashes.pop(Position(ledger_id, entry_id), None)

    def take(self, hold: Hold) -> Iterator[tuple[Dispatcher, ReadPlan, list[int]]]:
        """Remove the entries of an aborted transaction (`hold`), in slices. For each slice, yield the dispatcher that
        must read the entries again, a read plan for them, and their key hashes.
        """
        parts: dict[int, BitMap] = {}
        for position in hold.parts:
            parts.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        for ledger_id, taken in self._held(hold, parts):
            entry_ids = list(taken)
            for start in range(0, len(entry_ids), PUT_BACK_AT_ONCE):
                positions = [Position(ledger_id, each) for each in entry_ids[start : start + PUT_BACK_AT_ONCE]]
                hashes = [self._hashes.pop(each) for each in positions] if self._hashes else []
                assert self._dispatcher is not None
                yield self._dispatcher, ReadPlan(len(positions), self._max_bytes, positions, self._epoch), hashes

    def _held(self, hold: Hold, parts: dict[int, BitMap]) -> Iterator[tuple[int, BitMap]]:
        nothing = BitMap()
        for ledger_id, bitmap in [*self._entries.items()]:
            taken = bitmap & (hold.entries.get(ledger_id, nothing) | parts.get(ledger_id, nothing))
            if hold.up_to is not None and ledger_id <= hold.up_to.ledger_id:
                is_whole = ledger_id < hold.up_to.ledger_id
                taken |= bitmap if is_whole else BitMap(bitmap[: bitmap.rank(hold.up_to.entry_id)])
            if taken:
                left = self._entries[ledger_id] = bitmap - taken
                if not left:
                    del self._entries[ledger_id]
                yield ledger_id, taken
