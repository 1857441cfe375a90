"""Reads the counters of all topics once a `statsUpdateFrequencyInSecs` and keeps the rates of that window.

Owns the windows; the live objects keep nothing but counters. An object that is unloaded is forgotten with its windows
at the next sample, and one that is younger than the last sample is measured from there: its counters began at 0.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.model.rates import BucketsWindow, DeliveryRates, Rate, TopicRates

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.broker.subscription import Subscription
    from pybroker.broker.topic import Topic
    from pybroker.clock import Clock

# About a millisecond of work between two times that the loop may turn to others.
TOPICS_PER_TURN = 64


class RateSampler:
    """The rates of the last window, by live object."""

    def __init__(self, broker: BrokerService, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._sampled_ms = clock.monotonic_ms()
        self._topics: dict[Topic, TopicRates] = {}
        self._subscriptions: dict[Subscription, DeliveryRates] = {}
        self.publish_latency_ms = BucketsWindow(len(broker.stats.publish_latency_ms.counts))
        self.cache_hits = Rate(self._sampled_ms)
        self.cache_misses = Rate(self._sampled_ms)

    def topic(self, topic: Topic) -> TopicRates:
        """The topic's rates; zeros for one that no window has seen yet."""
        return self._topics.get(topic) or TopicRates(self._sampled_ms, topic.counters)

    def subscription(self, subscription: Subscription) -> DeliveryRates:
        """The subscription's rates; zeros for one that no window has seen yet."""
        return self._subscriptions.get(subscription) or DeliveryRates(self._sampled_ms)

    async def run(self, frequency_s: float) -> None:
        """Sample for ever."""
        while True:
            await asyncio.sleep(frequency_s)
            await self.sample()

    async def sample(self) -> None:
        """End the window of every loaded topic and subscription."""
        window_began_ms, self._sampled_ms = self._sampled_ms, self._clock.monotonic_ms()
        topics: dict[Topic, TopicRates] = {}
        subscriptions: dict[Subscription, DeliveryRates] = {}
        for index, topic in enumerate(list(self._broker.topics.values())):
            if index % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            now_ms = self._clock.monotonic_ms()
            rates = self._topics.get(topic) or TopicRates(window_began_ms, topic.counters)
            rates.update(topic.counters, now_ms)
            topics[topic] = rates
            for subscription in topic.subscriptions.values():
                delivery = self._subscriptions.get(subscription) or DeliveryRates(window_began_ms)
                delivery.update(subscription.counters, now_ms)
                subscriptions[subscription] = delivery
        self._topics, self._subscriptions = topics, subscriptions
        self.publish_latency_ms.update(self._broker.stats.publish_latency_ms)
        cache = self._broker.ledgers.cache
        self.cache_hits.update(cache.hits_total, self._sampled_ms)
        self.cache_misses.update(cache.misses_total, self._sampled_ms)
