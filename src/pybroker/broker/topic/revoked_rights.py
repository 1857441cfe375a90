"""Disconnection of clients whose permission was revoked.

After a change of namespace policies, of a tenant's administrators, or of `superUserRoles`, producers, consumers and topic
list watchers without permission are closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pybroker.errors import AuthorizationError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.auth.authorization import AuthorizationService
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.publishing.producer_registry import ProducerRegistry
    from pybroker.model.names import TopicName


def disconnect_revoked(
    topic: TopicName,
    producers: ProducerRegistry,
    subscriptions: Iterable[SubscriptionBase],
    authorization: AuthorizationService,
) -> None:
    if not authorization.enabled:
        return
    producers.refuse_revoked()
    for producer in list(producers.attached.values()):
        _check_producer(topic, producer, authorization)
    for subscription in list(subscriptions):
        for consumer in list(subscription.consumers):
            _check_consumer(topic, subscription.name, consumer, authorization)


def _check_producer(topic: TopicName, producer: Producer, authorization: AuthorizationService) -> None:
    try:
        authorization.require_produce(topic, producer.peer.principal)
    except AuthorizationError as error:
        logs.info("producer.right_revoked", topic=topic, producer=producer.name, reason=str(error))
        producer.close_from_broker()


def _check_consumer(
    topic: TopicName, subscription: str, consumer: Consumer, authorization: AuthorizationService
) -> None:
    try:
        authorization.require_consume(topic, subscription, consumer.peer.principal)
    except AuthorizationError as error:
        logs.info("consumer.right_revoked", topic=topic, consumer=consumer.name, reason=str(error))
        consumer.close_from_broker()
