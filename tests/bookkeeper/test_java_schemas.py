"""Schemas that are exchanged with a real Java broker on the same ZooKeeper and bookies, in both directions."""

from __future__ import annotations

import json
import urllib.request

import pulsar
import pytest
from tests.bookkeeper.test_java_brokers import Brokers, brokers

pytestmark = [pytest.mark.long, pytest.mark.cluster]
__all__ = ["brokers"]
TOPIC = "persistent://public/default/schemas %s"
PATH = "/admin/v2/schemas/public/default/schemas%%20%s"


def definition(*fields: dict[str, object]) -> dict[str, object]:
    return {"type": "record", "name": "Order", "fields": [{"name": "a", "type": "string"}, *fields]}


FIRST = definition()
SECOND = definition({"name": "b", "type": "int", "default": 7})


def http_url(brokers: Brokers, kind: str) -> str:
    return brokers.java.http_url if kind == "java" else brokers.own.http_url


def get(url: str) -> object:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def delete(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=30) as answer:
        answer.read()


def send(client: pulsar.Client, topic: str, schema: object, value: object) -> None:
    producer = client.create_producer(topic, schema=schema)
    producer.send(value)
    producer.close()


@pytest.mark.parametrize(("first", "second"), [("java", "own"), pytest.param("own", "java", marks=pytest.mark.cluster)])
def test_versions_of_one_broker_are_answered_and_continued_by_the_other(
    brokers: Brokers, first: str, second: str
) -> None:
    name = f"{first}-{second}"
    topic, path = TOPIC % name, PATH % name

    def avro(fields: dict[str, object]) -> object:
        return pulsar.schema.AvroSchema(None, schema_definition=fields)

    with brokers.running(first) as client:
        client.subscribe(topic, "kept").close()
        send(client, topic, avro(FIRST), {"a": "one"})
        send(client, topic, avro(SECOND), {"a": "two", "b": 2})
        told = get(f"{http_url(brokers, first)}{path}/schemas")
    with brokers.running(second) as client:
        url = f"{http_url(brokers, second)}{path}"
        assert get(f"{url}/schemas") == told
        assert get(f"{url}/schema/0") == told["getSchemaResponses"][0]  # type: ignore[index]
        send(client, topic, avro(FIRST), {"a": "again"})
        assert get(f"{url}/schemas") == told, "an equal schema has its version already"
        consumer = client.subscribe(
            topic, "reader", schema=avro(SECOND), initial_position=pulsar.InitialPosition.Earliest
        )
        assert [consumer.receive(30_000).value()["a"] for _ in range(3)] == ["one", "two", "again"]
        consumer.close()
        delete(f"{url}/schema")
        send(client, topic, pulsar.schema.StringSchema(), "text")
        after = get(f"{url}/schemas")
    with brokers.running(first) as client:
        assert get(f"{http_url(brokers, first)}{path}/schemas") == after
        delete(
            f"{http_url(brokers, first)}/admin/v2/persistent/public/default/schemas%20{name}?force=true&deleteSchema=true"
        )
