"""Dispatch rates as clients meet them. Times are checked from below, where they must hold; from above only loosely."""

import time
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import admin, path_of, receive_all, running_with_client
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type
from tests.support.rest import call

EARLIEST = pulsar.InitialPosition.Earliest
# Ten at once, ten more each second: 25 messages take one and a half seconds.
TEN_A_SECOND = {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 1}
MESSAGES, EXPECTED_S = 25, 1.4


def fill(
    client: pulsar.Client, topic: str, count: int = MESSAGES, body: bytes = b"m", *, batched: bool = False
) -> None:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=60_000)
    for _ in range(count):
        producer.send_async(body, lambda result, message_id: None)
    producer.flush()
    producer.close()


def seconds_to_receive(consumer: pulsar.Consumer, count: int = MESSAGES) -> float:
    started_s = time.monotonic()
    for message in receive_all(consumer, count):
        consumer.acknowledge(message)
    return time.monotonic() - started_s


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared], ids=str)
def test_a_topics_rate_slows_a_backlog_down_until_it_is_removed(
    broker: BrokerProcess, client: pulsar.Client, topic: str, policy: str, kind: pulsar.ConsumerType
) -> None:
    fill(client, topic, 3 * MESSAGES)
    admin(broker, "POST", f"{path_of(topic)}/{policy}", TEN_A_SECOND)
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    assert seconds_to_receive(consumer) >= EXPECTED_S
    stats = call(f"{broker.http_url}/admin/v2{path_of(topic)}/stats").json["subscriptions"]["s"]
    scope = "Topic" if policy == "dispatchRate" else "Subscription"
    assert stats[f"dispatchThrottledMsgEventsBy{scope}Limit"] > 0
    assert stats[f"dispatchThrottledBytesEventsBy{scope}Limit"] == 0
    admin(broker, "DELETE", f"{path_of(topic)}/{policy}")
    assert seconds_to_receive(consumer, 2 * MESSAGES) < 2 * EXPECTED_S


def test_subscriptions_share_their_topics_rate_and_have_their_own_for_themselves(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic, 15)
    admin(broker, "POST", f"{path_of(topic)}/subscriptionDispatchRate", TEN_A_SECOND)
    both = [client.subscribe(topic, name, initial_position=EARLIEST) for name in ("a", "b")]
    started_s = time.monotonic()
    for consumer in both:
        receive_all(consumer, 15)
    assert 0.4 <= time.monotonic() - started_s < EXPECTED_S
    admin(broker, "DELETE", f"{path_of(topic)}/subscriptionDispatchRate")
    admin(broker, "POST", f"{path_of(topic)}/dispatchRate", TEN_A_SECOND)
    both = [client.subscribe(topic, name, initial_position=EARLIEST) for name in ("c", "d")]
    started_s = time.monotonic()
    for consumer in both:
        receive_all(consumer, 15)
    assert time.monotonic() - started_s >= EXPECTED_S


def test_bytes_are_limited_too(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    fill(client, topic, 10, b"x" * 10_000)
    admin(broker, "POST", f"{path_of(topic)}/dispatchRate", {"dispatchThrottlingRateInByte": 40_000})
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert seconds_to_receive(consumer, 10) >= 1.0


def test_what_is_sent_again_counts_as_well(broker: BrokerProcess, topic: str) -> None:
    with_client = RawClient(broker.url)
    try:
        with_client.connect()
        with_client.open_producer(topic, 9)
        with_client.publish(9, 10)
        admin(broker, "POST", f"{path_of(topic)}/subscriptionDispatchRate", TEN_A_SECOND)
        with_client.subscribe(topic, sub_type="Shared")
        started_s = time.monotonic()
        with_client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        first = [with_client.reply()["payload"] for _ in range(10)]
        with_client.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        again = [with_client.reply()["payload"] for _ in range(10)]
        assert sorted(first) == sorted(again)
        assert time.monotonic() - started_s >= 0.9
    finally:
        with_client.close()


def test_a_namespaces_rate_holds_for_its_topics(tmp_path: Path, topic: str) -> None:
    with running_with_client(tmp_path) as (broker, client):
        fill(client, topic)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST, receiver_queue_size=1)
        consumer.receive(30_000)
        admin(broker, "POST", "/namespaces/public/default/dispatchRate", TEN_A_SECOND)
        assert seconds_to_receive(consumer, MESSAGES - 1) >= EXPECTED_S - 0.2


def test_the_configurations_rates_hold_where_nothing_else_is_set(tmp_path: Path, topic: str) -> None:
    for index, key in enumerate(("", "PerTopic", "PerSubscription")):
        directory = tmp_path / str(index)
        directory.mkdir()
        with running_with_client(directory, **{f"dispatchThrottlingRate{key}InMsg": "10"}) as (_, client):
            fill(client, topic)
            consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
            assert seconds_to_receive(consumer) >= EXPECTED_S


def test_a_batch_counts_as_one_if_the_configuration_says_so(tmp_path: Path, topic: str) -> None:
    settings = {"dispatchThrottlingRatePerTopicInMsg": "10", "dispatchThrottlingOnBatchMessageEnabled": "true"}
    with running_with_client(tmp_path, **settings) as (_, client):
        fill(client, topic, 100, batched=True)
        fill(client, topic, 100, batched=True)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert seconds_to_receive(consumer, 200) < 10


def test_consumers_that_keep_up_are_left_alone_if_the_configuration_says_so(tmp_path: Path, topic: str) -> None:
    settings = {"dispatchThrottlingRatePerTopicInMsg": "1", "dispatchThrottlingOnNonBacklogConsumerEnabled": "false"}
    with running_with_client(tmp_path, **settings) as (_, client):
        consumer = client.subscribe(topic, "s")
        fill(client, topic, 50)
        assert seconds_to_receive(consumer, 50) < 10


def test_a_consumer_that_subscribes_too_often_is_refused(broker: BrokerProcess, topic: str) -> None:
    raw = RawClient(broker.url)
    try:
        raw.connect()
        raw.open_producer(topic, 9)
        rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 60}
        admin(broker, "POST", f"{path_of(topic)}/subscribeRate", rate)
        for expected in ("SUCCESS", "SUCCESS", "ERROR"):
            assert raw.subscribe(topic, 1, consumer_name="c")["type"] == expected
            raw.request(Type.CLOSE_CONSUMER, consumer_id=1)
        assert raw.subscribe(topic, 2, consumer_name="c")["type"] == "SUCCESS"
        admin(broker, "DELETE", f"{path_of(topic)}/subscribeRate")
        raw.request(Type.CLOSE_CONSUMER, consumer_id=2)
        assert raw.subscribe(topic, 1, consumer_name="c")["type"] == "SUCCESS"
    finally:
        raw.close()
