"""A ledger of the local store that has no index on disk yet: its state, its buffered entries, and the end of its
segment file.

Invariants: the entries of a ledger are its committed extent, then `writing` (a checkpoint is moving them), then
`buffer`, without gap or overlap. `buffer` may contain entries that are not durable yet; entries that the journal
refuses are removed before a checkpoint can see them. Pure state, used on the event loop; a checkpoint reads the lists
of `writing`, which do not change meanwhile.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from enum import Enum
from itertools import accumulate

from pyroaring import BitMap

from pybroker.ledgers.ledger_store import EntryRun, LedgerSummary, LedgerTotals
from pybroker.storage_format.segment_layout import (
    EMPTY_EXTENT,
    LedgerExtent,
    PublishTimeOf,
    SegmentIndex,
    no_publish_time,
)


class LedgerState(Enum):
    """State of a ledger. OPEN accepts appends. FENCED refuses them, because an earlier append was refused or the ledger
    is being sealed. A SEALED ledger never changes.
    """

    OPEN = "open"
    FENCED = "fenced"
    SEALED = "sealed"


_NEXT_STATES = {
    LedgerState.OPEN: {LedgerState.FENCED},
    LedgerState.FENCED: {LedgerState.FENCED, LedgerState.SEALED},
    LedgerState.SEALED: {LedgerState.SEALED},
}


class EntryBuffer:
    """Consecutive entries in memory, as flat lists, so that a read is a slice.

    Running sums are extended when they are requested, so that appends do not pay for them.
    """

    __slots__ = ("_bytes_before", "_messages_before", "first_entry_id", "message_counts", "payloads", "size_bytes")

    def __init__(self, first_entry_id: int) -> None:
        self.first_entry_id = first_entry_id
        self.payloads: list[bytes] = []
        self.message_counts: list[int] = []
        self.size_bytes = 0
        """Payload bytes of all entries that were added, including removed ones; counted by the caller."""
        self._messages_before = array("Q", (0,))
        self._bytes_before = array("Q", (0,))

    @property
    def end_entry_id(self) -> int:
        return self.first_entry_id + len(self.payloads)

    def cut(self, end_entry_id: int) -> None:
        keep = max(0, end_entry_id - self.first_entry_id)
        del self.payloads[keep:]
        del self.message_counts[keep:]
        del self._messages_before[keep + 1 :]
        del self._bytes_before[keep + 1 :]
        self.first_entry_id = min(self.first_entry_id, end_entry_id)

    def totals_before(self, entry_id: int) -> tuple[int, int]:
        """Return the number of messages and bytes of the buffered entries before `entry_id`."""
        known = len(self._messages_before) - 1
        if known < len(self.payloads):
            counts, lengths = self.message_counts[known:], map(len, self.payloads[known:])
            self._messages_before.extend(accumulate(counts, initial=self._messages_before.pop()))
            self._bytes_before.extend(accumulate(lengths, initial=self._bytes_before.pop()))
        index = min(max(0, entry_id - self.first_entry_id), len(self.payloads))
        return self._messages_before[index], self._bytes_before[index]

    def message_count_of(self, entry_ids: BitMap) -> int:
        here = entry_ids & BitMap(range(self.first_entry_id, self.end_entry_id))
        counts, first = self.message_counts, self.first_entry_id
        return sum([counts[entry_id - first] for entry_id in here])

    def find_publish_time(self, publish_time_ms: int, publish_time_of: PublishTimeOf) -> int:
        """Return the id of the first entry that was published at `publish_time_ms` (milliseconds since 1970) or later,
        by bisection; the id after the last entry if there is none.
        """

        def time_of(payload: bytes) -> int:
            try:
                return publish_time_of(payload)
            except Exception:  # noqa: BLE001 - what a client wrote has no time then
                return 0

        return self.first_entry_id + bisect_left(self.payloads, publish_time_ms, key=time_of)

    def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        """Return entries from `first_entry_id` on, which must be in this buffer: at most `max_entries`, and about
        `max_bytes`.
        """
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
    """A ledger that the store keeps in memory until its index is on disk or it is deleted."""

    __slots__ = (
        "_publish_time_of",
        "buffer",
        "extent",
        "has_refused",
        "index",
        "is_index_known",
        "ledger_id",
        "next_entry_id",
        "pending_runs",
        "queued_bytes",
        "state",
        "writing",
    )

    def __init__(
        self, ledger_id: int, extent: LedgerExtent = EMPTY_EXTENT, publish_time_of: PublishTimeOf = no_publish_time
    ) -> None:
        self.ledger_id = ledger_id
        self.state = LedgerState.OPEN
        self.extent = extent
        self.index = SegmentIndex(publish_time_of)
        # A ledger that an earlier run left open is scanned at its first use.
        self.is_index_known = extent.end_offset == 0
        self.next_entry_id = extent.entry_count
        self.pending_runs = 0
        self.queued_bytes = 0  # in the journal, until their batch has ended
        self.has_refused = False
        self.writing: EntryBuffer | None = None
        self.buffer = EntryBuffer(extent.entry_count)
        self._publish_time_of = publish_time_of

    @property
    def unstored_bytes(self) -> int:
        """Return the payload bytes in memory that no checkpoint has written."""
        return self.buffer.size_bytes + (0 if self.writing is None else self.writing.size_bytes)

    @property
    def unstored_entries(self) -> int:
        return len(self.buffer.payloads) + (0 if self.writing is None else len(self.writing.payloads))

    def set_state(self, state: LedgerState) -> None:
        assert state in _NEXT_STATES[self.state], f"ledger {self.ledger_id}: {self.state} to {state}"
        self.state = state

    def copied(self) -> LiveLedger:
        """Return an independent copy of this ledger. All its entries must be in memory (AssertionError)."""
        assert self.extent is EMPTY_EXTENT and self.writing is None, "some of it is in a file"  # noqa: PT018
        copy = LiveLedger(self.ledger_id, publish_time_of=self._publish_time_of)
        copy.state = self.state
        copy.next_entry_id = self.next_entry_id
        copy.has_refused = self.has_refused
        copy.buffer.payloads = list(self.buffer.payloads)
        copy.buffer.message_counts = list(self.buffer.message_counts)
        return copy

    def fence(self, first_refused_id: int) -> None:
        """Remove the entries from `first_refused_id` on, which the journal refused, and accept no further entries."""
        self.set_state(LedgerState.FENCED)
        self.has_refused = True
        self.buffer.cut(first_refused_id)
        if self.writing is not None:
            self.writing.cut(first_refused_id)
        self.next_entry_id = min(self.next_entry_id, first_refused_id)

    def freeze(self) -> EntryBuffer | None:
        """Move the buffered entries to `writing` and return them, for a checkpoint; None without entries. Later appends
        use a new buffer.
        """
        assert self.writing is None, "one checkpoint at a time"
        if self.buffer.payloads:
            self.writing = self.buffer
            self.buffer = EntryBuffer(self.writing.end_entry_id)
        return self.writing

    def moved(self, extent: LedgerExtent, index: SegmentIndex) -> None:
        """Free the entries in `writing`, because a checkpoint has committed them, and use the new extent and index."""
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

    def totals_before(self, entry_id: int) -> LedgerTotals:
        """Return the numbers of messages and bytes of all entries before `entry_id`, which must not be in the segment
        file yet.
        """
        assert entry_id >= self.extent.entry_count
        messages, size_bytes = self.extent.message_count, self.extent.size_bytes
        for buffer in self._buffers():
            part_messages, part_bytes = buffer.totals_before(entry_id)
            messages += part_messages
            size_bytes += part_bytes
        return LedgerTotals(messages, size_bytes)

    def buffered_message_count_of(self, entry_ids: BitMap) -> int:
        return sum(buffer.message_count_of(entry_ids) for buffer in self._buffers())

    def publish_time_span(self, publish_time_ms: int) -> tuple[int, int]:
        end = self.extent.entry_count
        if end:
            low, high = self.index.publish_time_span(publish_time_ms, end)
            if high < end:
                return low, high
        else:
            low = 0
        for buffer in self._buffers():
            if buffer.payloads:
                found = buffer.find_publish_time(publish_time_ms, self._publish_time_of)
                if found < buffer.end_entry_id:
                    return (low if found == end else found), found
                end = low = buffer.end_entry_id
        return low, end

    def summary(self) -> LedgerSummary:
        totals = self.totals_before(self.next_entry_id)
        return LedgerSummary(self.ledger_id, self.next_entry_id, totals.message_count, totals.size_bytes)

    def _buffers(self) -> list[EntryBuffer]:
        return [self.buffer] if self.writing is None else [self.writing, self.buffer]

    def check_invariants(self) -> None:
        end = self.extent.entry_count
        for buffer in (self.writing, self.buffer):
            if buffer is not None:
                assert buffer.first_entry_id == end, f"ledger {self.ledger_id}: gap at {end}"
                assert len(buffer.payloads) == len(buffer.message_counts)
                end = buffer.end_entry_id
        assert self.next_entry_id >= end
