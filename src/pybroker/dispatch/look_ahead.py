"""What a subscription has read and cannot deliver yet, for people to look at: how much, and because of whom."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position


class WaitingOfHash(NamedTuple):
    """What is listed of one hash, to look at: because of whom, whether that drains it, how much, since when.

    Since when: the time of the first of them, as the subscription told it. With `parked_from`, more is not listed.
    """

    sticky_hash: int
    consumer: ConsumerState | None
    is_draining: bool
    entries: int
    since_ms: float
    parked_from: Position | None


class LookAhead(NamedTuple):
    """What waits in a Key_Shared subscription, to look at. `scan_position`: how far a second reading is, if one is under way.

    `is_full`: so many entries wait that nothing new is read (`Gate.LOOK_AHEAD`).
    """

    entries: int
    parked_hashes: int
    size_bytes: int
    max_size_bytes: int
    scan_position: Position | None
    is_full: bool
    most: list[WaitingOfHash]


class ChunksOfConsumer(NamedTuple):
    """Chunks that only this consumer of a Shared subscription may get, since it has others of their messages, to look at.

    Since when: the time when the first of them was listed. With `parked_from`, more is not listed.
    """

    consumer: ConsumerState
    entries: int
    since_ms: int | None
    parked_from: Position | None


class ChunkLookAhead(NamedTuple):
    """What waits in a Shared subscription for one consumer each, to look at."""

    entries: int
    size_bytes: int
    max_size_bytes: int
    scan_position: Position | None
    consumers: list[ChunksOfConsumer]
