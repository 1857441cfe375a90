"""What random walks of `explain` share: a topic with one subscription, and consumers that come and leave."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.topic.topic import Topic

SEED = int(os.environ.get("EXPLAIN_SEED", "0"))
STEPS = 60
KINDS = ["Shared", "Key_Shared", "Failover", "Exclusive"]
KEYS = [f"k{index}" for index in range(9)]
TOPIC = "persistent://public/default/t"


def walks(usual: int) -> int:
    """How many of each kind: EXPLAIN_WALKS says otherwise."""
    return int(os.environ.get("EXPLAIN_WALKS", str(usual)))


@asynccontextmanager
async def walked_topic(**settings: Any) -> AsyncIterator[tuple[MemoryBroker, Topic]]:
    """With the subscription `s`."""
    async with memory_broker(**settings) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        yield broker, topic


class SubscriptionWalk:
    """One topic with one subscription, and what is done to it."""

    def __init__(self, broker: MemoryBroker, topic: Topic, kind: str, chance: random.Random) -> None:
        self.broker = broker
        self.topic = topic
        self.kind = kind
        self.chance = chance
        self.consumers: list[Consumer] = []
        self.serial = 0

    @property
    def subscription(self) -> Subscription:
        return self.topic.subscriptions["s"]

    def join(self, max_unacked: int = 0) -> Consumer | None:
        """One more consumer, where there may be one."""
        if len(self.consumers) >= (1 if self.kind == "Exclusive" else 4):
            return None
        self.serial += 1
        name, now_ms = f"c{self.serial}", self.broker.clock.now_ms
        consumer = Consumer(self.subscription, self.serial, name, 0, max_unacked, RecordingPeer(), {}, now_ms)
        self.topic.attach(self.subscription, consumer, self.kind)
        self.consumers.append(consumer)
        return consumer
