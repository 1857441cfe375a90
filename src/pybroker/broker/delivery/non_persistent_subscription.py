"""One subscription on a non-persistent topic. It has no backlog and exists only while a consumer is attached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.consumer_admission import require_room_on_subscription
from pybroker.broker.delivery.dispatchers import new_non_persistent_dispatcher
from pybroker.broker.delivery.filter_chain import FilterJury
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.dispatch.non_persistent_dispatcher import NonPersistentDispatcher
from pybroker.errors import ConsumerBusy, NotAllowedError
from pybroker.model.events import Ack, SendRun
from pybroker.model.position import Position
from pybroker.wire import entry_columns

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext


class NonPersistentSubscription(SubscriptionBase):
    """Subscription that forwards published messages to its consumers immediately, or drops them."""

    def __init__(
        self,
        topic: TopicContext,
        name: str,
        properties: Mapping[str, str],
        unused: Callable[[NonPersistentSubscription], None],
    ) -> None:
        super().__init__(topic, name)
        self._unused = unused
        self._properties = dict(properties)
        self.dispatcher: NonPersistentDispatcher | None = None
        self._filters: FilterJury | None
        self.filters_changed()

    @property
    def type_name(self) -> str:
        return "None" if self.dispatcher is None else self.dispatcher.kind

    @property
    def is_durable(self) -> bool:
        return False

    @property
    def properties(self) -> dict[str, str]:
        return self._properties

    @property
    def backlog_entries(self) -> int:
        return 0

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)

    def filters_changed(self) -> None:
        filters = self.topic.entry_filters
        self._filters = FilterJury(self, filters) if filters else None

    # --- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, kind: str) -> None:
        require_room_on_subscription(self)
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            dispatcher = new_non_persistent_dispatcher(self.runtime.config, kind, self.topic.name)
        elif dispatcher.kind != kind:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription type of '{dispatcher.kind}' is different than the "
                f"connecting consumer's type '{kind}'."
            )
        dispatcher.add_consumer(consumer.state)
        self.dispatcher = dispatcher
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        assert self.dispatcher is not None
        self.dispatcher.remove_consumer(consumer.state)
        if not self.consumers:
            self._unused(self)

    def flow(self, consumer: Consumer, permits: int) -> None:
        self._count_flow(consumer)
        if permits > 0:
            consumer.state.permits += permits

    def acknowledge(self, consumer: Consumer, ack: Ack) -> None:
        if ack.request_id >= 0:
            refusal = None
            if ack.txn is not None:
                refusal = NotAllowedError("Non-persistent topics do not support acknowledgements in transactions")
            consumer.peer.send_ack_response(consumer.consumer_id, ack.request_id, refusal)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None: ...

    def wake(self) -> None: ...

    # --- messages ----------------------------------------------------------------------------------------------------

    def dispatch(self, run: SendRun, now_ms: int) -> None:
        dispatcher, counters = self.dispatcher, self.counters
        assert dispatcher is not None, "a subscription that is listed has a consumer"
        payloads, message_counts = run.payloads, run.message_counts
        if self._filters is not None:
            payloads, message_counts = self._filters.accepted(payloads, message_counts)
            if not payloads:
                return
        hashes = entry_columns.key_hashes(payloads) if dispatcher.needs_key_hashes else None
        dropped_before = dispatcher.dropped_messages
        for delivery in dispatcher.assign(payloads, message_counts, hashes):
            consumer = delivery.consumer.peer
            assert isinstance(consumer, Consumer)
            consumer.deliver(delivery, now_ms, has_chunks=run.chunk_count > 0)
        counters.dropped_messages += dispatcher.dropped_messages - dropped_before
