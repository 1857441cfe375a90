"""Situations in which `pybroker explain` suggests actions, and how the stated effect of each action is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.support.commands import Ran
from tests.support.explaining import TOPIC, Explained, received

from pybroker.broker.lifecycle.transaction_participants import TransactionParticipants
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.errors import DamagedEntries

AT = "/persistent/public/default/t"
Check = Callable[[Explained, Ran], Awaitable[None]]
Checks = Mapping[str, Check]
"""By the beginning of an action's text."""


class Situation:
    """Something that waits. `make` returns what is asked of `pybroker explain`; each of `checks` is the effect of one action."""

    code = ""
    settings: Mapping[str, object] = {}
    used: frozenset[str] = frozenset()
    """The functions of `actions` that suggest them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.tasks: list[asyncio.Future[Any]] = []

    async def make(self, world: Explained) -> list[str]:
        raise NotImplementedError

    def checks(self) -> Checks:
        raise NotImplementedError


async def send(world: Explained, count: int, *, topic: str = TOPIC, size: int = 10, **options: Any) -> list[Any]:
    producer = await world.client.producer(topic, batching=False)
    sent = [await producer.send(bytes(size), **options) for _ in range(count)]
    await producer.close()
    return sent


async def subscribed(world: Explained, *names: str) -> None:
    for name in names:
        await (await world.client.consumer(TOPIC, name, kind="shared", from_earliest=True)).close()


def backlog(world: Explained, name: str) -> int:
    return world.subscription(name).backlog_entries


async def shows(world: Explained, ran: Ran) -> None:
    """A look: it succeeds, or says that something waits."""
    assert ran.code in {0, 3}, ran
    assert ran.out.strip()


class NoConsumers(Situation):
    code = "no-consumers"
    used = frozenset({"show_subscriptions", "skip_all", "delete_subscription"})

    async def make(self, world: Explained) -> list[str]:
        await subscribed(world, "s", "other")
        await send(world, 5)
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {
            "Show the topic's subscriptions": shows,
            "Irreversible: skip all messages": self.is_skipped,
            "Irreversible: delete subscription s": self.is_deleted,
        }

    async def is_skipped(self, world: Explained, _: Ran) -> None:
        assert (backlog(world, "s"), backlog(world, "other")) == (0, 5)

    async def is_deleted(self, world: Explained, _: Ran) -> None:
        assert [*world.topic().subscriptions] == ["other"]
        assert backlog(world, "other") == 5


class ConsumerLimit(Situation):
    code = "unacked-limit-consumer"
    used = frozenset({"explain_consumer", "show_unacked", "raise_limit", "disconnect"})

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="only", from_earliest=True)
        await world.done("POST", f"{AT}/maxUnackedMessagesOnConsumer", 3)
        await send(world, 5)
        await received(self.consumer, 3)
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        again = "Disconnect consumer only: its client subscribes again and receives its unacknowledged messages again"
        return {
            "Explain consumer only": shows,
            "List the messages that consumer only": shows,
            "Raise the limit of unacknowledged messages of each consumer of the topic from 3 to 6": self.is_raised,
            again: self.is_delivered_again,
        }

    async def is_raised(self, world: Explained, _: Ran) -> None:
        await received(self.consumer, 2)
        assert backlog(world, "s") == 5

    async def is_delivered_again(self, world: Explained, _: Ran) -> None:
        assert len(await received(self.consumer, 3)) == 3
        assert backlog(world, "s") == 5


class SubscriptionLimit(Situation):
    code = "unacked-limit-subscription"
    used = frozenset({"show_unacked", "raise_limit", "disconnect"})

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="most", from_earliest=True)
        await world.done("POST", f"{AT}/maxUnackedMessagesOnSubscription", 3)
        await send(world, 5)
        await received(self.consumer, 3)
        self.other = await world.client.consumer(TOPIC, "s", kind="shared", name="free")
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {
            "List the messages that consumer most": shows,
            "Raise the limit of unacknowledged messages of each subscription of the topic from 3 to 6": self.is_raised,
            "Disconnect consumer most: other consumers receive its unacknowledged messages": self.is_taken_over,
        }

    async def is_raised(self, world: Explained, _: Ran) -> None:
        await world.until(lambda: world.subscription().unacked_messages == 5)
        assert backlog(world, "s") == 5

    async def is_taken_over(self, world: Explained, _: Ran) -> None:
        await received(self.other, 1)
        assert backlog(world, "s") == 5


class Silent(Situation):
    code = "consumer-silent"
    used = frozenset({"show_unacked", "disconnect"})

    async def make(self, world: Explained) -> list[str]:
        await world.client.consumer(TOPIC, "s", kind="shared", name="hung", from_earliest=True)
        await send(world, 3)
        await world.until(lambda: world.subscription().unacked_messages == 3)
        await world.broker.clock.advance(minutes=5)
        self.other = await world.client.consumer(TOPIC, "s", kind="shared", name="free")
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {
            "List the messages that consumer hung": shows,
            "Disconnect consumer hung: other consumers receive": self.is_taken_over,
        }

    async def is_taken_over(self, world: Explained, _: Ran) -> None:
        await received(self.other, 1)
        assert backlog(world, "s") == 3


class BlockedKey(Situation):
    code = "key-drains"
    used = frozenset({"explain_consumer", "show_draining_hashes", "disconnect"})

    async def make(self, world: Explained) -> list[str]:
        before = await world.client.consumer(TOPIC, "s", kind="key_shared", name="before", from_earliest=True)
        producer = await world.client.producer(TOPIC, batching=False)
        for key in range(20):
            await producer.send(b"m", key=f"k{key}")
        await received(before, 20)
        self.after = await world.client.consumer(TOPIC, "s", kind="key_shared", name="after")
        for key in range(20):
            await producer.send(b"m", key=f"k{key}")
        await world.until(lambda: world.subscription().replay_entry_count > 0)
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {
            "Explain consumer before": shows,
            "List all blocked keys": shows,
            "Disconnect consumer before: other consumers receive": self.goes_on,
        }

    async def goes_on(self, world: Explained, _: Ran) -> None:
        await received(self.after, 1)
        assert backlog(world, "s") == 40


class FullLookAhead(Situation):
    code = "look-ahead-full"
    settings: Mapping[str, object] = {"keySharedLookAheadMsgInReplayThresholdPerSubscription": 6}
    used = frozenset({"show_waiting"})

    async def make(self, world: Explained) -> list[str]:
        await world.client.consumer(TOPIC, "s", kind="key_shared", name="idle", from_earliest=True, key_ranges=[(0, 9)])
        await send(world, 10, key="a")
        await world.until(lambda: world.subscription().replay_entry_count >= 6)
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {"List the hashes whose messages fill the look-ahead buffer": shows}


class OpenTransaction(Situation):
    code = "transaction-open"
    settings: Mapping[str, object] = {"transactionCoordinatorEnabled": True}
    used = frozenset({"show_transaction", "abort_transaction"})

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        transaction = await world.client.transaction()
        producer = await world.client.producer(TOPIC, batching=False)
        await producer.send(b"in", transaction=transaction)
        await producer.send(b"behind")
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {"Show transaction (0,": shows, "Irreversible: abort transaction (0,": self.is_aborted}

    async def is_aborted(self, world: Explained, _: Ran) -> None:
        (message,) = await received(self.consumer, 1)
        assert message.value == b"behind"


class TopicDispatchRate(Situation):
    code = "dispatch-rate"
    used = frozenset({"raise_limit"})
    path = f"{AT}/dispatchRate"
    text = "Double the dispatch rate of the topic"

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        await world.done("POST", self.path, {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 3600})
        await send(world, 2)
        await received(self.consumer, 2)
        await send(world, 3)
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {self.text: self.goes_on}

    async def goes_on(self, world: Explained, _: Ran) -> None:
        await received(self.consumer, 2)
        assert backlog(world, "s") == 5


class SubscriptionDispatchRate(TopicDispatchRate):
    used = frozenset({"raise_subscription_dispatch_rate"})
    path = f"{AT}/subscriptionDispatchRate"
    text = "Double the dispatch rate of the subscription"


class BrokerDispatchRate(TopicDispatchRate):
    used = frozenset({"raise_configuration"})
    path = "/brokers/configuration/dispatchThrottlingRateInMsg/1"
    text = "Raise the broker's dispatchThrottlingRateInMsg to 2"

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        await world.done("POST", self.path)
        await send(world, 30)
        return [TOPIC, "s"]

    async def goes_on(self, world: Explained, _: Ran) -> None:
        limit = world.broker.broker.service.broker_context.runtime.config.dispatch_throttling_rate_in_msg
        assert limit == 2
        await world.broker.clock.advance(seconds=10)
        await received(self.consumer, 3)
        assert backlog(world, "s") == 30


class Delayed(Situation):
    code = "delayed"
    used = frozenset({"show_delayed"})
    asked: tuple[str, ...] = ()

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        at_ms = world.broker.clock.now_ms() + 3_600_000
        first, _ = await send(world, 2, deliver_at_ms=at_ms)
        await world.until(lambda: world.subscription().delayed.entry_count == 2)
        return self.about(f"{first.ledger_id}:{first.entry_id}")

    def about(self, _: str) -> list[str]:
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {"List the delayed messages": shows}


class DelayedMessage(Delayed):
    used = frozenset({"deliver_now"})

    def about(self, message_id: str) -> list[str]:
        return [TOPIC, "s", "--id", message_id]

    def checks(self) -> Checks:
        return {"Deliver message ": self.is_delivered}

    async def is_delivered(self, world: Explained, _: Ran) -> None:
        await received(self.consumer, 1)
        assert world.subscription().delayed.entry_count == 1
        assert backlog(world, "s") == 2


class HeldMessage(Situation):
    code = "held-by-consumer"
    used = frozenset({"explain_consumer", "redeliver", "disconnect"})

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c", from_earliest=True)
        self.first, _ = await send(world, 2)
        await received(self.consumer, 2)
        return [TOPIC, "s", "--id", f"{self.first.ledger_id}:{self.first.entry_id}"]

    def checks(self) -> Checks:
        return {
            "Explain consumer c": shows,
            "Deliver message ": self.comes_again,
            "Disconnect consumer c: its client subscribes again": self.all_come_again,
        }

    async def comes_again(self, world: Explained, _: Ran) -> None:
        (message,) = await received(self.consumer, 1)
        assert message.id.entry_id == self.first.entry_id
        assert backlog(world, "s") == 2

    async def all_come_again(self, world: Explained, _: Ran) -> None:
        await received(self.consumer, 2)
        assert backlog(world, "s") == 2


class AcknowledgedMessage(Situation):
    code = "already-acknowledged"
    used = frozenset({"seek_to"})

    async def make(self, world: Explained) -> list[str]:
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        first, *_ = await send(world, 3)
        for message in await received(self.consumer, 3):
            await self.consumer.ack(message)
        await world.until(lambda: backlog(world, "s") == 0)
        return [TOPIC, "s", "--id", f"{first.ledger_id}:{first.entry_id}"]

    def checks(self) -> Checks:
        return {"Deliver message ": self.come_again}

    async def come_again(self, world: Explained, _: Ran) -> None:
        assert len(await received(self.consumer, 3)) == 3
        assert backlog(world, "s") == 3


class DamagedEntry(Situation):
    code = "read-failed"
    used = frozenset({"acknowledge", "skip_damaged_everywhere"})

    async def make(self, world: Explained) -> list[str]:
        await subscribed(world, "s", "other")
        _, bad, _ = await send(world, 3)
        await world.broker.restart()
        store = world.broker.broker.service.broker_context.ledgers.store
        read = store.read

        async def damaged(ledger_id: int, first: int, entries: int, size_bytes: int) -> object:
            if ledger_id == bad.ledger_id and first <= bad.entry_id < first + entries:
                if first == bad.entry_id:
                    raise DamagedEntries(ledger_id, first, first, "its checksum does not match")
                entries = bad.entry_id - first
            return await read(ledger_id, first, entries, size_bytes)

        self.monkeypatch.setattr(store, "read", damaged)
        self.monkeypatch.setattr(store, "read_buffered", lambda *_: None)
        self.consumer = await world.client.consumer(TOPIC, "s", kind="shared")
        await received(self.consumer, 1)
        now = world.subscription
        await world.until(
            lambda: (still := now().stall) is not None and still.blocked_reason is BlockedReason.READ_FAILED
        )
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {
            "Irreversible: acknowledge message ": self.one_is_lost,
            "Irreversible: skip damaged messages in every subscription of this broker": self.goes_on,
        }

    async def one_is_lost(self, world: Explained, ran: Ran) -> None:
        await self.goes_on(world, ran)
        assert backlog(world, "other") == 3

    async def goes_on(self, world: Explained, _: Ran) -> None:
        await world.broker.clock.advance(seconds=30)
        (message,) = await received(self.consumer, 1)
        assert message.id.entry_id == 2
        assert backlog(world, "s") == 2


class PendingEnd(Situation):
    """A transaction is committed, and its topic is not told before the test ends."""

    code = "transaction-end-pending"
    settings: Mapping[str, object] = {"transactionCoordinatorEnabled": True}
    used = frozenset({"show_transaction", "show_coordinator"})

    async def make(self, world: Explained) -> list[str]:
        await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        producer = await world.client.producer(TOPIC, batching=False)
        transaction = await world.client.transaction()
        await producer.send(b"in", transaction=transaction)
        coordinator = world.broker.broker.service.transactions.begun(transaction.id.most)
        assert coordinator is not None
        self.monkeypatch.setattr(coordinator.endings, "_end_participant", never)
        self.monkeypatch.setattr(TransactionParticipants, "end", never)
        committing = asyncio.ensure_future(transaction.commit())
        await world.until(lambda: coordinator.endings.find(transaction.id) is not None)
        await world.client.close()
        await world.broker.crash()
        await asyncio.wait([committing])
        await world.broker.restart()
        return [TOPIC, "s"]

    def checks(self) -> Checks:
        return {"Show transaction (0,": shows, "Show transaction coordinator 0": shows}


async def never(*_: object) -> None:
    await asyncio.Event().wait()
