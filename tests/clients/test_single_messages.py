"""Looking at single messages and acting on them over REST, while official clients hold them, over unloads and `kill -9`."""

import time
from datetime import timedelta
from typing import Any

import pulsar
from tests.clients.conftest import admin, new_client, path_of, receive_all, until
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

HOUR_MS = 3_600_000


def at(topic: str, what: str) -> str:
    return f"{path_of(topic)}/subscription/s/{what}"


def asked(broker: BrokerProcess, topic: str, what: str) -> Any:
    return admin(broker, "GET", at(topic, what)).json


def ids_of(rows: list[Any]) -> list[str]:
    return [row["messageId"] for row in rows]


def entry_of(message: pulsar.Message) -> str:
    message_id = message.message_id()
    return f"{message_id.ledger_id()}:{message_id.entry_id()}"


def act(broker: BrokerProcess, topic: str, message_id: str, what: str, query: str = "") -> int:
    ledger_id, entry_id, *_ = message_id.split(":")
    url = f"{broker.http_url}/admin/v2{at(topic, f'message/{ledger_id}/{entry_id}/{what}{query}')}"
    return call(url, "POST").status


def test_what_a_client_holds_is_listed_acknowledged_for_it_and_stays_so_over_kill_9(
    own_broker: BrokerProcess, topic: str
) -> None:
    client = new_client(own_broker.url)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name="one")
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(6):
        producer.send(b"x", partition_key=f"k{index}", properties={"n": str(index)})
    taken = receive_all(consumer, 6)
    rows = asked(own_broker, topic, "unacked?withProperties=true")["messages"]
    assert ids_of(rows) == [entry_of(message) for message in taken]
    assert [row["properties"]["n"] for row in rows] == [str(index) for index in range(6)]
    assert {(row["consumer"], row["deliveryCount"]) for row in rows} == {("one", 1)}
    assert all(0 <= row["ageMs"] < 60_000 for row in rows)
    assert ids_of(asked(own_broker, topic, "unacked?key=k3")["messages"]) == [entry_of(taken[3])]
    assert asked(own_broker, topic, "hash?key=k3")["consumer"]["name"] == "one"

    assert act(own_broker, topic, entry_of(taken[3]), "acknowledge") == 204
    assert act(own_broker, topic, entry_of(taken[0]), "acknowledge") == 204
    own_broker.restart_after_kill()
    again = receive_all(consumer, 4)
    assert [entry_of(message) for message in again] == [entry_of(taken[index]) for index in (1, 2, 4, 5)]
    holes = asked(own_broker, topic, "ackHoles")
    assert holes["markDeletePosition"] == entry_of(taken[0])
    assert holes["oldestUnacked"]["messageId"] == entry_of(taken[1])
    assert holes["acknowledgedBehind"] == [{"from": entry_of(taken[3]), "to": entry_of(taken[3]), "entries": 1}]
    client.close()


def test_a_message_that_is_stuck_with_one_client_is_sent_to_the_other(broker: BrokerProcess, topic: str) -> None:
    stuck, other = new_client(broker.url), new_client(broker.url)
    first = stuck.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="stuck", receiver_queue_size=1)
    producer = stuck.create_producer(topic, batching_enabled=False)
    producer.send(b"x")
    held = first.receive(30_000)
    second = other.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="other", receiver_queue_size=10)
    admin(broker, "POST", at(topic, "consumer/stuck/disconnect"))
    message = second.receive(30_000)
    assert entry_of(message) == entry_of(held)
    (row,) = asked(broker, topic, "unacked?consumer=other")["messages"]
    assert row["deliveryCount"] == 2
    # Its client has come back; what it held is with the other one until it is sent again.
    until(lambda: len(admin(broker, "GET", f"{path_of(topic)}/stats").json["subscriptions"]["s"]["consumers"]) == 2)
    assert act(broker, topic, row["messageId"], "redeliver") == 204
    until(lambda: [each["deliveryCount"] for each in asked(broker, topic, "unacked")["messages"]] == [3])
    producer_name = producer.producer_name()
    assert call(f"{broker.http_url}/admin/v2{path_of(topic)}/producer/{producer_name}/disconnect", "POST").status == 204
    producer.send(b"y")  # Its client has come back by itself.
    stuck.close()
    other.close()


def test_messages_of_a_batch_are_rows_of_their_own_and_acknowledged_one_by_one(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=5,
        batching_max_publish_delay_ms=5_000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for index in range(5):
        producer.send_async(b"x" * (index + 1), lambda result, message_id: None, partition_key=f"k{index}")
    producer.flush()
    taken = receive_all(consumer, 5)
    entry = entry_of(taken[0])
    rows = asked(broker, topic, "unacked")["messages"]
    assert ids_of(rows) == [f"{entry}:{index}" for index in range(5)]
    assert [(row["key"], row["size"]) for row in rows] == [(f"k{index}", index + 1) for index in range(5)]
    assert act(broker, topic, entry, "acknowledge", "?batchIndex=2") == 204
    assert ids_of(asked(broker, topic, "unacked")["messages"]) == [f"{entry}:{index}" for index in (0, 1, 3, 4)]
    for message in taken:
        consumer.acknowledge(message)
    until(lambda: asked(broker, topic, "unacked")["messages"] == [])


def test_a_delay_is_changed_and_taken_away_and_both_hold_over_kill_9(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    sent = [producer.send(b"x", deliver_after=timedelta(hours=1)) for _ in range(3)]
    entries = [f"{each.ledger_id()}:{each.entry_id()}" for each in sent]
    until(lambda: asked(own_broker, topic, "delayed")["total"] == 3)
    put_off_ms = int(time.time() * 1000) + 5 * HOUR_MS
    for entry, due_ms in ((entries[0], put_off_ms), (entries[1], 1)):
        path = at(topic, f"message/{entry.replace(':', '/')}/delay")
        admin(own_broker, "PUT", path, {"deliverAt": due_ms})
    assert entry_of(consumer.receive(30_000)) == entries[1]
    own_broker.restart_after_kill()
    assert entry_of(consumer.receive(20_000)) == entries[1]
    until(lambda: asked(own_broker, topic, "delayed")["total"] == 2)
    rows = asked(own_broker, topic, "delayed")["messages"]
    assert [(row["messageId"], row.get("changed", False)) for row in rows] == [(entries[0], True), (entries[2], False)]
    assert rows[0]["deliverAt"] == put_off_ms
    admin(own_broker, "DELETE", at(topic, f"message/{entries[2].replace(':', '/')}/delay"))
    assert entry_of(consumer.receive(30_000)) == entries[2]
    client.close()
