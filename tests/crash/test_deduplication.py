"""`kill -9` with deduplication on: whoever sends again what was not receipted, or everything, stores each message once."""

import threading

import pulsar
import pytest
from tests.clients.conftest import close_after_kill, new_client
from tests.support.broker_process import BrokerProcess

TOPIC = "persistent://public/default/t"
COUNT = 4000
KILLS = 3
# Snapshots while messages come, as many as there can be: some kills meet one half done.
SETTINGS = {"brokerDeduplicationEnabled": "true", "brokerDeduplicationEntriesInterval": "50"}


class Receipts:
    """Counted by the client's thread, waited for by the test."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def sent(self, result: pulsar.Result, _: object) -> None:
        if result == pulsar.Result.Ok:
            with self._changed:
                self._count += 1
                self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, 60), f"{self._count} of {count}"


def test_a_producer_that_sends_everything_again_after_each_kill_stores_it_once(broker: BrokerProcess) -> None:
    for cycle in range(KILLS + 1):
        client = new_client(broker.url)
        if not cycle:
            client.subscribe(TOPIC, "s").close()
        producer = client.create_producer(TOPIC, "fixed", batching_enabled=False, max_pending_messages=COUNT)
        receipts = Receipts()
        for index in range(COUNT):  # The client takes 0 for no sequence id.
            producer.send_async(str(index).encode(), receipts.sent, sequence_id=index + 1)
        if cycle < KILLS:
            receipts.wait_for((cycle + 1) * COUNT // (KILLS + 2))
            broker.kill()
            close_after_kill(client)
            broker.start()
        else:
            receipts.wait_for(COUNT)
            assert producer.last_sequence_id() == COUNT
            client.close()
    assert_stored_once(broker, COUNT)


@pytest.mark.parametrize("is_batching", [False, True], ids=["single", "batches"])
def test_a_client_that_reconnects_by_itself_stores_everything_once(broker: BrokerProcess, is_batching: bool) -> None:
    client = new_client(broker.url)
    client.subscribe(TOPIC, "s").close()
    producer = client.create_producer(
        TOPIC, "fixed", batching_enabled=is_batching, block_if_queue_full=True, max_pending_messages=500
    )
    receipts = Receipts()
    sent = 0
    for _ in range(KILLS):
        for _ in range(COUNT // KILLS):
            producer.send_async(str(sent).encode(), receipts.sent)
            sent += 1
        broker.kill()  # up to 500 of them are not receipted
        broker.start()
    producer.flush()
    receipts.wait_for(sent)
    client.close()
    assert_stored_once(broker, sent)


def test_a_new_producer_of_the_same_name_goes_on_behind_what_was_stored(broker: BrokerProcess) -> None:
    client = new_client(broker.url)
    client.subscribe(TOPIC, "s").close()
    producer = client.create_producer(TOPIC, "fixed")
    for index in range(10):
        producer.send(str(index).encode())
    broker.kill()
    close_after_kill(client)
    broker.start()
    client = new_client(broker.url)
    producer = client.create_producer(TOPIC, "fixed")
    assert producer.last_sequence_id() == 9
    for index in range(10, 20):
        producer.send(str(index).encode())
    client.close()
    assert_stored_once(broker, 20)


def assert_stored_once(broker: BrokerProcess, count: int) -> None:
    """The topic holds 0 to `count` - 1, each once, in order."""
    client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s", receiver_queue_size=count)
    received = [int(consumer.receive(20_000).data()) for _ in range(count)]
    assert received == list(range(count))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()
