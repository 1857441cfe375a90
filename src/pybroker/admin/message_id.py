"""Message ids in the JSON of REST calls."""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import msgspec

from pybroker.model.position import Position


class MessageId(msgspec.Struct):
    """A message id as REST shows it."""

    ledgerId: int = 0
    entryId: int = 0
    partitionIndex: int = -1
    batchIndex: int = -1
    batchSize: int = 0


class ResetCursorData(msgspec.Struct):
    """A message id as REST takes it. Only the entry counts: the messages of a batch come and go together."""

    ledgerId: int = 0
    entryId: int = 0
    partitionIndex: int = -1
    batchIndex: int = -1
    isExcluded: bool = False
    properties: dict[str, str] = {}

    @property
    def position(self) -> Position:
        return Position(self.ledgerId, self.entryId)


def message_id(position: Position) -> MessageId:
    """The id of the entry at `position`."""
    return MessageId(position.ledger_id, position.entry_id)
