"""What slows the dispatch of one subscription down, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.recording_peer import RecordingPeer
from tests.unit.broker.one_topic import OneTopic, one_topic

from pybroker.broker.delivery.dispatch_throttle import throttle_of
from pybroker.broker.delivery.subscription import Subscription
from pybroker.dispatch.dispatcher import Dispatcher, ReadPlan
from pybroker.model.policies import DispatchRate, TopicPolicies
from pybroker.model.position import Position


def limited(messages: int, *, of_subscription: int = -1, relative: bool = False) -> TopicPolicies:
    return TopicPolicies(
        dispatchRate=DispatchRate(messages, -1, relative, 1),
        subscriptionDispatchRate=DispatchRate(of_subscription, -1, False, 1),
    )


async def delivered_in_turns(one: OneTopic, peer: RecordingPeer, turns: int) -> list[int]:
    """How many were delivered in each second."""
    counts = []
    for _ in range(turns):
        before = len(peer.delivered)
        await one.pumped()
        counts.append(len(peer.delivered) - before)
        one.runtime.move(1000)
    return counts


@pytest.mark.parametrize("scope", ["", "per_topic_", "per_subscription_"])
async def test_configured_rate_applies_without_a_policy(scope: str) -> None:
    settings: dict[str, Any] = {f"dispatch_throttling_rate_{scope}in_msg": 10}
    async with one_topic(**settings) as one:
        peer = RecordingPeer()
        one.consumer(await one.subscription(), peer)
        await one.publish(25)
        assert await delivered_in_turns(one, peer, 3) == [10, 10, 5]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
@pytest.mark.parametrize("scope", ["Topic", "Subscription"])
async def test_rate_slows_backlog_and_is_counted_by_its_scope(scope: str, kind: str) -> None:
    rates = limited(10) if scope == "Topic" else limited(-1, of_subscription=10)
    async with one_topic(rates) as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        await one.publish(25)
        one.consumer(subscription, peer, kind)
        assert await delivered_in_turns(one, peer, 3) == [10, 10, 5]
        assert set(subscription.counters.throttled_events) == {("Msg", scope)}


async def test_each_subscription_has_its_own_subscription_rate() -> None:
    async with one_topic(limited(-1, of_subscription=4)) as one:
        peers = [RecordingPeer(), RecordingPeer()]
        for name, peer in zip("ab", peers, strict=True):
            one.consumer(await one.subscription(name), peer)
        await one.publish(6)
        await one.pumped()
        assert [len(peer.delivered) for peer in peers] == [4, 4]


async def test_rate_in_bytes_slows_backlog() -> None:
    async with one_topic(TopicPolicies(dispatchRate=DispatchRate(-1, 1, False, 1))) as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        one.consumer(subscription, peer)
        await one.publish(3)
        await one.pumped()
        assert len(peer.delivered) < 3
        one.runtime.move(1_000_000)
        await one.pumped()
        assert set(subscription.counters.throttled_events) == {("Bytes", "Topic")}


async def test_redelivered_messages_count_towards_the_rate() -> None:
    async with one_topic(limited(-1, of_subscription=10)) as one:
        peer = RecordingPeer()
        consumer = one.consumer(await one.subscription(), peer)
        await one.publish(10)
        await one.pumped()
        assert len(peer.delivered) == 10
        consumer.subscription.redeliver(consumer, None, 0)
        await one.pumped()
        assert len(peer.delivered) == 10
        one.runtime.move(1000)
        await one.pumped()
        assert sorted(peer.delivered[10:]) == sorted(peer.delivered[:10])


@pytest.mark.parametrize(("counts_batches", "expected"), [(True, [10, 10]), (False, [10, 0])])
async def test_batch_counts_as_one_message_only_where_configured(counts_batches: bool, expected: list[int]) -> None:
    async with one_topic(limited(10), dispatch_throttling_on_batch_message_enabled=counts_batches) as one:
        peer = RecordingPeer()
        one.consumer(await one.subscription(), peer)
        await one.publish(20, messages_each=10)
        assert await delivered_in_turns(one, peer, 2) == expected


async def test_a_subscription_without_a_rate_has_no_throttle() -> None:
    async with one_topic() as one:
        assert (await one.subscription()).throttle is None


async def test_subscriptions_share_the_rate_of_their_topic() -> None:
    async with one_topic(limited(4)) as one:
        peers = [RecordingPeer(), RecordingPeer()]
        for name, peer in zip("ab", peers, strict=True):
            one.consumer(await one.subscription(name), peer)
        await one.publish(4)
        await one.pumped()
        assert sum(len(peer.delivered) for peer in peers) == 4
        for _ in range(3):
            one.runtime.move(1000)
            await one.pumped()
        assert [len(peer.delivered) for peer in peers] == [4, 4]


async def test_the_slowest_of_the_limits_counts_and_each_that_stopped_something_is_told_in_the_counters() -> None:
    async with one_topic(limited(10, of_subscription=2)) as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        one.consumer(subscription, peer)
        await one.publish(6)
        assert await delivered_in_turns(one, peer, 3) == [2, 2, 2]
        assert set(subscription.counters.throttled_events) == {("Msg", "Subscription")}


async def test_a_limit_that_stays_the_same_keeps_its_count() -> None:
    async with one_topic(limited(3)) as one:
        subscription, peer = await one.subscription(), RecordingPeer()
        one.consumer(subscription, peer)
        await one.publish(5)
        await one.pumped()
        one.topic.own_policies_changed(limited(3, of_subscription=100))
        await one.pumped()
        assert len(peer.delivered) == 3
        one.topic.own_policies_changed(TopicPolicies())
        await one.pumped()
        assert len(peer.delivered) == 5
        assert subscription.throttle is None


async def test_a_rate_relative_to_publishing_lets_out_what_came_in() -> None:
    async with one_topic(limited(1, relative=True)) as one:
        peer = RecordingPeer()
        one.consumer(await one.subscription(), peer)
        await one.publish(7)
        await one.pumped()
        assert len(peer.delivered) == 7


async def test_who_keeps_up_is_exempt_where_the_configuration_says_so() -> None:
    async with one_topic(limited(2), dispatch_throttling_on_non_backlog_consumer_enabled=False) as one:
        peer = RecordingPeer()
        one.consumer(await one.subscription(), peer)
        await one.publish(9)
        await one.pumped()
        assert len(peer.delivered) == 9


async def test_a_plan_of_redeliveries_is_cut_and_the_rest_asked_for_again() -> None:
    async with one_topic(limited(2)) as one:
        subscription = await one.subscription()
        one.consumer(subscription, RecordingPeer())
        throttle, dispatcher = throttle_of(subscription, subscription.cursor, None), dispatcher_of(subscription)
        assert throttle is not None
        assert throttle.allows_read()
        given_back: list[ReadPlan] = []
        dispatcher.give_back = given_back.append  # type: ignore[assignment, method-assign]
        wanted = [Position(0, entry_id) for entry_id in range(5)]
        plan = ReadPlan(100, 1 << 20, wanted, object())
        throttle.cut(plan, dispatcher)
        assert plan.replay == wanted[:2]
        assert [each.replay for each in given_back] == [wanted[2:]]


def dispatcher_of(subscription: Subscription) -> Dispatcher:
    assert subscription.dispatcher is not None
    return subscription.dispatcher
