"""Large messages with chunks at consumers. One client assembles a message, so all its chunks go to one consumer.

A message is tracked from the delivery of its first chunk until its consumer holds none: then all are acknowledged, or
all wait for redelivery to any consumer.

Invariant: a message has one consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

# The list is not cleaned of old messages before it has this length.
_MIN_LIMIT = 100


class ChunkedMessage:
    """`positions` were sent to `consumer`; some of them may have been taken back."""

    __slots__ = ("chunk_count", "consumer", "positions", "sticky_hash")

    def __init__(self, consumer: ConsumerState, sticky_hash: int, chunk_count: int) -> None:
        self.consumer = consumer
        self.sticky_hash = sticky_hash
        self.chunk_count = chunk_count
        self.positions: set[Position] = set()


class ChunkedMessages:
    """Owned by one dispatcher; its pending acks determine which chunks are held."""

    __slots__ = ("_by_uuid", "_limit", "_pending")

    def __init__(self, pending: PendingAcks) -> None:
        self._pending = pending
        self._by_uuid: dict[bytes, ChunkedMessage] = {}
        self._limit = _MIN_LIMIT

    def __len__(self) -> int:
        return len(self._by_uuid)

    def holder(self, uuid: bytes) -> ConsumerState | None:
        message = self._by_uuid.get(uuid)
        if message is None:
            return None
        if self._held_count(message):
            return message.consumer
        del self._by_uuid[uuid]
        return None

    def find(self, uuid: bytes) -> ChunkedMessage | None:
        """Return the message only if a consumer has chunks of it."""
        message = self._by_uuid.get(uuid)
        return message if message is not None and self._held_count(message) else None

    def held_count(self, message: ChunkedMessage) -> int:
        return self._held_count(message)

    def delivered(self, chunk: Chunk, consumer: ConsumerState, position: Position, sticky_hash: int = 0) -> None:
        message = self._by_uuid.get(chunk.uuid)
        if message is None or message.consumer is not consumer:
            if len(self._by_uuid) >= self._limit:
                self._forget_past()
            message = self._by_uuid[chunk.uuid] = ChunkedMessage(consumer, sticky_hash, chunk.chunk_count)
        message.positions.add(position)

    def incomplete(self) -> list[tuple[bytes, ChunkedMessage]]:
        """Return messages, by uuid, of which not all chunks were sent; sent ones may have been acknowledged since."""
        return [(uuid, each) for uuid, each in self._by_uuid.items() if len(each.positions) < each.chunk_count]

    def unfinished_hashes(self, consumer: ConsumerState) -> set[int]:
        """Return the hashes of messages of which `consumer` has some chunks but not all."""
        return {
            message.sticky_hash
            for message in self._by_uuid.values()
            if message.consumer is consumer and 0 < self._held_count(message) < message.chunk_count
        }

    def unfinished_holders(self, sticky_hash: int) -> list[ConsumerState]:
        return [
            message.consumer
            for message in self._by_uuid.values()
            if message.sticky_hash == sticky_hash and 0 < self._held_count(message) < message.chunk_count
        ]

    def other_chunks(
        self, consumer: ConsumerState, positions: Sequence[Position], is_elsewhere: Callable[[int], bool]
    ) -> list[Position]:
        """Return the other chunks of messages that `consumer` returns partly, if `is_elsewhere` is true for their hash."""
        given_back = set(positions)
        others: list[Position] = []
        for message in self._by_uuid.values():
            is_torn = message.consumer is consumer and not given_back.isdisjoint(message.positions)
            if is_torn and is_elsewhere(message.sticky_hash):
                others += message.positions - given_back
        return others

    def chunks_beside(self, consumer: ConsumerState, position: Position) -> list[Position]:
        """Return all chunks of this entry's message that `consumer` holds, ascending; the entry alone if it is no
        chunk.
        """
        for message in self._by_uuid.values():
            if message.consumer is consumer and position in message.positions:
                return sorted(each for each in message.positions if self._pending.holder(each) is consumer)
        return [position]

    def forget(self, consumer: ConsumerState) -> None:
        """The consumer must hold no entries."""
        self._by_uuid = {uuid: each for uuid, each in self._by_uuid.items() if each.consumer is not consumer}

    def clear(self) -> None:
        self._by_uuid.clear()

    def _held_count(self, message: ChunkedMessage) -> int:
        return sum(self._pending.holder(position) is message.consumer for position in message.positions)

    def _forget_past(self) -> None:
        self._by_uuid = {uuid: message for uuid, message in self._by_uuid.items() if self._held_count(message)}
        self._limit = max(_MIN_LIMIT, 2 * len(self._by_uuid))
