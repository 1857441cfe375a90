"""Admission of producers: limits of the number of producers of a topic, and required encryption.

Policies are checked only when a producer connects. A limit of 0 means unlimited. System topics have no limits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pybroker.broker.context.peer import Peer, is_same_host
from pybroker.errors import MetadataError, ProducerBusy
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.publishing.producer import Producer


def require_room_for_producer(topic: TopicContext, attached: Collection[Producer], peer: Peer) -> None:
    """Check that neither the topic nor the client's IP address has reached its producer limit. Raises ProducerBusy."""
    if is_system_topic(topic.name):
        return
    limit = topic.policies.max_producers
    if 0 < limit <= len(attached):
        raise ProducerBusy(f"Topic '{topic.name}' reached max producers limit (maxProducersPerTopic={limit})")
    limit = topic.runtime.config.max_same_address_producers_per_topic
    if 0 < limit <= sum(is_same_host(each.peer, peer) for each in attached):
        raise ProducerBusy(
            f"Topic '{topic.name}' reached max same address producers limit (maxSameAddressProducersPerTopic={limit})"
        )


def require_encryption(topic: TopicContext, producer: Producer) -> None:
    """Check that the producer declares encryption if the topic requires it. Raises MetadataError."""
    if not producer.is_encrypted and topic.is_encryption_required:
        raise MetadataError(f"Encryption is required in {topic.name}")
