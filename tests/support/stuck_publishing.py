"""Situations in which producers cannot publish, for the actions that `pybroker explain` suggests then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.commands import Ran
from tests.support.explaining import TOPIC, Explained, received
from tests.support.stuck_situations import AT, Checks, Situation, backlog, send, shows, subscribed

from pybroker.broker.topic import backlog_quota
from pybroker.client import MessageProducer, OutgoingMessage
from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_ledger import ManagedLedger

OTHER = "persistent://public/default/other"


class FullQuota(Situation):
    code = "backlog-quota"
    settings: Mapping[str, object] = {
        "backlogQuotaDefaultLimitBytes": 2000,
        "backlogQuotaDefaultRetentionPolicy": "producer_exception",
    }
    used = frozenset({"explain_subscription", "raise_limit", "evict_backlog", "skip_all"})

    async def make(self, world: Explained) -> list[str]:
        await subscribed(world, "slow", "fast")
        await send(world, 40, size=100)
        reader = await world.client.consumer(TOPIC, "fast", kind="shared")
        for message in await received(reader, 30):
            await reader.ack(message)
        await world.until(lambda: backlog(world, "fast") == 10)
        return [TOPIC]

    def checks(self) -> Checks:
        return {
            "Explain subscription slow": shows,
            "Raise the backlog quota from 2,000 to ": self.is_raised,
            "Irreversible: drop the oldest messages": self.is_evicted,
            "Irreversible: skip all messages that subscription slow": self.is_skipped,
        }

    async def is_raised(self, world: Explained, _: Ran) -> None:
        await self.takes_producers(world)
        assert (backlog(world, "slow"), backlog(world, "fast")) == (40, 10)

    async def is_evicted(self, world: Explained, _: Ran) -> None:
        await self.takes_producers(world)
        assert 0 < backlog(world, "slow") < 40
        assert backlog(world, "fast") == 10

    async def is_skipped(self, world: Explained, _: Ran) -> None:
        await self.takes_producers(world)
        assert (backlog(world, "slow"), backlog(world, "fast")) == (0, 10)

    async def takes_producers(self, world: Explained) -> None:
        await backlog_quota.enforce(world.topic())  # The next check loses nothing more than was said.
        await world.client.producer(TOPIC)


class OldBacklog(FullQuota):
    settings: Mapping[str, object] = {
        "backlogQuotaDefaultLimitSecond": 60,
        "backlogQuotaDefaultRetentionPolicy": "producer_exception",
        "preciseTimeBasedBacklogQuotaCheck": True,
    }

    async def make(self, world: Explained) -> list[str]:
        asked = await super().make(world)
        await world.broker.clock.advance(seconds=100)
        await world.until(lambda: backlog(world, "slow") == 40)
        return asked

    def checks(self) -> Checks:
        return {
            "Explain subscription slow": shows,
            "Raise the backlog quota from 60 to ": self.is_raised,
            "Irreversible: drop the oldest messages": self.is_evicted_by_age,
            "Irreversible: skip all messages that subscription slow": self.is_skipped_of_one,
        }

    async def is_skipped_of_one(self, world: Explained, _: Ran) -> None:
        assert (backlog(world, "slow"), backlog(world, "fast")) == (0, 10)

    async def is_evicted_by_age(self, world: Explained, _: Ran) -> None:
        await self.takes_producers(world)
        assert (backlog(world, "slow"), backlog(world, "fast")) == (0, 0)  # all of them are too old


class TopicPublishRate(Situation):
    code = "publish-rate"
    used = frozenset({"raise_limit"})
    text = f"Raise the publish rate of topic {TOPIC} to 2 messages a second"
    path = f"{AT}/publishRate"
    body: object = {"publishThrottlingRateInMsg": 1}

    async def make(self, world: Explained) -> list[str]:
        await (await world.client.producer(TOPIC)).close()
        await world.done("POST", self.path, self.body)
        await world.until(lambda: world.topic().publish_throttle is not None)
        producer = await world.client.producer(TOPIC, name="fast", batching=False)
        self.tasks = await self.too_many(world, producer, 30)
        return [TOPIC]

    async def too_many(self, world: Explained, producer: MessageProducer, count: int) -> list[asyncio.Future[Any]]:
        sends = [await producer.submit(OutgoingMessage(b"m")) for _ in range(count)]
        topics = world.broker.broker.service.loaded.persistent.values()
        throttles = [each.publish_throttle for each in topics]
        await world.until(lambda: any(len(limit) for each in throttles if each is not None for limit in each.limits))
        return [asyncio.ensure_future(each) for each in sends]

    def checks(self) -> Checks:
        return {self.text: self.is_raised}

    async def is_raised(self, world: Explained, _: Ran) -> None:
        throttle = world.topic().publish_throttle
        assert throttle is not None
        assert [each.rate.publishThrottlingRateInMsg for each in throttle.limits] == [2]
        await self.all_are_stored(world)

    async def all_are_stored(self, world: Explained) -> None:
        for _ in range(40):
            await world.broker.clock.advance(seconds=1)
        await asyncio.gather(*self.tasks)


class BrokerPublishRate(TopicPublishRate):
    used = frozenset({"raise_configuration"})
    path = "/brokers/configuration/brokerPublisherThrottlingMaxMessageRate/1"
    body = None
    text = "Raise the broker's brokerPublisherThrottlingMaxMessageRate to 2"


class GroupPublishRate(TopicPublishRate):
    used = frozenset({"show_resource_group"})
    text = "Show resource group g"

    async def make(self, world: Explained) -> list[str]:
        group = {"publishRateInMsgs": 1, "publishRateInBytes": -1, "dispatchRateInMsgs": -1, "dispatchRateInBytes": -1}
        await world.done("PUT", "/resourcegroups/g", group)
        self.path, self.body = "/namespaces/public/default/resourcegroup/g", None
        return await super().make(world)

    async def is_raised(self, world: Explained, ran: Ran) -> None:
        await shows(world, ran)


class OtherTopicsRate(TopicPublishRate):
    """The producer that is over its rate is another one, of another topic."""

    code = "connection-held"
    used = frozenset({"explain_producer", "raise_limit"})

    async def make(self, world: Explained) -> list[str]:
        await world.client.producer(TOPIC, name="held")
        await (await world.client.producer(OTHER)).close()
        await world.done("POST", "/persistent/public/default/other/publishRate", self.body)
        await world.until(lambda: world.topic(OTHER).publish_throttle is not None)
        producer = await world.client.producer(OTHER, name="loud", batching=False)
        self.tasks = await self.too_many(world, producer, 30)
        return self.asked  # type: ignore[return-value]

    asked = (TOPIC, "--producer", "held")

    def checks(self) -> Checks:
        return {
            "Explain producer loud": shows,
            f"Raise the publish rate of topic {OTHER} to 2 messages a second": self.is_heard,
        }

    async def is_heard(self, world: Explained, _: Ran) -> None:
        await self.all_are_stored(world)
        assert world.topic().producers["held"].peer.throttled_by is None


class TopicOfHeldProducer(OtherTopicsRate):
    asked = (TOPIC,)  # type: ignore[assignment]


class WaitingProducer(Situation):
    code = "producer-waits"
    used = frozenset({"disconnect_producer"})

    async def make(self, world: Explained) -> list[str]:
        await world.client.producer(TOPIC, name="holder", access_mode="exclusive")
        wait = world.client.producer(TOPIC, name="waits", access_mode="wait_for_exclusive")
        self.tasks = [asyncio.ensure_future(wait)]
        await world.until(lambda: world.topic().producer_registry.waiting_count == 1)
        return [TOPIC, "--producer", "waits"]

    def checks(self) -> Checks:
        return {"Disconnect producer holder: its client reconnects, and waits": self.has_it}

    async def has_it(self, world: Explained, _: Ran) -> None:
        await asyncio.wait(self.tasks)
        assert [*world.topic().producers] == ["waits"]


class FailedCompaction(Situation):
    code = "compaction-failed"
    used = frozenset({"compact_again"})

    async def make(self, world: Explained) -> list[str]:
        await send(world, 1, key="k")

        async def fails(*_given: object) -> int:
            raise StoreError("no ledger today")

        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(ManagedLedger, "begin_compacted", fails)
            await world.done("PUT", f"{AT}/compaction")
            await world.until(lambda: world.topic().compaction.has_failed)
        return [TOPIC]

    def checks(self) -> Checks:
        return {"Compact the topic again": self.is_compacted}

    async def is_compacted(self, world: Explained, _: Ran) -> None:
        await world.until(lambda: not world.topic().compaction.has_failed and not world.topic().compaction.is_running)
        assert world.topic().ledger.compacted is not None
