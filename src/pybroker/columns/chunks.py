"""Which entries together are one message: chunks, as their producers cut what was too large for one entry.

The rule is that of the clients. A message begins with chunk 0; the next chunk that counts is the next number of the same uuid;
one that was there already is a producer's second attempt and is passed over; anything else ends the message without a result
until its chunk 0 comes again. Chunks of several messages stand between each other. So whether an entry completes a message
depends on the entries from the nearest chunk 0 of its uuid in front of it up to itself, and on nothing else: ranges can be cut
anywhere as long as that chunk 0 is looked for in front of the range as well.

Only places are kept here, no payloads: their owner reads them when a message is complete.
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
    """A place in the topic, as the entries and bytes between it and the start of the range that is read; negative before it."""

    entries: int
    size_bytes: int

    def is_within(self, max_entries: int, max_bytes: int, of: Mark) -> bool:
        """Whether not more than that lies between this place and a later one."""
        return of.entries - self.entries <= max_entries and of.size_bytes - self.size_bytes <= max_bytes


@dataclass
class _Sequence:
    """Chunks of one uuid from a chunk 0 on."""

    begin: Mark
    chunks: list[Chunk] = field(default_factory=list)
    is_over: bool = False
    """Complete, or broken: nothing comes of it any more."""

    def add(self, chunk: Chunk) -> bool:
        """Whether the message is complete with this one."""
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
    """Chunks of one uuid whose chunk 0 is not in the range as far as it was read."""

    begin: Mark
    chunks: list[Chunk] = field(default_factory=list)


class LookBack(NamedTuple):
    """A last chunk came, and chunk 0 of its message must be looked for in front of the range."""

    uuid: bytes
    end: Mark


class ChunkedMessages:
    """The chunks of one range of entries, added in order.

    Memory: for each uuid with a chunk within the last `max_entries` entries and `max_bytes` bytes the places of its chunks.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        """A message from whose first to whose last chunk there is more than that was never completed."""
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._open: OrderedDict[bytes, _Sequence | _Headless] = OrderedDict()

    def add(self, chunk: Chunk, begin: Mark, end: Mark) -> list[Chunk] | LookBack | None:
        """The chunks of the message that is complete with this one, which stands from `begin` to `end`; or None.

        After LookBack, `found` has to be called before the next `add`.
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
        """What `earlier` makes of the last chunk that was added: all chunks of its uuid in front of the range from the nearest
        chunk 0 on, which stands at `begin`; none when there is no chunk 0, or only one too far away.
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
            if is_complete:  # by an earlier one
                known.complete()
            is_complete = known.add(chunk)
        return self._completed(known, asked.end) if is_complete else None

    def may_begin_at(self, begin: Mark, asked: LookBack) -> bool:
        """Whether a chunk 0 at this place would still be near enough."""
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
    """What was found in front of a range so far, window by window backwards."""

    def __init__(self) -> None:
        self.reached = Mark(0, 0)
        """Everything between this place and the range is known."""
        self._chunks: dict[bytes, list[tuple[Chunk, Mark]]] = {}

    def add_window(self, chunks: Sequence[tuple[Chunk, Mark]], entries: int, size_bytes: int) -> None:
        """The window in front of what was reached, with so many entries and bytes: its chunks in order, each with its place from
        the window's start on.
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
        """The chunks of that uuid from the nearest chunk 0 on, and its place; None when none was found yet."""
        chunks = self._chunks.get(uuid, [])
        for number in range(len(chunks) - 1, -1, -1):
            chunk, place = chunks[number]
            if chunk.chunk_id == 0:
                return [each for each, _ in chunks[number:]], place
        return None
