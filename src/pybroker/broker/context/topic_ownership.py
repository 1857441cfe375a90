"""Whether this broker serves a topic, in a cluster whose brokers share the topics. A broker alone has no such object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName


class TopicOwnership(Protocol):
    """Asked before a topic is loaded, and before messages are dispatched."""

    def require_served(self, topic: TopicName) -> None:
        """Raises ServiceNotReady with Pulsar's text unless this broker owns the bundle of `topic`, and TopicNotFound."""

    def holds_session(self) -> bool:
        """Return whether this broker certainly still owns what it owned. Right immediately after a freeze of the process."""


class TopicsElsewhere(Protocol):
    """Operations of this broker on topics that other brokers serve. Each returns None or False if this broker serves the topic.

    Raises AdminError, TopicNotFound, ServiceNotReady, MetadataError, StoreError.
    """

    async def serves(self, topic: TopicName) -> bool:
        """Return whether another broker serves the topic."""

    async def delete(self, topic: TopicName, *, force: bool) -> bool:
        """Delete the topic at its owner."""

    async def subscriptions(self, topic: TopicName) -> Mapping[str, Mapping[str, str]] | None:
        """Return the properties of each durable subscription."""

    async def create_subscription(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        """Create a subscription at the first message, unless it exists. The owner may not know yet that the topic exists."""


class NotJoined:
    """The ownership of a broker that has not joined its cluster yet: it serves no topic."""

    def require_served(self, topic: TopicName) -> None:
        raise ServiceNotReady(f"topic {topic} is not served by this broker, which is starting; look it up again")

    def holds_session(self) -> bool:
        return False
