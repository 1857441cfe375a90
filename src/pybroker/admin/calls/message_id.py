"""Message ids in JSON bodies of REST calls."""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import msgspec

from pybroker.model.position import Position


class MessageId(msgspec.Struct):
    """Message id in a response. The last two members exist only for a message of a batch."""

    ledgerId: int = 0
    entryId: int = 0
    partitionIndex: int = -1
    batchIndex: int = -1
    batchSize: int = 0
    outstandingAcksInSameBatch: int | None = None
    originalBatchSize: int | None = None


class ResetCursorData(msgspec.Struct):
    """Message id in a request. Only ledger id and entry id matter, because a cursor moves by whole entries."""

    ledgerId: int = 0
    entryId: int = 0
    partitionIndex: int = -1
    batchIndex: int = -1
    isExcluded: bool = False
    properties: dict[str, str] = {}

    @property
    def position(self) -> Position:
        return Position(self.ledgerId, self.entryId)


def message_id(position: Position, partition_index: int = -1) -> MessageId:
    return MessageId(position.ledger_id, position.entry_id, partition_index)


def message_id_in_batch(position: Position, partition_index: int, batch_index: int) -> MessageId:
    """Return the id of a message in a batch, or of the whole entry if `batch_index` is negative."""
    if batch_index < 0:
        return message_id(position, partition_index)
    return MessageId(position.ledger_id, position.entry_id, partition_index, batch_index, 0, 0, 0)
