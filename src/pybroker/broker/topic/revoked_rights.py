"""Disconnection of clients whose permission was revoked.

After a change of namespace policies, of a tenant's administrators, or of `superUserRoles`, producers, consumers and topic
list watchers without permission are closed, also if the provider does not answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from pybroker.errors import BrokerError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.auth.authorization import AuthorizationService
    from pybroker.auth.proxied_role import Principal
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.publishing.producer_registry import ProducerRegistry
    from pybroker.model.names import TopicName


async def disconnect_revoked(
    topic: TopicName,
    producers: ProducerRegistry,
    subscriptions: Iterable[SubscriptionBase],
    authorization: AuthorizationService,
) -> None:
    if not authorization.enabled:
        return
    checks = _Checks(topic, authorization)
    for producer in producers.without_access():
        if (error := await checks.of_producer(producer)) is not None:
            producers.refuse_revoked(producer, error)
    for producer in list(producers.attached.values()):
        if (error := await checks.of_producer(producer)) is not None and not producer.is_closed:
            logs.info("producer.right_revoked", topic=topic, producer=producer.name, reason=str(error))
            producer.close_from_broker()
    for subscription in list(subscriptions):
        for consumer in list(subscription.consumers):
            error = await checks.of_consumer(subscription.name, consumer)
            if error is not None and not consumer.is_closed:
                logs.info("consumer.right_revoked", topic=topic, consumer=consumer.name, reason=str(error))
                consumer.close_from_broker()


class _Checks:
    """The checks of one topic after one change. Clients with the same role and subscription are one question."""

    def __init__(self, topic: TopicName, authorization: AuthorizationService) -> None:
        self._topic = topic
        self._authorization = authorization
        self._errors: dict[tuple[str | None, Principal], BrokerError | None] = {}

    async def of_producer(self, producer: Producer) -> BrokerError | None:
        """Return why `producer` must be closed; None if it may stay."""
        principal = producer.peer.principal
        return await self._error(None, principal, lambda: self._authorization.require_produce(self._topic, principal))

    async def of_consumer(self, subscription: str, consumer: Consumer) -> BrokerError | None:
        """Return why `consumer` must be closed; None if it may stay."""
        principal = consumer.peer.principal
        return await self._error(
            subscription,
            principal,
            lambda: self._authorization.require_consume(self._topic, subscription, principal),
        )

    async def _error(
        self, subscription: str | None, principal: Principal, ask: Callable[[], Awaitable[None]]
    ) -> BrokerError | None:
        key = subscription, principal
        if key not in self._errors:
            self._errors[key] = None
            try:
                await ask()
            except BrokerError as error:
                self._errors[key] = error
        return self._errors[key]
