"""`kill -9`: what was receipted is there, what was acknowledged does not come again."""

import threading
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, close_after_kill, new_client, receive_all
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient

from pybroker.wire import pulsar_api_pb2 as pb

ACK_FLUSH_S = 1.1  # acknowledgements without a receipt are durable within a second

TOPIC = "persistent://public/default/t"


def test_of_200_messages_the_100_unacknowledged_come_again(broker: BrokerProcess) -> None:
    client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for i in range(200):
        producer.send(str(i).encode())
    for message in receive_all(consumer, 200):
        if int(message.data()) % 2 == 0:
            consumer.acknowledge(message)
    time.sleep(ACK_FLUSH_S)
    broker.kill()
    close_after_kill(client)
    broker.start()
    client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    assert [int(message.data()) for message in receive_all(consumer, 100)] == list(range(1, 200, 2))
    assert_nothing_arrives(consumer)
    client.close()


def test_everything_receipted_under_load_survives_three_kills(broker: BrokerProcess) -> None:
    receipted: list[bytes] = []
    client = new_client(broker.url)
    client.subscribe(TOPIC, "s").close()
    for cycle in range(3):
        producer = client.create_producer(TOPIC, batching_enabled=cycle == 1, block_if_queue_full=True)
        enough = threading.Event()

        def sent(
            result: pulsar.Result, message_id: pulsar.MessageId, body: bytes, enough: threading.Event = enough
        ) -> None:
            if result == pulsar.Result.Ok:
                receipted.append(body)
                if len(receipted) % 500 == 0:
                    enough.set()

        for i in range(2000):
            body = f"{cycle}-{i}".encode()
            producer.send_async(body, lambda result, message_id, body=body: sent(result, message_id, body))
        assert enough.wait(60)
        broker.kill()
        close_after_kill(client)
        broker.start()
        client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s", receiver_queue_size=5000)
    wanted = set(receipted)
    seen: list[bytes] = []
    positions: list[tuple[int, int, int]] = []
    while wanted - set(seen):
        message = consumer.receive(30_000)
        seen.append(message.data())
        position = message.message_id()
        positions.append((position.ledger_id(), position.entry_id(), position.batch_index()))
    assert positions == sorted(set(positions)), "positions rise and never repeat"
    in_order = [body for body in dict.fromkeys(seen) if body in wanted]
    assert in_order == receipted, "in the order of the receipts"
    client.close()


def test_a_second_broker_on_the_same_data_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    other_directory = tmp_path / "other"
    other_directory.mkdir()
    other = BrokerProcess(other_directory)
    other.data = broker.data
    with pytest.raises(RuntimeError, match="is in use by process"):
        other.start()


def test_a_busy_port_is_told_in_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    other_directory = tmp_path / "other"
    other_directory.mkdir()
    other = BrokerProcess(other_directory)
    other.ready = {"broker_port": broker.ready["broker_port"]}
    with pytest.raises(RuntimeError) as failure:
        other.start()
    lines = [line for line in str(failure.value).splitlines()[1:] if line.startswith("pybroker: ")]
    assert len(lines) == 1
    assert "in use" in lines[0]
    assert "Traceback" not in str(failure.value)


def test_an_acknowledgement_with_a_receipt_survives_a_kill_at_once(broker: BrokerProcess) -> None:
    client = RawClient(broker.url)
    client.connect()
    client.open_producer(TOPIC)
    client.subscribe(TOPIC, 2, "Shared")
    client.send(pb.BaseCommand.FLOW, consumer_id=2, messagePermits=100)
    for i in range(20):
        client.send_message(1, i, b"m%d" % i)
    positions: list[Any] = []
    while len(positions) < 20:
        reply = client.reply()
        if reply["type"] == "MESSAGE":
            positions.append((int(reply["message_id"]["ledgerId"]), int(reply["message_id"]["entryId"])))
    ids = [pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id) for ledger_id, entry_id in positions[5:15]]
    answer = client.request(pb.BaseCommand.ACK, consumer_id=2, ack_type=pb.CommandAck.Individual, message_id=ids)
    assert answer["type"] == "ACK_RESPONSE"
    assert "error" not in answer
    broker.restart_after_kill()
    client.close()
    official = new_client(broker.url)
    consumer = official.subscribe(TOPIC, "sub", pulsar.ConsumerType.Shared)
    again = [message.data() for message in receive_all(consumer, 10)]
    assert again == [b"m%d" % i for i in (*range(5), *range(15, 20))]
    assert_nothing_arrives(consumer)
    official.close()
