"""A connection's producers, and the ids of producers that the broker closed recently."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pybroker.broker.context.peer import ThrottledPublish
from pybroker.broker.limits.publish_rate_limit import PublishRateLimit
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.broker.limits.publish_rate_limit import PublishWaiter, WaitingPublishers
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.topic_base import TopicBase


class OpenProducer:
    """A producer of a connection, and its topic."""

    __slots__ = ("producer", "topic")

    def __init__(self, topic: TopicBase, producer: Producer) -> None:
        self.topic = topic
        self.producer = producer

    def throttled_by(self, limit: WaitingPublishers | None) -> ThrottledPublish | None:
        """Describe why and since when the publish limit `limit` delays a message of this producer. Return None if
        `limit` is None.
        """
        if limit is None:
            return None
        rate = limit.rate if isinstance(limit, PublishRateLimit) else None
        since_ms = limit.waits_since_ms(cast("PublishWaiter", self.producer.peer))
        return ThrottledPublish(self.producer.name, self.topic.name, limit, rate, since_ms, len(limit))

    def detach(self) -> None:
        self.producer.detach()


class RecentIds:
    """Ids of producers that the broker closed recently. Messages in transit from them are dropped."""

    MAX = 1000

    def __init__(self) -> None:
        self._ids: dict[int, None] = {}

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._ids

    def add(self, producer_id: int) -> None:
        self._ids[producer_id] = None
        if len(self._ids) > self.MAX:
            del self._ids[next(iter(self._ids))]

    def discard(self, producer_id: int) -> None:
        self._ids.pop(producer_id, None)


def producer_success(request_id: int, opened: OpenProducer) -> bytes:
    producer = opened.producer
    reply = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
    success = reply.producer_success
    success.request_id = request_id
    success.producer_name = producer.name
    success.last_sequence_id = opened.topic.last_sequence_id(producer.name)
    success.schema_version = producer.schema_version
    success.producer_ready = not producer.is_waiting
    if producer.topic_epoch is not None:
        success.topic_epoch = producer.topic_epoch
    return replies.frame(reply)
