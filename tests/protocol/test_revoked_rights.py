"""Producers and consumers whose role loses its right while they are connected."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.producer_access import AccessMode
from pybroker.errors import AuthorizationError
from pybroker.model.names import NamespaceName
from pybroker.model.policies import AuthAction, NamespacePolicies, SubscriptionAuthMode

NAME = "persistent://public/default/t"
SECURED: dict[str, Any] = {
    "authentication_enabled": True,
    "anonymous_user_role": "anonymous",
    "authorization_enabled": True,
}
BOTH = [AuthAction.PRODUCE, AuthAction.CONSUME]


async def connected(broker: MemoryBroker, role: str) -> RecordingPeer:
    """A client with a producer and a consumer on the topic."""
    topic, peer = await broker.topic(NAME), RecordingPeer(role=role)
    broker.producer(topic, peer, role)
    await broker.consumer(topic, "s", peer)
    return peer


async def grant(broker: MemoryBroker, granted: dict[str, list[AuthAction]], mode: str | None = None) -> None:
    def change(policies: NamespacePolicies) -> None:
        policies.auth_policies.namespace_auth = granted
        policies.subscription_auth_mode = SubscriptionAuthMode(mode or "None")

    await broker.service.resources.update_namespace(NamespaceName("public", "default"), change)


async def test_who_loses_a_right_is_closed_and_all_others_stay() -> None:
    async with memory_broker(**SECURED) as broker:
        await grant(broker, {"loses-one": BOTH, "loses-all": BOTH, "stays": BOTH})
        loses_one, loses_all, stays = [await connected(broker, each) for each in ("loses-one", "loses-all", "stays")]
        await grant(broker, {"loses-one": [AuthAction.CONSUME], "stays": BOTH})
        topic = await broker.topic(NAME)
        assert (len(loses_one.closed_producers), len(loses_one.closed_consumers)) == (1, 0)
        assert (len(loses_all.closed_producers), len(loses_all.closed_consumers)) == (1, 1)
        assert stays.closed_producers == stays.closed_consumers == []
        assert list(topic.producers) == ["stays"]
        assert {consumer.peer.role for consumer in topic.subscriptions["s"].consumers} == {"loses-one", "stays"}


async def test_a_subscription_that_a_role_may_not_use_any_more_loses_its_consumer() -> None:
    async with memory_broker(**SECURED) as broker:
        await grant(broker, {"someone": BOTH})
        peer = await connected(broker, "someone")
        await grant(broker, {"someone": BOTH}, "Prefix")
        assert (len(peer.closed_producers), len(peer.closed_consumers)) == (0, 1)


async def test_a_right_that_went_while_a_client_waited_for_the_topic_counts_no_more() -> None:
    async with memory_broker(**SECURED) as broker:
        await grant(broker, {})
        topic, peer = await broker.topic(NAME), RecordingPeer(role="late")
        producer = Producer(topic.producer_registry.remove, 1, "p", False, 0, peer, {}, broker.clock.now_ms)
        with pytest.raises(AuthorizationError):
            await topic.producer_registry.enter(producer)
        assert not topic.producers


async def test_who_waits_for_its_turn_and_loses_the_right_is_told_at_once() -> None:
    async with memory_broker(**SECURED) as broker:
        await grant(broker, {"first": BOTH, "second": BOTH, "third": BOTH})
        topic, peers = await broker.topic(NAME), [RecordingPeer(role=role) for role in ("first", "second", "third")]
        for number, peer in enumerate(peers):
            mode = AccessMode.WAIT_FOR_EXCLUSIVE
            producer = Producer(
                topic.producer_registry.remove,
                number,
                str(peer.role),
                False,
                0,
                peer,
                {},
                broker.clock.now_ms,
                False,
                mode,
            )
            await topic.producer_registry.enter(producer)
        assert topic.producer_registry.waiting_count == 2
        await grant(broker, {"first": BOTH, "third": BOTH})
        assert [type(error) for error in peers[1].refused_producers] == [AuthorizationError]
        assert (topic.producer_registry.waiting_count, list(topic.producers)) == (1, ["first"])
        await grant(broker, {"third": BOTH})  # The next one in line is the one that still may.
        await broker.until(lambda: peers[2].ready_producers == [2])
        assert list(topic.producers) == ["third"]


async def test_without_authorization_nobody_is_closed() -> None:
    async with memory_broker() as broker:
        peer = await connected(broker, "someone")
        await grant(broker, {"another": BOTH})
        assert peer.closed_producers == peer.closed_consumers == []
