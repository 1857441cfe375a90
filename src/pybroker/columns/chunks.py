"""Assembly of chunked messages, which producers split because they exceed the size of one entry.

The rules are those of Pulsar's clients. A message begins with chunk 0, and its chunk ids must be consecutive. A
repeated chunk is a retry of the producer and is skipped. Any other chunk discards the message until its chunk 0 appears
again. Chunks of several messages may interleave. A range of entries may begin inside a message: the caller then reads
backwards from the range to the message's chunk 0.

Only positions are stored. The caller reads the payloads when a message is complete.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Chunk(NamedTuple):
    """A stored chunk: 0 <= `chunk_id` < `chunk_count`, and `chunk_count` > 1."""

    uuid: bytes
    chunk_id: int
    chunk_count: int
    ledger_id: int
    entry_id: int
    payload_bytes: int

    @property
    def is_last(self) -> bool:
        return self.chunk_id == self.chunk_count - 1


class Mark(NamedTuple):
    """A position in a ledger, as its distance in entries and bytes from the start of the range of entries. Positions in
    front of the range are negative.
    """

    entries: int
    size_bytes: int

    def is_within(self, max_entries: int, max_bytes: int, of: Mark) -> bool:
        return of.entries - self.entries <= max_entries and of.size_bytes - self.size_bytes <= max_bytes


@dataclass
class _Sequence:
    """The chunks of one message, beginning with chunk 0."""

    begin: Mark
    chunks: list[Chunk] = field(default_factory=list)
    is_over: bool = False
    """Complete or discarded: further chunks are ignored."""

    def add(self, chunk: Chunk) -> bool:
        if self.is_over or chunk.chunk_id < len(self.chunks):
            return False
        if chunk.chunk_id > len(self.chunks) or (self.chunks and chunk.chunk_count != self.chunks[0].chunk_count):
            self._end()
            return False
        self.chunks.append(chunk)
        return chunk.is_last

    def _end(self) -> None:
        self.is_over = True
        self.chunks = []

    def complete(self) -> list[Chunk]:
        chunks = self.chunks
        self._end()
        return chunks


@dataclass
class _Headless:
    """Chunks of a message whose chunk 0 has not been found in the range."""

    begin: Mark
    chunks: list[Chunk] = field(default_factory=list)


class LookBack(NamedTuple):
    """A request to the caller to search backwards from the range for chunk 0 of a message whose last chunk was read."""

    uuid: bytes
    end: Mark


class ChunkedMessages:
    """The chunked messages of one range of entries. The caller adds their chunks in order. A message that extends over
    more than `max_entries` or `max_bytes` (the limits) is never completed.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        """The limits apply to the span of one message, from its first chunk to its last. A longer message is never
        completed.
        """
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._open: OrderedDict[bytes, _Sequence | _Headless] = OrderedDict()

    def add(self, chunk: Chunk, begin: Mark, end: Mark) -> list[Chunk] | LookBack | None:
        """Add the next chunk, which extends from `begin` to `end`. Return all chunks of its message if the message is
        now complete, None if it is not, or LookBack if the chunk is the last one of a message whose chunk 0 is in front
        of the range. After LookBack, the caller must call `found` before the next `add`.
        """
        self._forget_old(end)
        known = self._open.get(chunk.uuid)
        if chunk.chunk_id == 0:
            known = self._begin(chunk.uuid, _Sequence(begin))
        elif known is None:
            known = self._begin(chunk.uuid, _Headless(begin))
        if isinstance(known, _Sequence):
            return self._completed(known, end) if known.add(chunk) else None
        known.chunks.append(chunk)
        return LookBack(chunk.uuid, end) if chunk.is_last else None

    def found(self, asked: LookBack, earlier: Sequence[Chunk], begin: Mark | None) -> list[Chunk] | None:
        """Add the result of a backward search that `add` requested with `asked`. Return all chunks of the message, or
        None if they are not complete.

        `earlier` are the message's chunks in front of the range, from the nearest chunk 0 on, which is at `begin`.
        `begin` is None if there is no chunk 0 within the limits.
        """
        headless = self._open.pop(asked.uuid)
        assert isinstance(headless, _Headless)
        if begin is None:
            self._begin(asked.uuid, _Sequence(headless.begin, is_over=True))
            return None
        known = _Sequence(begin)
        self._begin(asked.uuid, known)
        is_complete = False
        for chunk in (*earlier, *headless.chunks):
            if is_complete:
                known.complete()
            is_complete = known.add(chunk)
        return self._completed(known, asked.end) if is_complete else None

    def may_begin_at(self, begin: Mark, asked: LookBack) -> bool:
        """Return whether a message that begins at `begin` is within the limits. If not, the caller stops the backward
        search that `asked` requests.
        """
        return begin.is_within(self._max_entries, self._max_bytes, asked.end)

    def _completed(self, known: _Sequence, end: Mark) -> list[Chunk] | None:
        chunks = known.complete()
        return chunks if known.begin.is_within(self._max_entries, self._max_bytes, end) else None

    def _begin(self, uuid: bytes, known: _Sequence | _Headless) -> _Sequence | _Headless:
        self._open[uuid] = known
        self._open.move_to_end(uuid)
        return known

    def _forget_old(self, end: Mark) -> None:
        while self._open:
            uuid, oldest = next(iter(self._open.items()))
            if oldest.begin.is_within(self._max_entries, self._max_bytes, end):
                return
            del self._open[uuid]


class EarlierChunks:
    """The chunks in front of a range, which the caller reads backwards in windows of entries."""

    def __init__(self) -> None:
        self.reached = Mark(0, 0)
        """All chunks between this mark and the range are known."""
        self._chunks: dict[bytes, list[tuple[Chunk, Mark]]] = {}

    def add_window(self, chunks: Sequence[tuple[Chunk, Mark]], entries: int, size_bytes: int) -> None:
        """Add the chunks of the next window, which has `entries` entries with `size_bytes` in total. It ends where the
        previous window began. The marks of `chunks` are relative to the start of the new window.
        """
        start = Mark(self.reached.entries - entries, self.reached.size_bytes - size_bytes)
        found: dict[bytes, list[tuple[Chunk, Mark]]] = {}
        for chunk, mark in chunks:
            place = Mark(start.entries + mark.entries, start.size_bytes + mark.size_bytes)
            found.setdefault(chunk.uuid, []).append((chunk, place))
        for uuid, earlier in found.items():
            self._chunks[uuid] = earlier + self._chunks.get(uuid, [])
        self.reached = start

    def from_nearest_first(self, uuid: bytes) -> tuple[list[Chunk], Mark] | None:
        """Find the chunk 0 of message `uuid` that is nearest to the range. Return this and all later chunks of the
        message in front of the range, and the position of chunk 0; None if no chunk 0 has been found.
        """
        chunks = self._chunks.get(uuid, [])
        for number in range(len(chunks) - 1, -1, -1):
            chunk, place = chunks[number]
            if chunk.chunk_id == 0:
                return [each for each, _ in chunks[number:]], place
        return None
