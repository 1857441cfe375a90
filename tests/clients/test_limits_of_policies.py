"""Limits that policies set, as the official client meets them."""

import time
from concurrent.futures import Future, wait

import pulsar
import pytest
from tests.clients.conftest import admin, new_client, path_of, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric
from tests.support.rest import call

EARLIEST = pulsar.InitialPosition.Earliest
MESSAGES = 60


def send_all(producer: pulsar.Producer, count: int) -> list[Future[pulsar.Result]]:
    """The results of `count` messages m0, m1, ... that are sent as fast as it goes."""
    results: list[Future[pulsar.Result]] = []
    for index in range(count):
        results.append(Future())
        producer.send_async(b"m%d" % index, lambda result, _, future=results[-1]: future.set_result(result))
    return results


def test_messages_arrive_in_order_and_in_time_under_publish_rate(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=5
    )
    admin(broker, "POST", f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 20})
    started_s = time.monotonic()
    results = send_all(producer, MESSAGES)
    producer.flush()
    assert time.monotonic() - started_s >= 1.5, "20 at once, 20 more each second"
    assert {each.result() for each in results} == {pulsar.Result.Ok}
    assert [message.data() for message in receive_all(consumer, MESSAGES)] == [
        b"m%d" % index for index in range(MESSAGES)
    ]
    stats = call(f"{broker.http_url}/admin/v2{path_of(topic)}/stats").json
    assert stats["publishRateLimitedTimes"] > 0
    until_metric(broker, lambda times: times > 0, "pulsar_publish_rate_limit_times", topic=topic)


def test_removed_publish_rate_releases_waiting_producer(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    admin(broker, "POST", f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 1})
    results = send_all(producer, 500)
    results[0].result(10)
    assert not results[-1].done()
    admin(broker, "DELETE", f"{path_of(topic)}/publishRate")
    assert not wait(results, 10).not_done


def test_connection_waiting_for_publish_rate_can_close(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    admin(broker, "PUT", path_of(topic))
    admin(broker, "POST", f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 1})
    leaving = new_client(broker.url)
    send_all(leaving.create_producer(topic), 50)
    leaving.shutdown()
    admin(broker, "DELETE", f"{path_of(topic)}/publishRate")
    client.create_producer(topic).send(b"still there")


def test_count_limits_raise_client_errors(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    admin(broker, "PUT", path_of(topic))
    for policy in ("maxProducers", "maxConsumers", "maxSubscriptionsPerTopic"):
        admin(broker, "POST", f"{path_of(topic)}/{policy}", 1)
    client.create_producer(topic, producer_name="first")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="second")
    client.subscribe(topic, "first", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "first", pulsar.ConsumerType.Shared)
    admin(broker, "DELETE", f"{path_of(topic)}/maxConsumers")
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "second", pulsar.ConsumerType.Shared)
