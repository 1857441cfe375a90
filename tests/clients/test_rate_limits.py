"""Dispatch rates as clients meet them. Times are checked from below, where they must hold; from above only loosely."""

import time

import pulsar
from tests.clients.conftest import admin, path_of, receive_all
from tests.support.broker_process import BrokerProcess
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


def test_dispatch_rate_of_topic_slows_backlog_until_it_is_removed(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    fill(client, topic, 3 * MESSAGES)
    admin(broker, "POST", f"{path_of(topic)}/dispatchRate", TEN_A_SECOND)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    assert seconds_to_receive(consumer) >= EXPECTED_S
    stats = call(f"{broker.http_url}/admin/v2{path_of(topic)}/stats").json["subscriptions"]["s"]
    assert stats["dispatchThrottledMsgEventsByTopicLimit"] > 0
    admin(broker, "DELETE", f"{path_of(topic)}/dispatchRate")
    assert seconds_to_receive(consumer, 2 * MESSAGES) < 2 * EXPECTED_S
