"""The chunks of large messages at the consumers of a Shared or Key_Shared subscription. The client joins the chunks, so
all chunks of a message go to one consumer.

A message is tracked from the delivery of its first chunk until its consumer has no chunk left, because each chunk is
acknowledged or was returned for redelivery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

# Completed messages are removed from the list when it has this length, and again whenever it has doubled.
_MIN_LIMIT = 100


class ChunkedMessage:
    """A chunked message of which `consumer` has received at least one chunk. `positions`: the chunks that were sent to
    it, also those that it has returned for redelivery since.
    """

    __slots__ = ("chunk_count", "consumer", "positions", "sticky_hash")

    def __init__(self, consumer: ConsumerState, sticky_hash: int, chunk_count: int) -> None:
        self.consumer = consumer
        self.sticky_hash = sticky_hash
        self.chunk_count = chunk_count
        self.positions: set[Position] = set()


class ChunkedMessages:
    """The chunked messages of one dispatcher, and the consumer of each."""

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
        """Return the messages of which some chunks were not sent yet, each with its uuid."""
        return [(uuid, each) for uuid, each in self._by_uuid.items() if len(each.positions) < each.chunk_count]

    def unfinished_hashes(self, consumer: ConsumerState) -> set[int]:
        """Return the sticky key hashes of the chunked messages of which `consumer` has received some chunks and not
        all.
        """
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
        """Return further chunks to redeliver when `consumer` requests redelivery of the chunks at `positions`: the
        other chunks of the same messages that `consumer` has received. Some may be acknowledged.

        Only messages that another consumer must receive are included: `is_elsewhere` returns True for their sticky key
        hash. All other messages stay with `consumer`, which needs only the chunks at `positions` again.
        """
        given_back = set(positions)
        others: list[Position] = []
        for message in self._by_uuid.values():
            is_torn = message.consumer is consumer and not given_back.isdisjoint(message.positions)
            if is_torn and is_elsewhere(message.sticky_hash):
                others += message.positions - given_back
        return others

    def chunks_beside(self, consumer: ConsumerState, position: Position) -> list[Position]:
        """Return the positions of all chunks that `consumer` has not acknowledged and that belong to the same message as
        the chunk at `position`, including `position`, in ascending order. Return `position` alone if the entry there is
        no chunk.
        """
        for message in self._by_uuid.values():
            if message.consumer is consumer and position in message.positions:
                return sorted(each for each in message.positions if self._pending.holder(each) is consumer)
        return [position]

    def forget(self, consumer: ConsumerState) -> None:
        self._by_uuid = {uuid: each for uuid, each in self._by_uuid.items() if each.consumer is not consumer}

    def clear(self) -> None:
        self._by_uuid.clear()

    def _held_count(self, message: ChunkedMessage) -> int:
        return sum(self._pending.holder(position) is message.consumer for position in message.positions)

    def _forget_past(self) -> None:
        self._by_uuid = {uuid: message for uuid, message in self._by_uuid.items() if self._held_count(message)}
        self._limit = max(_MIN_LIMIT, 2 * len(self._by_uuid))
