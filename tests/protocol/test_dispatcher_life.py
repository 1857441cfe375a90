"""What a subscription keeps from one dispatcher to the next, and what the next one brings along."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import Subscription
from pybroker.dispatch.consumer_state import KeySharedOptions
from pybroker.dispatch.key_shared_classic import ClassicKeySharedDispatcher
from pybroker.errors import ConsumerAssignError

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(
        active_consumer_failover_delay_time_millis=0, key_shared_unblocking_interval_ms=0
    ) as found:
        yield found


async def subscription_of(broker: MemoryBroker) -> Subscription:
    return await (await broker.topic(TOPIC)).subscription("s", True, True, {})


def join(
    broker: MemoryBroker, subscription: Subscription, name: str, kind: str, options: KeySharedOptions | None = None
) -> RecordingPeer:
    peer = RecordingPeer()
    consumer = Consumer(subscription, 1, name, 0, 0, peer, {}, 0, options or KeySharedOptions(None, False))
    broker.topic_of(subscription).attach(subscription, consumer, kind)
    consumer.flow(1000)
    return peer


async def test_the_classic_switch_holds_for_the_next_dispatcher(broker: MemoryBroker) -> None:
    subscription = await subscription_of(broker)
    join(broker, subscription, "a", "Key_Shared")
    runtime = broker.service.runtime
    runtime.config = runtime.config.replace(subscription_key_shared_use_classic_persistent_implementation=True)
    join(broker, subscription, "b", "Key_Shared")
    assert not isinstance(subscription.dispatcher, ClassicKeySharedDispatcher)
    for consumer in list(subscription.consumers):
        consumer.detach()
    join(broker, subscription, "a", "Key_Shared")
    assert isinstance(subscription.dispatcher, ClassicKeySharedDispatcher)


async def test_drained_hashes_are_counted_over_all_dispatchers(broker: MemoryBroker) -> None:
    subscription = await subscription_of(broker)
    drained = 0
    for _ in range(2):
        first = join(broker, subscription, "a", "Key_Shared")
        await broker.publish(broker.topic_of(subscription), 40)  # keyless: they spread
        await broker.until(lambda peer=first: len(peer.delivered) >= 40)  # type: ignore[misc]
        join(broker, subscription, "b", "Key_Shared")
        assert subscription.draining_hashes_cleared_total == drained
        acknowledge(subscription.consumers[0], first.delivered)
        assert subscription.draining_hashes_cleared_total > drained
        drained = subscription.draining_hashes_cleared_total
        for consumer in list(subscription.consumers):
            consumer.detach()
        assert subscription.draining_hashes_cleared_total == drained


async def test_what_a_draining_hash_held_back_goes_to_its_new_owner_without_another_push(broker: MemoryBroker) -> None:
    subscription = await subscription_of(broker)
    first = join(broker, subscription, "a", "Key_Shared")
    await broker.publish(broker.topic_of(subscription), 40)
    await broker.until(lambda: len(first.delivered) == 40)
    second = join(broker, subscription, "b", "Key_Shared")
    await broker.publish(broker.topic_of(subscription), 40)  # the same keys again: producer and sequence id
    await broker.until(lambda: subscription.replay_entry_count + len(first.delivered) == 80)
    assert not second.delivered
    acknowledge(subscription.consumers[0], list(first.delivered))
    await broker.until(lambda: len(first.delivered) + len(second.delivered) == 80)
    assert second.delivered


async def test_a_wait_that_is_over_starts_only_the_dispatcher_that_asked_for_it(broker: MemoryBroker) -> None:
    subscription = await subscription_of(broker)
    await broker.publish(broker.topic_of(subscription), 2)
    join(broker, subscription, "a", "Failover")
    subscription.consumers[0].detach()
    peer = join(broker, subscription, "b", "Failover")
    assert peer.activity == [], "nobody is told before the answer to SUBSCRIBE"
    await broker.until(lambda: len(peer.delivered) == 2)
    assert peer.activity == [True]


async def test_a_refused_consumer_leaves_the_dispatcher_as_it_was(broker: MemoryBroker) -> None:
    subscription = await subscription_of(broker)
    join(broker, subscription, "a", "Shared")
    subscription.consumers[0].detach()
    before = subscription.dispatcher
    with pytest.raises(ConsumerAssignError):
        join(broker, subscription, "b", "Key_Shared", KeySharedOptions([], False))
    assert (subscription.dispatcher, subscription.consumers) == (before, [])
