"""Facts that dispatchers need of many entries: one function per fact, one value per entry.

The compiled core decides entries with usual metadata, and calls the function of `entry_metadata` for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pybroker.model.chunk import Chunk
from pybroker.model.hashing import key_hash
from pybroker.wire.core import COMPILED
from pybroker.wire.entry_metadata import chunk_of, deliver_at_ms, entry_message_count, is_marker, sticky_key


def entry_key_hash(entry: bytes) -> int:
    """Return the hash of the entry's sticky key."""
    return key_hash(sticky_key(entry))


def _each(decide: Callable[[bytes], Any], entries: list[bytes]) -> list[Any]:
    return list(map(decide, entries))


key_hashes: Callable[[list[bytes]], list[int]] = partial(COMPILED.key_hashes if COMPILED else _each, entry_key_hash)
deliver_at_times_ms: Callable[[list[bytes]], list[int]] = partial(
    COMPILED.deliver_at_times if COMPILED else _each, deliver_at_ms
)
message_counts: Callable[[list[bytes]], list[int]] = partial(
    COMPILED.message_counts if COMPILED else _each, entry_message_count
)
markers: Callable[[list[bytes]], list[bool]] = partial(COMPILED.markers if COMPILED else _each, is_marker)
chunks: Callable[[list[bytes]], list[Chunk | None]] = partial(COMPILED.chunks if COMPILED else _each, chunk_of)
