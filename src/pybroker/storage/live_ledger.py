"""A ledger that has no index on disk yet: its state, its buffered entries, and how far its segment file reaches.

What must always hold: the entries of a ledger are its committed extent, then `writing` (a checkpoint is moving them), then
`buffer`, without gap or overlap. `buffer` may hold entries that are not durable yet; those that the journal refuses are cut
off again before a checkpoint can see them.
Pure state, used on the loop; a checkpoint reads the lists of `writing`, which nobody changes meanwhile.
"""

from __future__ import annotations

from enum import Enum
from itertools import accumulate, chain

from pybroker.storage.layout.segment import EMPTY_EXTENT, LedgerExtent, SegmentIndex
from pybroker.storage.ledger_store import EntryRun, LedgerSummary


class LedgerState(Enum):
    """OPEN takes appends. FENCED takes none: one was refused, or a seal waits for those under way. SEALED never changes."""

    OPEN = "open"
    FENCED = "fenced"
    SEALED = "sealed"


_NEXT_STATES = {
    LedgerState.OPEN: {LedgerState.FENCED},
    LedgerState.FENCED: {LedgerState.FENCED, LedgerState.SEALED},
    LedgerState.SEALED: {LedgerState.SEALED},
}


class EntryBuffer:
    """Consecutive entries in memory, as flat lists: a read is a slice."""

    __slots__ = ("first_entry_id", "message_counts", "payloads")

    def __init__(self, first_entry_id: int) -> None:
        self.first_entry_id = first_entry_id
        self.payloads: list[bytes] = []
        self.message_counts: list[int] = []

    @property
    def end_entry_id(self) -> int:
        return self.first_entry_id + len(self.payloads)

    def cut(self, end_entry_id: int) -> None:
        """Forget the entries from `end_entry_id` on."""
        keep = max(0, end_entry_id - self.first_entry_id)
        del self.payloads[keep:]
        del self.message_counts[keep:]
        self.first_entry_id = min(self.first_entry_id, end_entry_id)

    def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        """Entries from `first_entry_id`, which is here, until one reaches `max_bytes`."""
        start = first_entry_id - self.first_entry_id
        payloads = self.payloads[start : start + max_entries]
        counts = self.message_counts[start : start + max_entries]
        if len(payloads) > 1:
            count = 0
            for total in accumulate(map(len, payloads)):
                count += 1
                if total >= max_bytes:
                    break
            del payloads[count:], counts[count:]
        return EntryRun(ledger_id, first_entry_id, payloads, counts)


class LiveLedger:
    """Owned by the store until its index is on disk or it is deleted."""

    __slots__ = (
        "buffer",
        "extent",
        "has_refused",
        "index",
        "is_index_known",
        "ledger_id",
        "next_entry_id",
        "pending_runs",
        "state",
        "writing",
    )

    def __init__(self, ledger_id: int, extent: LedgerExtent = EMPTY_EXTENT) -> None:
        self.ledger_id = ledger_id
        self.state = LedgerState.OPEN
        self.extent = extent
        self.index = SegmentIndex()
        # A ledger that an earlier run left open is looked through when it is first needed.
        self.is_index_known = extent.end_offset == 0
        self.next_entry_id = extent.entry_count
        self.pending_runs = 0
        self.has_refused = False
        self.writing: EntryBuffer | None = None
        self.buffer = EntryBuffer(extent.entry_count)

    def set_state(self, state: LedgerState) -> None:
        assert state in _NEXT_STATES[self.state], f"ledger {self.ledger_id}: {self.state} to {state}"
        self.state = state

    def fence(self, first_refused_id: int) -> None:
        """The journal refused the entries from `first_refused_id` on: they were never here."""
        self.set_state(LedgerState.FENCED)
        self.has_refused = True
        self.buffer.cut(first_refused_id)
        if self.writing is not None:
            self.writing.cut(first_refused_id)
        self.next_entry_id = min(self.next_entry_id, first_refused_id)

    def freeze(self) -> EntryBuffer | None:
        """What a checkpoint shall write; later appends go into a new buffer."""
        assert self.writing is None, "one checkpoint at a time"
        if self.buffer.payloads:
            self.writing = self.buffer
            self.buffer = EntryBuffer(self.writing.end_entry_id)
        return self.writing

    def moved(self, extent: LedgerExtent, index: SegmentIndex) -> None:
        """The checkpoint that wrote `writing` is committed."""
        assert self.writing is None or extent.entry_count == self.writing.end_entry_id, (
            "the checkpoint wrote another run"
        )
        self.extent = extent
        self.index = index
        self.is_index_known = True
        self.writing = None

    def read_buffered(self, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        for buffer in (self.buffer, self.writing):
            if buffer is not None and buffer.first_entry_id <= first_entry_id < buffer.end_entry_id:
                return buffer.read(self.ledger_id, first_entry_id, max_entries, max_bytes)
        return None

    def summary(self) -> LedgerSummary:
        buffers = [buffer for buffer in (self.writing, self.buffer) if buffer is not None]
        message_count = sum(chain.from_iterable(buffer.message_counts for buffer in buffers))
        size_bytes = sum(map(len, chain.from_iterable(buffer.payloads for buffer in buffers)))
        return LedgerSummary(
            self.ledger_id,
            self.next_entry_id,
            self.extent.message_count + message_count,
            self.extent.size_bytes + size_bytes,
        )

    def check_invariants(self) -> None:
        end = self.extent.entry_count
        for buffer in (self.writing, self.buffer):
            if buffer is not None:
                assert buffer.first_entry_id == end, f"ledger {self.ledger_id}: gap at {end}"
                assert len(buffer.payloads) == len(buffer.message_counts)
                end = buffer.end_entry_id
        assert self.next_entry_id >= end
