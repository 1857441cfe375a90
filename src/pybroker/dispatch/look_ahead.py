"""Snapshots of entries that a subscription has read and cannot deliver yet, for stats and `explain`."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position


class WaitingOfHash(NamedTuple):
    """Waiting entries of one hash. `consumer` delays them; `is_draining`: it drains the hash.

    `since_ms`: time of the first entry, on the subscription's clock. From `parked_from` on, entries are not listed.
    """

    sticky_hash: int
    consumer: ConsumerState | None
    is_draining: bool
    entries: int
    since_ms: float
    parked_from: Position | None


class LookAhead(NamedTuple):
    """Waiting entries of a Key_Shared subscription. `scan_position` is set during a rescan. `is_full`: the dispatcher
    reads no new entries (`BlockedReason.LOOK_AHEAD`).
    """

    entries: int
    parked_hashes: int
    size_bytes: int
    max_size_bytes: int
    scan_position: Position | None
    is_full: bool
    most: list[WaitingOfHash]


class ChunksOfConsumer(NamedTuple):
    """Chunks that only this consumer of a Shared subscription may receive.

    `since_ms`: time of the first entry, on the subscription's clock. From `parked_from` on, entries are not listed.
    """

    consumer: ConsumerState
    entries: int
    since_ms: int | None
    parked_from: Position | None


class ChunkLookAhead(NamedTuple):
    """Chunks of large messages, each of which only one consumer of a Shared subscription may receive."""

    entries: int
    size_bytes: int
    max_size_bytes: int
    scan_position: Position | None
    consumers: list[ChunksOfConsumer]
