"""Reads the counters of topics and their clients once a `statsUpdateFrequencyInSecs` and keeps the rates of that window.

Owns the windows; the live objects keep nothing but counters. An object that is unloaded is forgotten with its windows
at the next sample, and one that is younger than the last sample is measured from there: its counters began at 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pybroker.model.rates import BucketsWindow, DeliveryRates, ProducerRates, Rate, TopicRates

if TYPE_CHECKING:
    from pybroker.broker.consumer import Consumer
    from pybroker.broker.producer import Producer
    from pybroker.broker.service import BrokerService
    from pybroker.broker.subscription import Subscription
    from pybroker.broker.topic import Topic
    from pybroker.clock import Clock

# About a millisecond of work between two times that the loop may turn to others.
OBJECTS_PER_TURN = 200


class RateSampler:
    """The rates of the last window, by live object."""

    def __init__(self, broker: BrokerService, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._sampled_ms = clock.monotonic_ms()
        self._windows = _Windows()
        self.publish_latency_ms = BucketsWindow(len(broker.stats.publish_latency_ms.counts))
        self.cache_hits = Rate(self._sampled_ms)
        self.cache_misses = Rate(self._sampled_ms)

    def topic(self, topic: Topic) -> TopicRates:
        """The topic's rates; zeros for one that no window has seen yet, and so it is with the others."""
        return self._windows.topics.get(topic) or TopicRates(self._sampled_ms, topic.counters)

    def producer(self, producer: Producer) -> ProducerRates:
        return self._windows.producers.get(producer) or ProducerRates(self._sampled_ms)

    def subscription(self, subscription: Subscription) -> DeliveryRates:
        return self._windows.deliveries.get(subscription) or DeliveryRates(self._sampled_ms)

    def consumer(self, consumer: Consumer) -> DeliveryRates:
        return self._windows.deliveries.get(consumer) or DeliveryRates(self._sampled_ms)

    async def run(self, frequency_s: float) -> None:
        """Sample for ever."""
        while True:
            await asyncio.sleep(frequency_s)
            await self.sample()

    async def sample(self) -> None:
        """End the window of everything that is loaded and attached."""
        ended = _Windows()
        window_began_ms, self._sampled_ms = self._sampled_ms, self._clock.monotonic_ms()
        for index, _ in enumerate(self._end_windows(window_began_ms, ended)):
            if index % OBJECTS_PER_TURN == OBJECTS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._windows = ended
        self.publish_latency_ms.update(self._broker.stats.publish_latency_ms)
        cache = self._broker.ledgers.cache
        self.cache_hits.update(cache.hits_total, self._sampled_ms)
        self.cache_misses.update(cache.misses_total, self._sampled_ms)

    def _end_windows(self, began_ms: float, ended: _Windows) -> Iterator[None]:
        """Move the windows that are wanted further to `ended`, one object a step; what is new has one since `began_ms`."""
        clock, windows = self._clock, self._windows
        for topic in list(self._broker.topics.values()):
            rates = windows.topics.get(topic) or TopicRates(began_ms, topic.counters)
            rates.update(topic.counters, clock.monotonic_ms())
            ended.topics[topic] = rates
            yield
            for producer in list(topic.producers.values()):
                sent = windows.producers.get(producer) or ProducerRates(began_ms)
                sent.update(producer.counters, clock.monotonic_ms())
                ended.producers[producer] = sent
                yield
            for subscription in list(topic.subscriptions.values()):
                receivers: list[Subscription | Consumer] = [subscription, *subscription.consumers]
                for receiver in receivers:
                    delivered = windows.deliveries.get(receiver) or DeliveryRates(began_ms)
                    delivered.update(receiver.counters, clock.monotonic_ms())
                    ended.deliveries[receiver] = delivered
                    yield


class _Windows:
    """The windows of live objects."""

    def __init__(self) -> None:
        self.topics: dict[Topic, TopicRates] = {}
        self.producers: dict[Producer, ProducerRates] = {}
        self.deliveries: dict[Subscription | Consumer, DeliveryRates] = {}
