"""Rates that policies set at run time, on a broker in memory: which topics they limit, and when they end."""

from __future__ import annotations

import pytest
from tests.support.async_client import AsyncClient, Type
from tests.support.memory_broker import MemoryBroker
from tests.support.recording_peer import RecordingPeer

NAME = "persistent://public/default/t"
TOPIC = "/persistent/public/default/t"
NAMESPACE = "/namespaces/public/default"
TEN_AN_HOUR = {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 3600}
"""In the time that a test takes, no permission comes on top of the first ten."""


@pytest.mark.parametrize(
    "path",
    [
        f"{NAMESPACE}/dispatchRate",
        f"{NAMESPACE}/subscriptionDispatchRate",
        f"{TOPIC}/dispatchRate",
        f"{TOPIC}/subscriptionDispatchRate",
        f"{TOPIC}/s/dispatchRate",
    ],
)
async def test_dispatch_rate_policy_limits_backlog_until_it_is_removed(broker: MemoryBroker, path: str) -> None:
    topic, peer = await broker.topic(NAME), RecordingPeer()
    subscription = await topic.subscription("s", True, True, {})
    assert (await broker.rest("POST", path, TEN_AN_HOUR)).status == 204
    await broker.until(lambda: subscription.throttle is not None)
    await broker.publish(topic, 75)
    await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    assert len(peer.delivered) == 10
    shown = (await broker.rest("GET", f"{TOPIC}/stats")).json["subscriptions"]["s"]
    scope = "Topic" if path.endswith("/dispatchRate") and "/s/" not in path else "Subscription"
    assert shown[f"dispatchThrottledMsgEventsBy{scope}Limit"] > 0
    assert shown[f"dispatchThrottledBytesEventsBy{scope}Limit"] == 0
    assert (await broker.rest("DELETE", path)).status == 204
    await broker.until(lambda: len(peer.delivered) == 75)


async def test_dispatch_rate_of_one_subscription_does_not_limit_others(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    peers = {name: RecordingPeer() for name in ("slow", "fast")}
    for name, peer in peers.items():
        await broker.consumer(topic, name, peer)
    assert (await broker.rest("POST", f"{TOPIC}/slow/dispatchRate", TEN_AN_HOUR)).status == 204
    await broker.publish(topic, 50)
    await broker.until(lambda: len(peers["fast"].delivered) == 50)
    await broker.quiet(topic)
    assert len(peers["slow"].delivered) == 10


async def test_subscribe_rate_refuses_one_consumer_until_it_is_removed(
    broker: MemoryBroker, clients: list[AsyncClient]
) -> None:
    client = clients[0]
    await broker.topic(NAME)
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600}
    assert (await broker.rest("POST", f"{TOPIC}/subscribeRate", rate)).status == 204

    async def subscribed(consumer_id: int) -> str:
        answer = await client.answer(client.subscribe(NAME, consumer_id, "Exclusive", consumer_name="c"))
        return str(answer["type"])

    for expected in ("SUCCESS", "SUCCESS", "ERROR"):
        assert await subscribed(1) == expected
        await client.request(Type.CLOSE_CONSUMER, consumer_id=1)
    assert await subscribed(2) == "SUCCESS"
    assert (await broker.rest("DELETE", f"{TOPIC}/subscribeRate")).status == 204
    await client.request(Type.CLOSE_CONSUMER, consumer_id=2)
    assert await subscribed(1) == "SUCCESS"
