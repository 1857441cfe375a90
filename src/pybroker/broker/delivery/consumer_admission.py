"""Admission of consumers: limits of consumers and subscriptions of a topic, and enabled subscription types.

Policies are checked only when a consumer connects. A limit of 0 means unlimited. System topics have no limits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pybroker.broker.context.peer import Peer, is_same_host
from pybroker.errors import ConsumerBusy, NotAllowedError
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.subscription_base import SubscriptionBase


def require_room_for_consumer(topic: TopicContext, subscriptions: Collection[SubscriptionBase], peer: Peer) -> None:
    """Check that neither the topic nor the client's IP address has reached its consumer limit. Raises ConsumerBusy."""
    if is_system_topic(topic.name):
        return
    limit = topic.policies.max_consumers
    if 0 < limit <= sum(len(subscription.consumers) for subscription in subscriptions):
        raise ConsumerBusy(f"Topic reached max consumers limit (maxConsumersPerTopic={limit})")
    limit = topic.runtime.config.max_same_address_consumers_per_topic
    if limit > 0:
        present = sum(is_same_host(each.peer, peer) for one in subscriptions for each in one.consumers)
        if limit <= present:
            raise ConsumerBusy(
                f"Topic reached max same address consumers limit (maxSameAddressConsumersPerTopic={limit})"
            )


def require_room_on_subscription(subscription: SubscriptionBase) -> None:
    """Check that the subscription has not reached its consumer limit. Raises ConsumerBusy."""
    topic = subscription.topic
    limit = topic.policies.max_consumers_per_subscription
    if 0 < limit <= len(subscription.consumers) and not is_system_topic(topic.name):
        raise ConsumerBusy(f"Subscription reached max consumers limit (maxConsumersPerSubscription={limit})")


def require_room_for_subscription(topic: TopicContext, subscription_count: int) -> None:
    """Check that the topic has not reached its subscription limit. `subscription_count` includes subscriptions that are
    being created. Raises NotAllowedError.
    """
    limit = topic.policies.max_subscriptions
    if 0 < limit <= subscription_count and not is_system_topic(topic.name):
        raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {topic.name} ({limit})")


def require_type_enabled(topic: TopicContext, kind: str) -> None:
    """Check that the subscription type `kind` is enabled. Raises NotAllowedError."""
    if kind not in topic.policies.subscription_types_enabled and not is_system_topic(topic.name):
        raise NotAllowedError(f"Topic {topic.name} doesn't support {kind} sub type (subscriptionTypesEnabled)")
    if kind == "Key_Shared" and not topic.runtime.config.subscription_key_shared_enable:
        raise NotAllowedError("Key_Shared subscription is disabled by broker (subscriptionKeySharedEnable)")
