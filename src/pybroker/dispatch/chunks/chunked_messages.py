"""Large messages whose chunks are with consumers: one client puts a message together, so one consumer gets all of it.

A message is known from the first of its chunks that is delivered until its consumer holds none of them any more: then
all are acknowledged, or all wait to be sent again, to whomever. Entries that are no chunks are never asked about.

Invariant: a message has one consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

# The list is not looked through for messages of the past before it is this long.
_MIN_LIMIT = 100


class ChunkedMessage:
    """A message of `chunk_count` chunks, and where those stand that its consumer was sent; some may have been taken back."""

    __slots__ = ("chunk_count", "consumer", "positions", "sticky_hash")

    def __init__(self, consumer: ConsumerState, sticky_hash: int, chunk_count: int) -> None:
        self.consumer = consumer
        self.sticky_hash = sticky_hash
        self.chunk_count = chunk_count
        self.positions: set[Position] = set()


class ChunkedMessages:
    """Owned by a dispatcher, beside its pending acks, which say what is held."""

    __slots__ = ("_by_uuid", "_limit", "_pending")

    def __init__(self, pending: PendingAcks) -> None:
        self._pending = pending
        self._by_uuid: dict[bytes, ChunkedMessage] = {}
        self._limit = _MIN_LIMIT

    def __len__(self) -> int:
        return len(self._by_uuid)

    def holder(self, uuid: bytes) -> ConsumerState | None:
        """Who has chunks of the message, and must get the others."""
        message = self._by_uuid.get(uuid)
        if message is None:
            return None
        if self._held_count(message):
            return message.consumer
        del self._by_uuid[uuid]
        return None

    def find(self, uuid: bytes) -> ChunkedMessage | None:
        """The message, if somebody has chunks of it, to look at."""
        message = self._by_uuid.get(uuid)
        return message if message is not None and self._held_count(message) else None

    def held_count(self, message: ChunkedMessage) -> int:
        """How many chunks of it its consumer holds."""
        return self._held_count(message)

    def delivered(self, chunk: Chunk, consumer: ConsumerState, position: Position, sticky_hash: int = 0) -> None:
        """`consumer` has this chunk from now on."""
        message = self._by_uuid.get(chunk.uuid)
        if message is None or message.consumer is not consumer:
            if len(self._by_uuid) >= self._limit:
                self._forget_past()
            message = self._by_uuid[chunk.uuid] = ChunkedMessage(consumer, sticky_hash, chunk.chunk_count)
        message.positions.add(position)

    def incomplete(self) -> list[tuple[bytes, ChunkedMessage]]:
        """Messages of which their consumers had some chunks and not all when they were sent, by uuid, to look at; some of them may
        be acknowledged, or given back."""
        return [(uuid, each) for uuid, each in self._by_uuid.items() if len(each.positions) < each.chunk_count]

    def unfinished_hashes(self, consumer: ConsumerState) -> set[int]:
        """Hashes of messages of which `consumer` has some chunks and not all."""
        return {
            message.sticky_hash
            for message in self._by_uuid.values()
            if message.consumer is consumer and 0 < self._held_count(message) < message.chunk_count
        }

    def unfinished_holders(self, sticky_hash: int) -> list[ConsumerState]:
        """Those who have some chunks, and not all, of a message of that hash."""
        return [
            message.consumer
            for message in self._by_uuid.values()
            if message.sticky_hash == sticky_hash and 0 < self._held_count(message) < message.chunk_count
        ]

    def other_chunks(
        self, consumer: ConsumerState, positions: Sequence[Position], is_elsewhere: Callable[[int], bool]
    ) -> list[Position]:
        """Where the other chunks are of messages of which `consumer` gives back some, if their hash `is_elsewhere`."""
        given_back = set(positions)
        others: list[Position] = []
        for message in self._by_uuid.values():
            is_torn = message.consumer is consumer and not given_back.isdisjoint(message.positions)
            if is_torn and is_elsewhere(message.sticky_hash):
                others += message.positions - given_back
        return others

    def chunks_beside(self, consumer: ConsumerState, position: Position) -> list[Position]:
        """All chunks that `consumer` holds of the message of which that is one, rising; that entry alone when it is none."""
        for message in self._by_uuid.values():
            if message.consumer is consumer and position in message.positions:
                return sorted(each for each in message.positions if self._pending.holder(each) is consumer)
        return [position]

    def forget(self, consumer: ConsumerState) -> None:
        """`consumer` leaves, and holds nothing any more."""
        self._by_uuid = {uuid: each for uuid, each in self._by_uuid.items() if each.consumer is not consumer}

    def clear(self) -> None:
        self._by_uuid.clear()

    def _held_count(self, message: ChunkedMessage) -> int:
        return sum(self._pending.holder(position) is message.consumer for position in message.positions)

    def _forget_past(self) -> None:
        self._by_uuid = {uuid: message for uuid, message in self._by_uuid.items() if self._held_count(message)}
        self._limit = max(_MIN_LIMIT, 2 * len(self._by_uuid))
