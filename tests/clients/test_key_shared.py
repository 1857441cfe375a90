"""Key_Shared with the official client: a key at one consumer at a time and in order, whoever joins, leaves or dies."""

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, receive_all
from tests.support.broker_process import BrokerProcess

KEY_SHARED = pulsar.ConsumerType.KeyShared
KEYS = [f"key-{index}" for index in range(30)]


class Worker:
    """A consumer that takes messages and acknowledges each in a thread of its own, with a client of its own."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        self._fleet = fleet
        self.name = name
        self._client = new_client(fleet.url)
        self._consumer = self._client.subscribe(
            fleet.topic, "s", KEY_SHARED, consumer_name=name, receiver_queue_size=10, key_shared_policy=fleet.policy
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                message = self._consumer.receive(50)
            except pulsar.Timeout:
                continue
            self._fleet.took(self.name, message.partition_key(), int(message.data()))
            self._consumer.acknowledge(message)

    def stop(self) -> None:
        """Leave with what is still in the queue unacknowledged."""
        self._stopped.set()
        self._thread.join()
        self._client.close()


class Fleet:
    """Workers on one subscription, and what they saw in the order in which they saw it."""

    def __init__(self, url: str, topic: str, policy: pulsar.ConsumerKeySharedPolicy | None = None) -> None:
        self.url = url
        self.topic = topic
        self.policy = policy
        self.workers: list[Worker] = []
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.names: dict[str, set[str]] = defaultdict(set)
        self._changed = threading.Condition()

    def join(self, name: str) -> None:
        self.workers.append(Worker(self, name))

    def leave(self) -> None:
        self.workers.pop(0).stop()

    def took(self, name: str, key: str, number: int) -> None:
        with self._changed:
            self.seen[key].append(number)
            self.names[key].add(name)
            self._changed.notify_all()

    def wait_for(self, numbers: Collection[int]) -> None:
        """Until these messages were seen."""
        missing = set(numbers)

        def is_seen() -> bool:
            missing.difference_update(*self.seen.values())
            return not missing

        with self._changed:
            assert self._changed.wait_for(is_seen, 20), missing

    def stop(self) -> None:
        while self.workers:
            self.leave()


@contextmanager
def fleet_of(broker: BrokerProcess, topic: str, names: str) -> Iterator[Fleet]:
    fleet = Fleet(broker.url, topic)
    try:
        for name in names:
            fleet.join(name)
        yield fleet
    finally:
        fleet.stop()


def publish(producer: pulsar.Producer, count: int, first: int = 0) -> None:
    for index in range(first, first + count):
        producer.send_async(str(index).encode(), lambda result, _: None, partition_key=KEYS[index % len(KEYS)])
    producer.flush()


def in_order(numbers: list[int]) -> bool:
    """Whether what came for the first time came in order: an unacknowledged message may come again."""
    first_times = list(dict.fromkeys(numbers))
    return first_times == sorted(first_times)


def test_each_key_has_one_consumer_and_keeps_its_order(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    with fleet_of(broker, topic, "abc") as fleet:
        publish(client.create_producer(topic), 600)
        fleet.wait_for(range(600))
    assert {name for names in fleet.names.values() for name in names} == set("abc")
    assert all(len(names) == 1 for names in fleet.names.values())
    assert {key: numbers == sorted(set(numbers)) for key, numbers in fleet.seen.items()} == dict.fromkeys(KEYS, True)


def test_key_order_holds_while_consumers_join_and_leave(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    producer = client.create_producer(topic)
    with fleet_of(broker, topic, "ab") as fleet:
        for turn in range(8):
            publish(producer, 150, first=150 * turn)
            if turn % 2:
                fleet.leave()
            else:
                fleet.join(f"n{turn}")
            fleet.wait_for(range(150 * turn))
        fleet.wait_for(range(1200))
    assert {key: in_order(numbers) for key, numbers in fleet.seen.items()} == dict.fromkeys(KEYS, True)
    assert sorted({number for numbers in fleet.seen.values() for number in numbers}) == list(range(1200))


def test_new_consumer_waits_for_keys_held_by_another(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", KEY_SHARED, consumer_name="first")
    producer = client.create_producer(topic)
    publish(producer, len(KEYS))
    held = receive_all(first, len(KEYS))
    second = client.subscribe(topic, "s", KEY_SHARED, consumer_name="second")
    publish(producer, len(KEYS), first=len(KEYS))
    assert_nothing_arrives(second)
    for message in held:
        first.acknowledge(message)
    moved = {second.receive(30_000).partition_key() for _ in range(5)}
    stayed = {message.partition_key() for message in receive_all(first, 5)}
    assert not moved & stayed


def test_sticky_consumers_receive_their_ranges(client: pulsar.Client, topic: str) -> None:
    def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))

    one = client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=sticky((6067, 6067)))
    rest = client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=sticky((0, 6066), (6068, 65535)))
    producer = client.create_producer(topic)
    for index in range(60):
        producer.send(str(index).encode(), partition_key="Order-3459134" if index % 3 else f"other-{index}")
    assert [int(message.data()) for message in receive_all(one, 40)] == [index for index in range(60) if index % 3]
    assert [int(message.data()) for message in receive_all(rest, 20)] == list(range(0, 60, 3))


def test_new_consumer_does_not_wait_with_out_of_order_delivery(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    first = client.subscribe(topic, "s", KEY_SHARED, consumer_name="first", key_shared_policy=policy)
    producer = client.create_producer(topic)
    publish(producer, len(KEYS))
    receive_all(first, len(KEYS))
    second = client.subscribe(topic, "s", KEY_SHARED, consumer_name="second", key_shared_policy=policy)
    publish(producer, len(KEYS), first=len(KEYS))
    assert second.receive(30_000).redelivery_count() == 0


def test_key_based_batches_go_whole_to_consumer_of_key(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_messages=100,
        batching_max_publish_delay_ms=20,
    )
    with fleet_of(broker, topic, "abc") as fleet:
        publish(producer, 900)
        fleet.wait_for(range(900))
    assert all(len(names) == 1 for names in fleet.names.values())
    assert all(numbers == sorted(set(numbers)) for numbers in fleet.seen.values())


def test_ordering_key_takes_precedence_over_key(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    producer = client.create_producer(topic)
    with fleet_of(broker, topic, "abc") as fleet:
        for index in range(60):
            producer.send(str(index).encode(), partition_key=KEYS[index % 30], ordering_key="one")
        fleet.wait_for(range(60))
    assert len({name for names in fleet.names.values() for name in names}) == 1


def test_messages_without_key_are_spread(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    producer = client.create_producer(topic)
    with fleet_of(broker, topic, "abc") as fleet:
        for index in range(200):
            producer.send_async(str(index).encode(), lambda result, _: None)
        producer.flush()
        fleet.wait_for(range(200))
    assert fleet.names[""] == set("abc")


def test_keys_of_killed_consumer_move_in_order(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    script = Path(__file__).with_name("consume_and_print.py")
    command = [sys.executable, str(script), broker.url, topic, "doomed", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        assert next(doomed.stdout) == "ready\n"
        publish(client.create_producer(topic), 90)
        read_lines(doomed.stdout, 90)
        survivor = client.subscribe(topic, "s", KEY_SHARED, consumer_name="survivor")
        assert_nothing_arrives(survivor)
        doomed.kill()
    messages = receive_all(survivor, 70)
    assert [int(message.data()) for message in messages] == list(range(20, 90))
    assert {message.redelivery_count() for message in messages} == {1}


def read_lines(lines: IO[str], count: int) -> list[str]:
    return [next(lines) for _ in range(count)]


def test_subscription_changes_type_without_consumers(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", KEY_SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    publish(client.create_producer(topic), 10)
    for message in receive_all(consumer, 10):
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    consumer.close()
    for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive, KEY_SHARED):
        consumer = client.subscribe(topic, "s", kind)
        assert [int(message.data()) for message in receive_all(consumer, 4)] == [0, 3, 6, 9]
        assert_nothing_arrives(consumer, 100)
        consumer.close()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, KEY_SHARED], ids=str)
def test_chunked_messages_arrive_whole_while_consumers_change(
    client: pulsar.Client, broker: BrokerProcess, topic: str, kind: pulsar.ConsumerType
) -> None:
    bodies = [bytes([65 + index]) * 12_000_000 for index in range(4)]  # three chunks each
    first = client.subscribe(topic, "s", kind, receiver_queue_size=3)
    producer = client.create_producer(topic, chunking_enabled=True, block_if_queue_full=True)
    for index, body in enumerate(bodies[:2]):
        producer.send(body, partition_key=KEYS[index])
    other_client = new_client(broker.url)
    second = other_client.subscribe(topic, "s", kind, receiver_queue_size=3)
    for index, body in enumerate(bodies[2:]):
        producer.send(body, partition_key=KEYS[index])
    came = []
    for _ in range(40):
        for consumer in (first, second):
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            came.append(message.data())
            consumer.acknowledge(message)
        if len(came) == 4:
            break
    assert sorted(came) == bodies
    other_client.close()
