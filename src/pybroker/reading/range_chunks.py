"""Assembly of the chunked messages of one range of entries.

It searches the entries before the range for earlier chunks, and reads the payloads that a message needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pybroker.columns.chunks import Chunk, ChunkedMessages, EarlierChunks, LookBack, Mark
from pybroker.columns.decoder import JoinedMessage
from pybroker.columns.scanner import scanned
from pybroker.columns.scanner_layout import Flag
from pybroker.encryption.encryption_errors import CannotDecrypt
from pybroker.reading.entry_source import DataLoss
from pybroker.reading.lossy_reads import LossyReads
from pybroker.reading.positions import EntryRange, Place
from pybroker.wire.compression import DamagedPayload

if TYPE_CHECKING:
    from pybroker.columns.entry_run import EntryRun
    from pybroker.columns.payloads import DecoderLimits, Opener
    from pybroker.columns.scanner import Scanner
    from pybroker.columns.scanner_layout import Int64s, Records
    from pybroker.reading.entry_source import EntrySource

_FIRST_WINDOW_ENTRIES = 32
_LAST_WINDOW_ENTRIES = 2048
_WINDOW_BYTES = 16 * 1024 * 1024
"""Windows of the backward search begin with 32 entries, because chunks of a message are mostly close together, and double
up to 2,048 entries or this many bytes."""


class RangeChunks:
    """Assembles chunked messages for the decoder of one range, which passes its runs of entries in order.

    Payloads of chunks stay in memory up to `max_held_chunk_bytes`. Other payloads, and payloads in front of the range,
    are read when the last chunk arrives.
    """

    def __init__(
        self, source: EntrySource, entries: EntryRange, limits: DecoderLimits, opener: Opener, scanner: Scanner
    ) -> None:
        self._source = source
        self._range = entries
        self._limits = limits
        self._opener = opener
        self._scanner = scanner
        self._messages = ChunkedMessages(limits.max_chunk_span_entries, limits.max_chunk_span_bytes)
        self._earlier = EarlierChunks()
        self._windows: Iterator[EntryRange] | None = None
        self._run_start = Mark(0, 0)
        self._run_ends: Int64s | None = None
        self._held: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._held_bytes = 0

    def run_is_over(self, run: EntryRun) -> None:
        size_bytes = int(run.lengths.sum()) if run.entry_count else 0
        self._run_start = Mark(self._run_start.entries + run.entry_count, self._run_start.size_bytes + size_bytes)
        self._run_ends = None

    def add(self, run: EntryRun, number: int, entry: np.void, payload: bytes) -> JoinedMessage | None:
        if self._run_ends is None:
            self._run_ends = np.cumsum(run.lengths)
        start, end = self._run_start, int(self._run_ends[number])
        begin_mark = Mark(start.entries + number, start.size_bytes + end - int(run.lengths[number]))
        end_mark = Mark(start.entries + number + 1, start.size_bytes + end)
        chunk = _chunk_of(run, number, entry, memoryview(run.data).cast("B"))
        found = self._messages.add(chunk, begin_mark, end_mark)
        self._hold(chunk, payload)
        if isinstance(found, LookBack):
            found = self._messages.found(found, *self._look_back(found))
        return self._joined(found) if found else None

    # Before the range.

    def _look_back(self, asked: LookBack) -> tuple[list[Chunk], Mark | None]:
        while (found := self._earlier.from_nearest_first(asked.uuid)) is None:
            if not self._messages.may_begin_at(self._earlier.reached, asked):
                return [], None
            if self._windows is None:
                self._windows = self._windows_backwards()
            window = next(self._windows, None)
            if window is None:
                return [], None
            self._read_window(window)
        return found

    def _windows_backwards(self) -> Iterator[EntryRange]:
        topic = self._range.topic
        plan = self._source.plan(topic, None, Place(self._range.ledger_id, self._range.first_entry_id))
        size = _FIRST_WINDOW_ENTRIES
        for ledger in reversed(plan.ledgers):
            end = ledger.end_entry_id
            entry_bytes = max(1, ledger.size_bytes // max(1, end - ledger.first_entry_id))
            most = max(1, _WINDOW_BYTES // entry_bytes)
            while end > ledger.first_entry_id:
                first = max(ledger.first_entry_id, end - min(size, most))
                yield EntryRange(topic, ledger.ledger_id, first, end)
                end = first
                size = min(size * 2, _LAST_WINDOW_ENTRIES)

    def _read_window(self, window: EntryRange) -> None:
        chunks: list[tuple[Chunk, Mark]] = []
        entry_count = size_bytes = 0
        for run in self._source.read(window):
            entries = self._scanned(run)
            is_chunk = (entries["chunk_count"] != 0) & (entries["error"] == 0)
            is_chunk &= (entries["flags"] & int(Flag.MARKER)) == 0
            view = memoryview(run.data).cast("B")
            ends = np.cumsum(run.lengths)
            for number in np.flatnonzero(is_chunk).tolist():
                begin = size_bytes + int(ends[number]) - int(run.lengths[number])
                chunks.append((_chunk_of(run, number, entries[number], view), Mark(entry_count + number, begin)))
            entry_count += run.entry_count
            size_bytes += int(run.lengths.sum())
        self._earlier.add_window(chunks, entry_count, size_bytes)

    def _hold(self, chunk: Chunk, payload: bytes) -> None:
        if len(payload) > self._limits.max_held_chunk_bytes:
            return
        self._held[chunk.ledger_id, chunk.entry_id] = payload
        self._held_bytes += len(payload)
        while self._held_bytes > self._limits.max_held_chunk_bytes:
            _, oldest = self._held.popitem(last=False)
            self._held_bytes -= len(oldest)

    def _joined(self, chunks: list[Chunk]) -> JoinedMessage | None:
        size_bytes = sum(chunk.payload_bytes for chunk in chunks)
        limit_bytes = self._limits.max_chunked_message_bytes
        if size_bytes > limit_bytes:
            raise DamagedPayload(
                f"the message has {len(chunks)} chunks with {size_bytes} bytes, which is over the limit of "
                f"{limit_bytes} bytes (maxChunkedMessageBytes)"
            )
        pieces: dict[tuple[int, int], bytes] = {}
        missing = []
        for chunk in chunks:
            held = self._held.pop((chunk.ledger_id, chunk.entry_id), None)
            if held is None:
                missing.append(chunk)
            else:
                self._held_bytes -= len(held)
                pieces[chunk.ledger_id, chunk.entry_id] = held
        try:
            for group in _neighbours(missing):
                self._read_again(group, pieces)
        except CannotDecrypt:
            return None  # a message is lost with any chunk that cannot be decrypted
        except DataLoss:
            if isinstance(self._source, LossyReads):
                return None  # a message is lost with any of its chunks
            raise
        payload = b"".join(pieces[chunk.ledger_id, chunk.entry_id] for chunk in chunks)
        return JoinedMessage(payload, chunks[0].ledger_id, chunks[0].entry_id)

    def _read_again(self, chunks: list[Chunk], pieces: dict[tuple[int, int], bytes]) -> None:
        ledger_id, first = chunks[0].ledger_id, chunks[0].entry_id
        for run in self._source.read(EntryRange(self._range.topic, ledger_id, first, chunks[-1].entry_id + 1)):
            view = memoryview(run.data).cast("B")
            for number, entry in enumerate(self._scanned(run)):
                pieces[run.ledger_id, run.first_entry_id + number] = self._payload(view, entry)
        for chunk in chunks:
            if (ledger_id, chunk.entry_id) not in pieces:
                raise DataLoss(
                    f"{self._range.topic}: entry {ledger_id}:{chunk.entry_id} is lost, so the chunked "
                    "message to which this entry belongs cannot be read"
                )

    def _payload(self, view: memoryview, entry: np.void) -> bytes:
        at, size = int(entry["payload_at"]), int(entry["payload_bytes"])
        payload = bytes(view[at : at + size])
        if entry["flags"] & int(Flag.ENCRYPTED):
            metadata_at = int(entry["metadata_at"])
            metadata = bytes(view[metadata_at : metadata_at + int(entry["metadata_bytes"])])
            payload = self._opener.decrypted(metadata, payload)
        return payload

    def _scanned(self, run: EntryRun) -> Records:
        return scanned(self._scanner, run, 0, run.entry_count)


def _chunk_of(run: EntryRun, number: int, entry: np.void, view: memoryview) -> Chunk:
    uuid_at = int(entry["uuid_at"])
    uuid = bytes(view[uuid_at : uuid_at + int(entry["uuid_bytes"])])
    entry_id = run.first_entry_id + number
    size_bytes = int(entry["payload_bytes"])
    return Chunk(uuid, int(entry["chunk_id"]), int(entry["chunk_count"]), run.ledger_id, entry_id, size_bytes)


def _neighbours(chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    group: list[Chunk] = []
    for chunk in chunks:
        if group and (chunk.ledger_id, chunk.entry_id) != (group[-1].ledger_id, group[-1].entry_id + 1):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group
