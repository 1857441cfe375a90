"""The official client with schemas: records that are checked, versions that consumers read by, refusals."""

from __future__ import annotations

import json
import threading
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String, StringSchema
from tests.clients.conftest import new_client, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type
from tests.support.rest import call
from tests.support.schemas import body, key_value

TIMEOUT_MS = 10_000


class Order(Record):
    """What the first applications send."""

    id = String(required=True)
    count = Integer(required=True)


def order_with_note() -> type[Any]:
    """A later version that both sides can read; the client takes a record's name from the class."""

    class Order(Record):
        id = String(required=True)
        count = Integer(required=True)
        note = String(required_default=True)

    return Order


def order_of_customer() -> type[Any]:
    """Cannot be read by who knows only the first version, nor the other way round."""

    class Order(Record):
        id = Integer(required=True)
        customer = String(required=True)

    return Order


OrderWithNote, OrderOfCustomer = order_with_note(), order_of_customer()


def schemas(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    path = topic.removeprefix("persistent://")
    found: list[dict[str, Any]] = call(f"{broker.http_url}/admin/v2/schemas/{path}/schemas").json["getSchemaResponses"]
    return found


def version(message: pulsar.Message) -> int:
    return int.from_bytes(message.schema_version().encode("latin-1"))


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_records_are_sent_and_received(broker: BrokerProcess, client: pulsar.Client, topic: str, kind: Any) -> None:
    topic = f"{topic}-{kind.__name__}"
    consumer = client.subscribe(topic, "s", schema=kind(Order))
    producer = client.create_producer(topic, schema=kind(Order))
    for count in range(5):
        producer.send(Order(id=f"o-{count}", count=count))
    received = [message.value() for message in receive_all(consumer, 5)]
    assert [(each.id, each.count) for each in received] == [(f"o-{count}", count) for count in range(5)]
    shown = schemas(broker, topic)
    assert [(each["version"], each["type"]) for each in shown] == [(0, kind.__name__.removesuffix("Schema").upper())]
    assert json.loads(shown[0]["data"])["name"] == "Order"


def test_texts_and_bytes(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("grüße")
    assert consumer.receive(TIMEOUT_MS).value() == "grüße"
    assert [each["type"] for each in schemas(broker, topic)] == ["STRING"]
    plain = f"{topic}-plain"
    raw = client.subscribe(plain, "s", schema=BytesSchema())
    client.create_producer(plain, schema=BytesSchema()).send(b"\x00\xff")
    assert raw.receive(TIMEOUT_MS).value() == b"\x00\xff"
    assert schemas(broker, plain) == []


def test_who_knows_no_schema_reads_bytes_beside_those_who_do(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=JsonSchema(Order)).send(Order(id="a", count=1))
    plain = client.subscribe(topic, "plain", initial_position=pulsar.InitialPosition.Earliest)
    assert json.loads(plain.receive(TIMEOUT_MS).data()) == {"id": "a", "count": 1}
    client.create_producer(topic).send(b"whatever")
    assert plain.receive(TIMEOUT_MS).data() == b"whatever"


def test_a_consumer_reads_older_and_newer_messages_by_their_versions(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    older = client.create_producer(topic, schema=AvroSchema(Order))
    older.send(Order(id="old", count=1))
    client.create_producer(topic, schema=AvroSchema(OrderWithNote)).send(OrderWithNote(id="new", count=2, note="hi"))
    older.send(Order(id="old again", count=3))
    consumer = client.subscribe(
        topic, "s", schema=AvroSchema(OrderWithNote), initial_position=pulsar.InitialPosition.Earliest
    )
    messages = receive_all(consumer, 3)
    assert [version(each) for each in messages] == [0, 1, 0]
    assert [(each.value().id, each.value().note) for each in messages] == [
        ("old", None),
        ("new", "hi"),
        ("old again", None),
    ]
    assert [each["version"] for each in schemas(broker, topic)] == [0, 1]


def test_a_producer_and_a_consumer_that_do_not_fit_are_refused(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=AvroSchema(Order))
    for schema in (AvroSchema(OrderOfCustomer), JsonSchema(Order), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=schema)
    assert [each["version"] for each in schemas(broker, topic)] == [0]
    client.create_producer(topic, schema=AvroSchema(OrderWithNote))


def test_two_clients_that_upload_at_once_agree_on_versions(broker: BrokerProcess, topic: str) -> None:
    clients = [new_client(broker.url) for _ in range(2)]
    ready = threading.Barrier(2)
    failures: list[Exception] = []

    def upload(client: pulsar.Client, order: tuple[Any, ...]) -> None:
        try:
            ready.wait()
            for record in order:
                client.create_producer(topic, schema=AvroSchema(record))
        except Exception as error:  # noqa: BLE001  (told to the test's own thread)
            failures.append(error)

    orders = ((Order, OrderWithNote), (OrderWithNote, Order))
    threads = [threading.Thread(target=upload, args=pair) for pair in zip(clients, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    assert failures == []
    assert [each["version"] for each in schemas(broker, topic)] == [0, 1]


def test_a_producer_comes_back_with_its_version_after_a_restart(own_broker: BrokerProcess) -> None:
    topic = "persistent://public/default/comes-back"
    client = new_client(own_broker.url)
    client.create_producer(topic, schema=AvroSchema(Order))
    producer = client.create_producer(topic, schema=AvroSchema(OrderWithNote))
    own_broker.kill()
    own_broker.start()
    producer.send(OrderWithNote(id="x", count=1, note="after"))
    consumer = client.subscribe(
        topic, "s", schema=AvroSchema(OrderWithNote), initial_position=pulsar.InitialPosition.Earliest
    )
    message = consumer.receive(TIMEOUT_MS)
    assert (version(message), message.value().note) == (1, "after")
    assert [each["version"] for each in schemas(own_broker, topic)] == [0, 1]
    client.close()


def test_partitions_share_the_schema(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = topic.replace("persistent://", "persistent/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=3).status == 204
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Order))
    producer = client.create_producer(topic, schema=AvroSchema(Order))
    for count in range(9):
        producer.send(Order(id="p", count=count), partition_key=str(count))
    assert sorted(message.value().count for message in receive_all(consumer, 9)) == list(range(9))
    assert [each["version"] for each in schemas(broker, topic)] == [0]


def test_a_schema_uploaded_by_rest_lets_clients_in_that_may_add_none(broker: BrokerProcess, topic: str) -> None:
    namespace = f"{broker.http_url}/admin/v2/namespaces/public/no-updates"
    assert call(namespace, "PUT").status == 204
    assert call(f"{namespace}/isAllowAutoUpdateSchema", "POST", body=False).status == 204
    topic = topic.replace("public/default", "public/no-updates")
    client = new_client(broker.url)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Order))
    definition = json.dumps(Order.schema())
    path = f"{broker.http_url}/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    assert call(path, "POST", body=body(definition)).json == {"version": {"version": 0}}
    client.create_producer(topic, schema=AvroSchema(Order)).send(Order(id="a", count=1))
    client.close()


def test_keys_and_values_that_another_client_registered_are_bytes_here(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    raw = RawClient(broker.url)
    raw.connect()
    definition = json.dumps(Order.schema())
    assert raw.open_producer(topic, schema=key_value("STRING", "", "AVRO", definition))["type"] == "PRODUCER_SUCCESS"
    raw.send_message(1, 0, b"\0\0\0\1k\0\0\0\1v", metadata={"schema_version": bytes(8)})
    assert raw.reply()["type"] == "SEND_RECEIPT"
    assert raw.request(Type.GET_SCHEMA, topic=topic)["schema"]["type"] == "KeyValue"
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    message = consumer.receive(TIMEOUT_MS)
    assert (version(message), message.data()) == (0, b"\0\0\0\1k\0\0\0\1v")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    raw.close()
