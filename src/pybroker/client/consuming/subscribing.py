"""The SUBSCRIBE command of message consumers and entry consumers."""

from __future__ import annotations

from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

_MASK_64 = (1 << 64) - 1


def subscribe_command(
    topic: TopicName,
    subscription: str,
    kind: pb.CommandSubscribe.SubType,
    consumer_id: int,
    start: tuple[int, int] | None,
    *,
    is_from_earliest: bool,
    read_compacted: bool,
) -> pb.BaseCommand:
    """Return a SUBSCRIBE command: for a reader if `start` is set (ledger id and entry id, inclusive), else for a
    durable subscription. A new durable subscription begins at the first message (`is_from_earliest`) or after the last.
    """
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic = str(topic)
    request.subscription = subscription
    request.subType = kind
    request.consumer_id = consumer_id
    request.durable = start is None
    request.read_compacted = read_compacted
    request.initialPosition = pb.CommandSubscribe.Earliest if is_from_earliest else pb.CommandSubscribe.Latest
    if start is not None:
        request.start_message_id.ledgerId, request.start_message_id.entryId = (part & _MASK_64 for part in start)
    return command
