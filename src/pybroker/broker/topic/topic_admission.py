"""How many producers, consumers and subscriptions a topic takes, and of what kind; each function raises what the client is told.

Limits are looked up in the policies whenever somebody comes: a lower one turns newcomers away, nobody who is there. A limit of 0
is none. Topics of the broker itself take everybody.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pybroker.broker.peer import Peer
from pybroker.errors import ConsumerBusy, MetadataError, NotAllowedError, ProducerBusy
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.topic_commons import TopicCommons


def require_room_for_producer(topic: TopicCommons, attached: Collection[Producer], peer: Peer) -> None:
    """Raises ProducerBusy when the topic takes no more producers, or no more from the address of `peer`."""
    if is_system_topic(topic.name):
        return
    limit = topic.policies.max_producers
    if 0 < limit <= len(attached):
        raise ProducerBusy(f"Topic '{topic.name}' reached max producers limit (maxProducersPerTopic={limit})")
    limit = topic.surroundings.config.max_same_address_producers_per_topic
    if 0 < limit <= sum(_is_neighbour(each.peer, peer) for each in attached):
        raise ProducerBusy(
            f"Topic '{topic.name}' reached max same address producers limit (maxSameAddressProducersPerTopic={limit})"
        )


def require_encryption(topic: TopicCommons, producer: Producer) -> None:
    """Raises MetadataError for a producer that does not encrypt, where everybody must."""
    if not producer.is_encrypted and topic.is_encryption_required:
        raise MetadataError(f"Encryption is required in {topic.name}")


def require_room_for_consumer(topic: TopicCommons, subscriptions: Collection[SubscriptionBase], peer: Peer) -> None:
    """Raises ConsumerBusy when the topic takes no more consumers, or no more from the address of `peer`."""
    if is_system_topic(topic.name):
        return
    limit = topic.policies.max_consumers
    if 0 < limit <= sum(len(subscription.consumers) for subscription in subscriptions):
        raise ConsumerBusy(f"Topic reached max consumers limit (maxConsumersPerTopic={limit})")
    limit = topic.surroundings.config.max_same_address_consumers_per_topic
    if limit > 0:
        present = sum(_is_neighbour(each.peer, peer) for one in subscriptions for each in one.consumers)
        if limit <= present:
            raise ConsumerBusy(
                f"Topic reached max same address consumers limit (maxSameAddressConsumersPerTopic={limit})"
            )


def require_room_on_subscription(subscription: SubscriptionBase) -> None:
    """Raises ConsumerBusy when the subscription takes no more consumers."""
    topic = subscription.topic
    limit = topic.policies.max_consumers_per_subscription
    if 0 < limit <= len(subscription.consumers) and not is_system_topic(topic.name):
        raise ConsumerBusy(f"Subscription reached max consumers limit (maxConsumersPerSubscription={limit})")


def require_room_for_subscription(topic: TopicCommons, subscription_count: int) -> None:
    """Raises NotAllowedError when the topic, which has or is about to have so many, takes no more subscriptions."""
    limit = topic.policies.max_subscriptions
    if 0 < limit <= subscription_count and not is_system_topic(topic.name):
        raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {topic.name} ({limit})")


def require_type_enabled(topic: TopicCommons, kind: str) -> None:
    """Raises NotAllowedError for a subscription type that may not be used; consumers that use it already stay."""
    if kind not in topic.policies.subscription_types_enabled and not is_system_topic(topic.name):
        raise NotAllowedError(f"Topic {topic.name} doesn't support {kind} sub type (subscriptionTypesEnabled)")
    if kind == "Key_Shared" and not topic.surroundings.config.subscription_key_shared_enable:
        raise NotAllowedError("Key_Shared subscription is disabled by broker (subscriptionKeySharedEnable)")


def _is_neighbour(peer: Peer, other: Peer) -> bool:
    return _host(peer) == _host(other)


def _host(peer: Peer) -> str:
    return peer.address.rpartition(":")[0]
