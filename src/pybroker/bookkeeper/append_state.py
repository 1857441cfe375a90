"""The state of a ledger's writer: unconfirmed entries, acknowledgements of bookies, and the change of the ensemble.

Invariants: entries are confirmed in order, each with A acknowledgements of its write set in the current ensemble;
nothing is confirmed while the ensemble changes, because the new segment begins after the last confirmed entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.bookkeeper.quorums import Quorums, replaced_indexes


class PendingEntry:
    """An entry that is not confirmed. `acked` and `refused` have a bit for each index of the ensemble.

    `tick`: the time of the append, as the number of the writer's timeout checks until then. `is_doubtful`: a bookie
    that was replaced, or did not respond, may have stored it.
    """

    __slots__ = (
        "acked",
        "context",
        "entry_id",
        "frame",
        "is_doubtful",
        "length_bytes",
        "refused",
        "size_bytes",
        "tick",
    )

    def __init__(
        self, entry_id: int, frame: bytes, size_bytes: int, length_bytes: int, context: object, tick: int
    ) -> None:
        self.entry_id = entry_id
        self.frame = frame
        self.size_bytes = size_bytes
        self.length_bytes = length_bytes
        self.context = context
        self.tick = tick
        self.acked = 0
        self.refused = 0
        self.is_doubtful = False


class AppendState:
    """The state of one writer. Its caller sends frames and changes metadata."""

    def __init__(self, quorums: Quorums, ensemble: tuple[str, ...], last_confirmed: int, length_bytes: int) -> None:
        self.ensemble = ensemble
        self.last_confirmed = last_confirmed
        self.confirmed_length_bytes = length_bytes
        self.last_pushed = last_confirmed
        self.length_bytes = length_bytes
        self.pending: dict[int, PendingEntry] = {}
        """Unconfirmed entries in the order of their ids."""
        self.pending_bytes = 0
        self.is_changing = False
        self.failed: set[int] = set()
        """Indexes of the ensemble whose bookies failed."""
        self._ack_quorum = quorums.ack_quorum
        self._ensemble_size = quorums.ensemble_size
        self.write_sets = quorums.write_sets()
        self._write_masks = tuple(sum(1 << index for index in each) for each in self.write_sets)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        return self.write_sets[entry_id % self._ensemble_size]

    def push(self, entry: PendingEntry) -> None:
        assert entry.entry_id == self.last_pushed + 1, "entry ids have no gaps"
        self.last_pushed = entry.entry_id
        self.length_bytes = entry.length_bytes
        self.pending[entry.entry_id] = entry
        self.pending_bytes += entry.size_bytes

    def acked(self, entry_id: int, index: int, bookie_id: str) -> bool:
        """Record that a bookie of the ensemble (at `index`) has stored an entry. Return True if entries can be
        confirmed now (`take_confirmed`).
        """
        entry = self.pending.get(entry_id)
        if entry is None or self.ensemble[index] != bookie_id:
            return False
        entry.acked |= 1 << index
        return (
            entry_id == self.last_confirmed + 1 and not self.is_changing and entry.acked.bit_count() >= self._ack_quorum
        )

    def take_confirmed(self) -> list[PendingEntry]:
        confirmed: list[PendingEntry] = []
        if self.is_changing:
            return confirmed
        for entry in self.pending.values():
            if entry.acked.bit_count() < self._ack_quorum:
                break
            confirmed.append(entry)
        for entry in confirmed:
            del self.pending[entry.entry_id]
            self.pending_bytes -= entry.size_bytes
        if confirmed:
            self.last_confirmed = confirmed[-1].entry_id
            self.confirmed_length_bytes = confirmed[-1].length_bytes
        return confirmed

    def add_failed(self, entry_id: int, index: int, bookie_id: str, *, is_refused: bool) -> bool:
        """Record that a bookie of the ensemble (at `index`) did not confirm an entry. Return True if the bookie must be
        replaced. `is_refused`: the bookie certainly did not store the entry.
        """
        if self.ensemble[index] != bookie_id:
            return False
        entry = self.pending.get(entry_id)
        if entry is not None:
            if is_refused:
                entry.refused |= 1 << index
            else:
                entry.is_doubtful = True
        if entry is None and not self.pending:
            return False  # A late failure: all entries are confirmed. The next entry finds out.
        self.failed.add(index)
        return True

    def begin_change(self) -> None:
        assert not self.is_changing, "one change at a time"
        self.is_changing = True

    def end_change(self, ensemble: tuple[str, ...]) -> list[tuple[PendingEntry, int]]:
        """Use the new ensemble from now on. Return the entries to send again, each with the ensemble index of the
        new bookie that must receive it. The caller then confirms entries (`take_confirmed`).
        """
        assert self.is_changing
        replaced = replaced_indexes(self.ensemble, ensemble)
        self.ensemble = ensemble
        self.is_changing = False
        self.failed.difference_update(replaced)
        again = []
        for entry in self.pending.values():
            for index in self.write_set(entry.entry_id):
                if index in replaced:
                    bit = 1 << index
                    if not entry.refused & bit:
                        entry.is_doubtful = True
                    entry.acked &= ~bit
                    entry.refused &= ~bit
                    again.append((entry, index))
        return again

    def is_certainly_not_stored(self, entry: PendingEntry) -> bool:
        mask = self._write_masks[entry.entry_id % self._ensemble_size]
        return not entry.is_doubtful and not entry.acked and entry.refused & mask == mask

    def drop_pending(self) -> list[PendingEntry]:
        dropped = list(self.pending.values())
        self.pending.clear()
        self.pending_bytes = 0
        return dropped

    def check_invariants(self) -> None:
        ids: Sequence[int] = list(self.pending)
        assert ids == list(range(self.last_confirmed + 1, self.last_pushed + 1)) or not ids, (
            "pending entries have no gaps"
        )
        assert self.pending_bytes == sum(each.size_bytes for each in self.pending.values())
        assert self.confirmed_length_bytes <= self.length_bytes
