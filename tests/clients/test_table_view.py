"""TableView of the official client: the newest value of each key, from the beginning of a topic on."""

import threading
import time

import pulsar
from tests.clients.conftest import new_client
from tests.clients.test_seek import admin
from tests.support.broker_process import BrokerProcess


def put(client: pulsar.Client, topic: str, values: list[tuple[str, bytes]], *, is_batched: bool = False) -> None:
    producer = client.create_producer(topic, batching_enabled=is_batched)
    for key, value in values:
        producer.send_async(value, None, partition_key=key)
    producer.flush()
    producer.close()


def until(view: pulsar.TableView, expected: dict[str, bytes]) -> None:
    """Wait until it shows just that: it is told of new messages by and by."""
    deadline = time.monotonic() + 10
    found: dict[str, bytes] = {}
    while found != expected:
        assert time.monotonic() < deadline, found
        found = {}
        view.for_each(found.__setitem__)


def test_it_begins_with_what_is_there_and_follows_what_comes(client: pulsar.Client, topic: str) -> None:
    put(client, topic, [("a", b"1"), ("b", b"2"), ("a", b"3")])
    view = client.create_table_view(topic)
    assert view.get("a") == b"3", "it is complete when it is there"
    assert view.get("b") == b"2"
    assert view.get("c") is None
    put(client, topic, [("b", b"4"), ("c", b"5")])
    until(view, {"a": b"3", "b": b"4", "c": b"5"})
    view.close()


def test_an_empty_topic_is_an_empty_view(client: pulsar.Client, topic: str) -> None:
    view = client.create_table_view(topic)
    until(view, {})
    put(client, topic, [("a", b"1")])
    until(view, {"a": b"1"})


def test_an_empty_value_takes_its_key_out(client: pulsar.Client, topic: str) -> None:
    put(client, topic, [("a", b"1"), ("b", b"2")])
    view = client.create_table_view(topic)
    put(client, topic, [("a", b"")])
    until(view, {"b": b"2"})


def test_batches_count_message_by_message(client: pulsar.Client, topic: str) -> None:
    put(client, topic, [("a", b"1"), ("b", b"2"), ("a", b"3")], is_batched=True)
    view = client.create_table_view(topic)
    until(view, {"a": b"3", "b": b"2"})


def test_a_view_of_a_partitioned_topic_has_the_keys_of_all_partitions(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    admin(broker, "PUT", topic, "partitions", 3)
    expected = {f"k{number}": b"%d" % number for number in range(20)}
    put(client, topic, list(expected.items()))
    view = client.create_table_view(topic)
    until(view, expected)
    put(client, topic, [("k3", b"new"), ("more", b"x")])
    until(view, {**expected, "k3": b"new", "more": b"x"})


def test_who_listens_hears_of_each_key_and_of_each_change(client: pulsar.Client, topic: str) -> None:
    put(client, topic, [("a", b"1")])
    view = client.create_table_view(topic)
    heard: list[tuple[str, bytes]] = []
    all_heard = threading.Event()

    def hear(key: str, value: bytes) -> None:
        heard.append((key, value))
        if len(heard) == 3:
            all_heard.set()

    view.for_each_and_listen(hear)
    put(client, topic, [("b", b"2"), ("a", b"3")])
    assert all_heard.wait(10)
    assert heard == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    view.close()


def test_a_view_goes_on_after_the_broker_was_killed(own_broker: BrokerProcess, topic: str) -> None:
    client = new_client(own_broker.url)
    put(client, topic, [("a", b"1"), ("b", b"2")])
    view = client.create_table_view(topic)
    own_broker.restart_after_kill()
    put(client, topic, [("b", b"3")])
    until(view, {"a": b"1", "b": b"3"})
    again = client.create_table_view(topic)
    until(again, {"a": b"1", "b": b"3"})
    client.close()
