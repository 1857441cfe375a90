"""One loaded non-persistent topic: messages are sent immediately to the connected consumers and are not stored.

A receipt contains the message id 0:0. Messages above a connection's limit per event loop iteration are dropped, and
their receipts contain the message id -1:-1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pybroker.broker.delivery import consumer_admission
from pybroker.broker.delivery.non_persistent_subscription import NonPersistentSubscription
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.publish_checks import rows
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.dispatch.non_persistent_dispatcher import ENTRY_ID
from pybroker.errors import NotAllowedError, ServiceNotReady
from pybroker.model.counters import LedgerCounters
from pybroker.model.events import SendRun
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.model.names import TopicName
    from pybroker.model.policies import TopicPolicies

DROPPED_ID = -1
_NO_LEDGER = LedgerCounters()


class NonPersistentTopic(TopicBase):
    """Topic that stores no messages."""

    subscriptions: dict[str, NonPersistentSubscription]

    def __init__(
        self,
        broker_context: BrokerContext,
        name: TopicName,
        own_policies: TopicPolicies,
        start_unload: Callable[[TopicBase, str], None],
    ) -> None:
        super().__init__(broker_context, name, own_policies, broker_context.tasks, None, start_unload)
        self.subscriptions = {}
        self._renew_limits()

    @property
    def ledger_counters(self) -> LedgerCounters:
        return _NO_LEDGER

    async def store_epoch(self, epoch: int) -> None:
        """Do nothing, because the topic epoch starts at 0 after each load."""

    # --- messages ----------------------------------------------------------------------------------------------------

    def _accept(self, producer: Producer, run: SendRun) -> None:
        if run.txn is not None:
            self._refuse(
                producer, run, NotAllowedError("Non-persistent topics do not support messages of transactions")
            )
            return
        count = len(run.payloads)
        taken = producer.peer.admit_not_stored(count)
        if taken < count:
            taken_run, dropped = rows(run, range(taken)), rows(run, range(taken, count))
            if taken:
                self._take(producer, taken_run)
            producer.counters.dropped_messages += sum(dropped.message_counts)
            _answer(producer, dropped, DROPPED_ID)
        else:
            self._take(producer, run)

    def _take(self, producer: Producer, run: SendRun) -> None:
        counters, messages = self.counters, sum(run.message_counts)
        counters.messages_in += messages
        counters.entries_in += len(run.payloads)
        counters.bytes_in += run.size_bytes
        producer.counters.messages_in += messages
        producer.counters.bytes_in += run.size_bytes
        if run.chunk_count:
            counters.chunks_in += run.chunk_count
            producer.counters.chunks_in += run.chunk_count
        now_ms = self.runtime.clock.wall_ms()
        counters.last_publish_ms = now_ms
        _answer(producer, run, ENTRY_ID)
        try:
            for subscription in list(self.subscriptions.values()):
                subscription.dispatch(run, now_ms)
        except Exception as bug:  # noqa: BLE001  (a fault boundary)
            logs.error("dispatch.failed", topic=self.name, exc_info=bug)
            self.fail(bug)

    # --- subscriptions -----------------------------------------------------------------------------------------------

    def subscription(self, name: str, properties: Mapping[str, str]) -> NonPersistentSubscription:
        return self.subscriptions.get(name) or NonPersistentSubscription(
            self.shared, name, properties, self._drop_subscription
        )

    @asynccontextmanager
    async def subscription_lock(self, subscription: str, purpose: str) -> AsyncIterator[None]:
        """Enter the context without waiting, because subscriptions of a non-persistent topic need no lock."""
        self.require_open()
        yield

    def attach(self, subscription: SubscriptionBase, consumer: Consumer, kind: str) -> None:
        """Attach `consumer` to `subscription`. Raises the errors of the base class, NotAllowedError at the subscription
        limit, and ServiceNotReady if a new subscription has replaced `subscription`.
        """
        assert isinstance(subscription, NonPersistentSubscription)
        present = self.subscriptions.get(subscription.name)
        if present is None:
            consumer_admission.require_room_for_subscription(self.shared, len(self.subscriptions))
        elif present is not subscription:
            raise ServiceNotReady(
                f"subscription {subscription.name} was deleted and created again during the request: try again"
            )
        super().attach(subscription, consumer, kind)
        subscription.is_closed = False
        self.subscriptions[subscription.name] = subscription

    async def delete_subscription(self, subscription: SubscriptionBase) -> None:
        assert isinstance(subscription, NonPersistentSubscription)
        subscription.is_closed = True
        subscription.close_consumers()
        self._drop_subscription(subscription)

    def _drop_subscription(self, subscription: NonPersistentSubscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            subscription.is_closed = True
            del self.subscriptions[subscription.name]
            self.in_use()
            self.counters.messages_out_of_removed += subscription.counters.messages_out
            self.counters.bytes_out_of_removed += subscription.counters.bytes_out


def _answer(producer: Producer, run: SendRun, message_id: int) -> None:
    producer.peer.send_receipts_not_stored(run, message_id)
