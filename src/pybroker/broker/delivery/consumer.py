"""One attached consumer: its client connection, its dispatcher state, and its counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.broker.context.peer import Peer
from pybroker.dispatch.consumer_state import AUTO_SPLIT, ConsumerState, KeySharedOptions
from pybroker.dispatch.dispatcher import Delivery
from pybroker.model.counters import DeliveryCounters
from pybroker.wire.broker_entry_metadata import without_broker_metadata
from pybroker.wire.entry_metadata import chunk_of

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase


class Consumer:
    """Consumer that is attached to a subscription. The dispatcher knows `state` while the consumer is attached."""

    __slots__ = (
        "_hides_entry_metadata",
        "_partition",
        "connected_since_ms",
        "consumer_id",
        "counters",
        "epoch",
        "has_reached_end",
        "has_unreadable_messages",
        "is_closed",
        "name",
        "peer",
        "properties",
        "reads_compacted",
        "state",
        "subscription",
        "takes_any_schema",
    )

    def __init__(
        self,
        subscription: SubscriptionBase,
        consumer_id: int,
        name: str,
        priority_level: int,
        max_unacked_messages: int,
        peer: Peer,
        properties: Mapping[str, str],
        connected_since_ms: int,
        key_shared: KeySharedOptions = AUTO_SPLIT,
    ) -> None:
        self.subscription = subscription
        self.consumer_id = consumer_id
        self.name = name
        self.peer = peer
        self.properties = dict(properties)
        self.connected_since_ms = connected_since_ms
        self.counters = DeliveryCounters()
        self.state = ConsumerState(name, priority_level, max_unacked_messages, self, key_shared)
        self.epoch = -1
        self.reads_compacted = False
        self.takes_any_schema = False
        # Read once, because it does not change while a topic is loaded.
        self._hides_entry_metadata = subscription.topic.has_entry_metadata and not peer.takes_entry_metadata
        self._partition = subscription.topic.name.partition_index
        self.is_closed = False
        self.has_reached_end = False
        self.has_unreadable_messages = False

    def flow(self, permits: int) -> None:
        if not self.is_closed:
            self.subscription.flow(self, permits)

    def set_writable(self, is_writable: bool) -> None:
        """Set whether the connection's output buffer has capacity. Without capacity, the dispatcher sends nothing."""
        self.state.writable = is_writable
        if is_writable and not self.is_closed:
            self.subscription.wake()

    def deliver(self, delivery: Delivery, now_ms: int, *, has_chunks: bool) -> None:
        """Send entries to the client. `has_chunks`: some entries may be chunks of large messages."""
        size_bytes = sum(map(len, delivery.payloads))
        chunks = sum(chunk_of(payload) is not None for payload in delivery.payloads) if has_chunks else 0
        for counters in (self.counters, self.subscription.counters):
            counters.entries_out += len(delivery.entry_ids)
            counters.messages_out += delivery.message_count
            counters.bytes_out += size_bytes
            counters.chunks_out += chunks
            counters.last_consumed_ms = now_ms
        if not self.counters.first_consumed_ms:
            self.counters.first_consumed_ms = now_ms
        if self._hides_entry_metadata:
            delivery.payloads = [without_broker_metadata(payload) for payload in delivery.payloads]
        self.peer.send_messages(self.consumer_id, delivery, self.epoch, self._partition)

    def reached_end(self) -> None:
        """Notify the client, once, that the topic is terminated and all its messages are acknowledged."""
        if not self.has_reached_end:
            self.has_reached_end = True
            self.peer.reached_end_of_topic(self.consumer_id)

    def detach(self) -> None:
        """Remove the consumer from its subscription. Its unacknowledged messages go to other consumers."""
        if not self.is_closed:
            self.is_closed = True
            self.subscription.remove_consumer(self)

    def close_from_broker(self) -> None:
        if not self.is_closed:
            self.detach()
            self.peer.close_consumer(self.consumer_id)
