"""A chunk: one entry with a part of a message that was too large for a single entry."""

from __future__ import annotations

from typing import NamedTuple


class Chunk(NamedTuple):
    """The uuid of a chunked message, and the number of a chunk: `index` counts from 0 to `chunk_count` - 1."""

    uuid: bytes
    chunk_id: int
    chunk_count: int
