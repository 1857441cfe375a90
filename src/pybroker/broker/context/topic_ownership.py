"""Interfaces to the ownership of topics in a cluster. A standalone broker has no ownership object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName


class TopicOwnership(Protocol):
    """Checks of whether this broker serves a topic."""

    def require_served(self, topic: TopicName) -> None:
        """Raise ServiceNotReady, with the error text of Pulsar, unless this broker owns the bundle of `topic`. Raise
        TopicNotFound if the namespace does not exist.
        """

    async def settled(self, topic: TopicName) -> None:
        """If this broker is acquiring the topic's bundle, wait until the attempt has succeeded or failed: other brokers
        may redirect clients here before that. Raises TopicNotFound if the namespace does not exist.
        """

    def holds_session(self) -> bool:
        """Return whether this broker's session with the metadata store is certainly valid, so that it owns its bundles.
        The result is correct even directly after a pause of the process, in which the session may have expired.
        """


class TopicsElsewhere(Protocol):
    """Operations on topics that other brokers serve. For a topic of this broker, methods do nothing and return None or
    False.

    All methods raise AdminError, TopicNotFound, ServiceNotReady, MetadataError, StoreError.
    """

    async def serves(self, topic: TopicName) -> bool:
        """Return whether another broker serves the topic."""

    async def delete(self, topic: TopicName, *, force: bool) -> bool:
        """Delete the topic at the broker that owns it. Return False, without a deletion, if no other broker owns it."""

    async def subscriptions(self, topic: TopicName) -> Mapping[str, Mapping[str, str]] | None:
        """Return the durable subscriptions of the topic with their properties; None if no other broker owns it."""

    async def create_subscription(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        """Create a durable subscription at the topic's first message, unless the subscription exists."""


class NotJoined:
    """Ownership of a broker that has not joined its cluster yet, and therefore serves no topic."""

    def require_served(self, topic: TopicName) -> None:
        raise ServiceNotReady(f"the broker is starting and does not serve topic {topic} yet: look the topic up again")

    async def settled(self, topic: TopicName) -> None:
        return

    def holds_session(self) -> bool:
        return False
