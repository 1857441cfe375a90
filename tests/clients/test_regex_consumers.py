"""Consumers of a pattern, as the official client has them.

That client has no watcher: it asks for the list every 60 seconds, whatever period it is told, so what comes later is for
`make test-long`. What watchers are told is in `tests/protocol/test_topic_watchers.py`.
"""

import itertools
import re
from collections.abc import Iterator

import pulsar
import pytest
from tests.clients.conftest import new_client, until
from tests.support.broker_process import BrokerProcess
from tests.support.rest import Answer, call

_serial = itertools.count(1)
DISCOVERY_MS = 80_000  # more than the client's period


@pytest.fixture
def namespace(broker: BrokerProcess) -> str:
    name = f"public/regex-{next(_serial)}"
    assert admin(broker, "PUT", f"/namespaces/{name}").status == 204
    return name


@pytest.fixture
def producers(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A client of its own: what one client makes it might know of without the broker."""
    found = new_client(broker.url)
    yield found
    found.close()


def admin(broker: BrokerProcess, method: str, path: str, body: object = None) -> Answer:
    return call(f"{broker.http_url}/admin/v2{path}", method, body=body)


def subscribe(client: pulsar.Client, namespace: str, local: str) -> pulsar.Consumer:
    return client.subscribe(
        re.compile(f"persistent://{namespace}/{local}"),
        "sub",
        initial_position=pulsar.InitialPosition.Earliest,
    )


def send(producers: pulsar.Client, topic: str, *contents: str) -> None:
    producer = producers.create_producer(topic)
    for content in contents:
        producer.send(content.encode())
    producer.close()


def received(consumer: pulsar.Consumer, count: int, timeout_ms: int = 20_000) -> list[tuple[str, str]]:
    """Local name of its topic and content of each of the next `count` messages, acknowledged, sorted."""
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_ms)
        consumer.acknowledge(message)
        found.append((message.topic_name().rpartition("/")[2], message.data().decode()))
    return sorted(found)


def test_a_pattern_gets_the_topics_that_are_there(
    client: pulsar.Client, producers: pulsar.Client, namespace: str
) -> None:
    for name in ("foo-a", "foo-b", "bar"):
        send(producers, f"persistent://{namespace}/{name}", name)
    consumer = subscribe(client, namespace, "foo.*")
    assert received(consumer, 2) == [("foo-a", "foo-a"), ("foo-b", "foo-b")]
    consumer.close()


@pytest.mark.long
def test_new_topics_and_partitions_are_seen(
    broker: BrokerProcess, client: pulsar.Client, producers: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/foo-part/partitions"
    assert admin(broker, "PUT", path, 1).status == 204
    consumer = subscribe(client, namespace, "foo.*")
    send(producers, f"persistent://{namespace}/foo-part-partition-0", "known")
    assert received(consumer, 1) == [("foo-part-partition-0", "known")]
    assert admin(broker, "POST", path, 2).status == 204
    send(producers, f"persistent://{namespace}/foo-part-partition-1", "grown")
    for name in ("bar", "foo-new"):
        send(producers, f"persistent://{namespace}/{name}", name)
    assert received(consumer, 2, DISCOVERY_MS) == [("foo-new", "foo-new"), ("foo-part-partition-1", "grown")]
    consumer.close()


def test_deleted_topics_go_and_come_back(
    broker: BrokerProcess, client: pulsar.Client, producers: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/foo-a"
    send(producers, topic, "first")
    send(producers, f"persistent://{namespace}/foo-b", "other")
    consumer = subscribe(client, namespace, "foo.*")
    received(consumer, 2)
    path = f"/{topic.replace('://', '/')}"
    assert admin(broker, "DELETE", f"{path}?force=true").status == 204
    listed = f"/persistent/{namespace}"
    until(lambda: admin(broker, "GET", listed).json == [f"persistent://{namespace}/foo-b"])
    send(producers, topic, "second")
    assert received(consumer, 1) == [("foo-a", "second")]
    consumer.close()


def test_a_pattern_that_the_broker_does_not_evaluate_is_evaluated_by_the_client(
    client: pulsar.Client, producers: pulsar.Client, namespace: str
) -> None:
    for name in ("foo-a", "bar"):
        send(producers, f"persistent://{namespace}/{name}", name)
    consumer = subscribe(client, namespace, "(?!bar).*")
    assert received(consumer, 1) == [("foo-a", "foo-a")]
    consumer.close()
