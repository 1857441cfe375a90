"""One topic without a broker: what it takes, answers and refuses."""

from __future__ import annotations

import pytest
from tests.support.recording_peer import RecordingPeer
from tests.unit.broker.one_topic import one_topic, run_of

from pybroker.broker.delivery.consumer import Consumer
from pybroker.errors import (
    LedgerFenced,
    NotAllowedError,
    ProducerBusy,
    StoreError,
    SubscriptionNotFound,
    TopicFenced,
    TopicTerminatedError,
)
from pybroker.model.policies import TopicPolicies


async def test_receipts_leave_in_the_order_of_the_messages_and_never_before_these_are_stored() -> None:
    async with one_topic() as one:
        peer = RecordingPeer()
        producer = one.producer(peer)
        for _ in range(3):
            one.topic.publish(producer, run_of(4))
        assert not peer.receipts
        await producer.drained()
        assert len(peer.receipts) == 12
        assert peer.receipts == sorted(peer.receipts)
        assert one.topic.counters.messages_in == producer.counters.messages_in == 12


async def test_a_topic_that_is_being_closed_drops_what_is_sent_without_an_answer() -> None:
    async with one_topic() as one:
        peer = RecordingPeer()
        producer = one.producer(peer)
        one.topic.fence()
        one.topic.publish(producer, run_of(2))
        assert (peer.dropped, peer.closed_producers, peer.errors) == (2, [1], [])
        with pytest.raises(TopicFenced):
            one.producer(RecordingPeer(), "late")


async def test_what_the_store_refuses_is_answered_and_later_messages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_topic() as one:
        peer = RecordingPeer()
        producer = one.producer(peer)

        def refuse(*_: object) -> None:
            raise StoreError("no")

        with monkeypatch.context() as broken:
            broken.setattr(one.topic.ledger, "append", refuse)
            one.topic.publish(producer, run_of(2))
        assert len(peer.errors) == 2
        assert producer.pending == 0
        one.topic.publish(producer, run_of(1))
        await producer.drained()
        assert len(peer.receipts) == 1
        assert one.topic.counters.publish_errors == 2


async def test_limits_of_producers_consumers_and_subscriptions_turn_newcomers_away() -> None:
    policies = TopicPolicies(maxProducerPerTopic=1, maxSubscriptionsPerTopic=1)
    async with one_topic(policies) as one:
        first = one.producer(RecordingPeer(), "one")
        with pytest.raises(ProducerBusy, match="maxProducersPerTopic=1"):
            one.producer(RecordingPeer(), "two")
        first.detach()
        one.producer(RecordingPeer(), "two")
        await one.subscription("a")
        with pytest.raises(NotAllowedError):
            await one.subscription("b")
        one.topic.own_policies_changed(TopicPolicies())
        await one.subscription("b")


async def test_a_terminated_topic_takes_nothing_more_and_tells_readers_that_have_all() -> None:
    async with one_topic() as one:
        subscription, peer, sender = await one.subscription(), RecordingPeer(), RecordingPeer()
        one.consumer(subscription, peer)
        one.producer(sender)
        await one.topic.terminate()
        assert peer.at_end == [1]
        assert sender.closed_producers == [1]
        with pytest.raises(TopicTerminatedError):
            one.producer(RecordingPeer(), "late")


async def test_a_consumer_is_never_attached_to_a_subscription_that_is_gone() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        await one.topic.delete_subscription(subscription)
        assert not one.topic.subscriptions
        consumer = Consumer(subscription, 1, "c", 0, 0, RecordingPeer(), {}, 0)
        with pytest.raises(SubscriptionNotFound):
            one.topic.attach(subscription, consumer, "Shared")


async def test_a_topic_that_somebody_else_owns_is_closed_once() -> None:
    async with one_topic() as one:
        one.topic.fenced(LedgerFenced("another broker wrote its document"))
        assert one.unloads == ["another broker wrote its document"]
        assert one.topic.is_silent
