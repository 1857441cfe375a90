"""Interfaces to the ownership of topics in a cluster. A standalone broker has no ownership object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName


class TopicOwnership(Protocol):
    """Check whether this broker serves a topic, made before a topic is loaded and before messages are dispatched."""

    def require_served(self, topic: TopicName) -> None:
        """Raise ServiceNotReady, with Pulsar's message text, if another broker or no broker owns the bundle of `topic`.

        Raises TopicNotFound if the namespace does not exist.
        """

    async def settled(self, topic: TopicName) -> None:
        """Wait for an acquisition of the topic's bundle by this broker. Other brokers can lead clients here before it ends.

        Raises TopicNotFound if the namespace does not exist.
        """

    def holds_session(self) -> bool:
        """Return whether this broker's session with the metadata store is certainly valid, so that its bundles are
        still its own. Detects an expired session even directly after the process was frozen.
        """


class TopicsElsewhere(Protocol):
    """Operations on topics that other brokers serve. If this broker serves the topic, the methods do nothing and return
    None or False.

    All methods raise AdminError, TopicNotFound, ServiceNotReady, MetadataError, StoreError.
    """

    async def serves(self, topic: TopicName) -> bool:
        """Return whether another broker serves the topic."""

    async def delete(self, topic: TopicName, *, force: bool) -> bool:
        """Delete the topic at its owner broker."""

    async def subscriptions(self, topic: TopicName) -> Mapping[str, Mapping[str, str]] | None:
        """Return the durable subscriptions of the topic with their properties."""

    async def create_subscription(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        """Create a durable subscription at the topic's first message, unless it exists. Works also if the owner has not
        yet seen that the topic was created.
        """


class NotJoined:
    """Ownership of a broker that has not joined its cluster yet, so it serves no topic."""

    def require_served(self, topic: TopicName) -> None:
        raise ServiceNotReady(f"the broker is starting and does not serve topic {topic} yet: look the topic up again")

    async def settled(self, topic: TopicName) -> None:
        return

    def holds_session(self) -> bool:
        return False
