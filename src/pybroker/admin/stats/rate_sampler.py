"""Rate sampler: computes rates from the counters of topics and clients, every `statsUpdateFrequencyInSecs` (a window).

A new object is measured from the last sample on, because its counters started at 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pybroker.admin.stats.group_usage import DISPATCH, PUBLISH, GroupUsage
from pybroker.admin.stats.resource_usage import ResourceMeter
from pybroker.model.counters import TopicCounters
from pybroker.model.rates import BucketsWindow, DeliveryRates, ProducerRates, Rate, TopicRates

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.runtime.clock import Clock

SLICE_MS = 1.0
"""Maximum time without yielding to the event loop."""
OBJECTS_PER_LOOK_AT_THE_CLOCK = 20


class RateSampler:
    """Rates of all loaded topics and connected clients in the last window."""

    def __init__(self, broker: BrokerService, clock: Clock) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._clock = clock
        self._sampled_ms = clock.monotonic_ms()
        self._windows = _Windows()
        # Used for objects without a window. Must not be changed.
        self._new_topic = TopicRates(self._sampled_ms, TopicCounters())
        self._new_producer = ProducerRates(self._sampled_ms)
        self._new_receiver = DeliveryRates(self._sampled_ms)
        self.broker = BrokerRates(broker, self._sampled_ms)
        self.groups = GroupUsage()
        self.resources = ResourceMeter(broker)
        self.started_wall_ms = broker.runtime.clock.wall_ms()

    def topic(self, topic: TopicBase) -> TopicRates:
        """Return the rates of a topic; zeros before the end of its first window."""
        return self._windows.topics.get(topic, self._new_topic)

    def producer(self, producer: Producer) -> ProducerRates:
        return self._windows.producers.get(producer, self._new_producer)

    def subscription(self, subscription: SubscriptionBase) -> DeliveryRates:
        return self._windows.deliveries.get(subscription, self._new_receiver)

    def consumer(self, consumer: Consumer) -> DeliveryRates:
        return self._windows.deliveries.get(consumer, self._new_receiver)

    async def run(self, initial_delay_s: float, frequency_s: float) -> None:
        self.resources.sample(self._runtime.clock.wall_ms(), self._clock.monotonic_ms())
        await self._runtime.sleep(initial_delay_s)
        while True:
            await self.sample()
            await self._runtime.sleep(frequency_s)

    async def sample(self) -> None:
        """Compute the rates of all loaded topics and connected clients since the previous sample."""
        ended = _Windows()
        clock = self._clock
        window_began_ms, self._sampled_ms = self._sampled_ms, clock.monotonic_ms()
        slice_ends_ms = self._sampled_ms + SLICE_MS
        for index, _ in enumerate(self._end_windows(window_began_ms, ended)):
            if index % OBJECTS_PER_LOOK_AT_THE_CLOCK == 0 and clock.monotonic_ms() >= slice_ends_ms:
                await asyncio.sleep(0)
                slice_ends_ms = clock.monotonic_ms() + SLICE_MS
        self._windows = ended
        self.broker.update(self._broker, self._sampled_ms)
        self.groups.look_at_namespaces(self._broker.resources)
        self.resources.sample(self._runtime.clock.wall_ms(), self._sampled_ms)

    def _end_windows(self, began_ms: float, ended: _Windows) -> Iterator[None]:
        clock, windows = self._clock, self._windows
        for topic in self._broker.loaded.all():
            rates = windows.topics.get(topic) or TopicRates(began_ms, topic.counters)
            rates.update(topic.counters, topic.ledger_counters, clock.monotonic_ms())
            ended.topics[topic] = rates
            group = topic.policies.resource_group
            self.groups.add(group, PUBLISH, rates.messages_in.count, rates.bytes_in.count)
            yield
            for producer in list(topic.producers.values()):
                sent = windows.producers.get(producer) or ProducerRates(began_ms)
                sent.update(producer.counters, clock.monotonic_ms())
                ended.producers[producer] = sent
                yield
            for subscription in list(topic.subscriptions.values()):
                receivers: list[SubscriptionBase | Consumer] = [subscription, *subscription.consumers]
                for receiver in receivers:
                    delivered = windows.deliveries.get(receiver) or DeliveryRates(began_ms)
                    delivered.update(receiver.counters, clock.monotonic_ms())
                    ended.deliveries[receiver] = delivered
                    yield
                sent_out = ended.deliveries[subscription]
                self.groups.add(group, DISPATCH, sent_out.messages_out.count, sent_out.bytes_out.count)


class BrokerRates:
    """Rates of the broker in the last window."""

    def __init__(self, broker: BrokerService, now_ms: float) -> None:
        stats = broker.runtime.stats
        self.publish_latency_ms = BucketsWindow(len(stats.publish_latency_ms.counts))
        self.lookup_ms = BucketsWindow(len(stats.lookup_ms.counts))
        self.topic_load_ms = BucketsWindow(len(stats.topic_load_ms.counts))
        self.topic_loads = Rate(now_ms)
        self.topic_load_failures = Rate(now_ms)
        # Entries and bytes of read requests that were in memory, or read from the store.
        self.cache_hits = Rate(now_ms)
        self.cache_hit_bytes = Rate(now_ms)
        self.cache_misses = Rate(now_ms)
        self.cache_miss_bytes = Rate(now_ms)
        self.cache_evictions = Rate(now_ms)

    def update(self, broker: BrokerService, now_ms: float) -> None:
        stats, reads = broker.runtime.stats, broker.ledgers.counters
        self.publish_latency_ms.update(stats.publish_latency_ms)
        self.lookup_ms.update(stats.lookup_ms)
        self.topic_load_ms.update(stats.topic_load_ms)
        self.topic_loads.update(stats.topic_loads, now_ms)
        self.topic_load_failures.update(stats.topic_load_failures, now_ms)
        self.cache_hits.update(reads.entries_read - reads.store_entries_read, now_ms)
        self.cache_hit_bytes.update(reads.bytes_read - reads.store_bytes_read, now_ms)
        self.cache_misses.update(reads.store_entries_read, now_ms)
        self.cache_miss_bytes.update(reads.store_bytes_read, now_ms)
        self.cache_evictions.update(broker.ledgers.cache.evictions_total, now_ms)


class _Windows:
    def __init__(self) -> None:
        self.topics: dict[TopicBase, TopicRates] = {}
        self.producers: dict[Producer, ProducerRates] = {}
        self.deliveries: dict[SubscriptionBase | Consumer, DeliveryRates] = {}
