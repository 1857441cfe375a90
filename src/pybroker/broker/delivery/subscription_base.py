"""Interface of a subscription for its consumers and its topic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.model.counters import DeliveryCounters
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.dispatch.blocked_reasons import Stall
    from pybroker.model.events import Ack


class SubscriptionBase(ABC):
    """Common base of persistent and non-persistent subscriptions. A topic owns its subscriptions."""

    def __init__(self, topic: TopicContext, name: str) -> None:
        self.topic = topic
        self.name = name
        self.broker_context = topic.broker_context
        self.runtime = topic.runtime
        self.consumers: list[Consumer] = []
        self.counters = DeliveryCounters()
        self.is_closed = False

    @property
    @abstractmethod
    def type_name(self) -> str:
        """Subscription type; the text `None` if no consumer has connected since the topic was loaded."""

    @property
    @abstractmethod
    def is_durable(self) -> bool:
        """Whether the subscription continues to exist after its last consumer has left."""

    @property
    @abstractmethod
    def backlog_entries(self) -> int: ...

    @property
    @abstractmethod
    def properties(self) -> dict[str, str]: ...

    @property
    def stall(self) -> Stall | None:
        """Blocked reason and its start time; None during dispatch, and without a backlog."""
        return None

    @abstractmethod
    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties. Durable on return if the subscription is durable. Raises StoreError."""

    @abstractmethod
    def filters_changed(self) -> None: ...

    @abstractmethod
    def add_consumer(self, consumer: Consumer, kind: str) -> None:
        """Attach `consumer` with the subscription type `kind`. Raises ConsumerBusy, ConsumerAssignError."""

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def flow(self, consumer: Consumer, permits: int) -> None: ...

    @abstractmethod
    def acknowledge(self, consumer: Consumer, ack: Ack) -> None:
        """Apply an ACK command of `consumer`. If the command has a request id, the client receives ACK_RESPONSE when
        the acknowledgement is durable or has failed.
        """

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None: ...

    @abstractmethod
    def wake(self) -> None: ...

    def close_consumers(self) -> None:
        for consumer in list(self.consumers):
            consumer.close_from_broker()

    async def is_blocked_by_the_dead(self) -> bool:
        """Remove the consumers whose client does not reply to a PING. Return whether a consumer was removed, so that the
        caller can retry to attach a new consumer.
        """
        is_one_gone = False
        for consumer in list(self.consumers):
            # Only a removed consumer frees capacity, so that the caller retries immediately.
            if not await consumer.peer.is_alive() and consumer not in self.consumers:
                is_one_gone = True
        return is_one_gone

    def _count_flow(self, consumer: Consumer) -> None:
        now_ms = self.runtime.clock.wall_ms()
        consumer.counters.last_consumed_flow_ms = self.counters.last_consumed_flow_ms = now_ms
        if not consumer.counters.first_consumed_flow_ms:
            consumer.counters.first_consumed_flow_ms = now_ms
