"""A producer of a connection, and the topic that takes what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.topic_base import TopicBase


class OpenProducer:
    """Owned by its connection, under the producer's id: the producer itself does not know of its topic."""

    __slots__ = ("producer", "topic")

    def __init__(self, topic: TopicBase, producer: Producer) -> None:
        self.topic = topic
        self.producer = producer

    def detach(self) -> None:
        """Give its place on the topic up."""
        self.producer.detach()
