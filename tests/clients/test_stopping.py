"""SIGTERM while clients are busy: what they have sent is answered, what they ask in vain is not, and they are let go."""

import signal
import threading
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, RawClient, Type, connected

CHECKOUT = Path(__file__).resolve().parents[2]
TOPIC = "persistent://public/default/t"


def replies_until_closed(client: RawClient) -> list[str]:
    """The types of all that comes."""
    found: list[str] = []
    while (reply := client.reply()) != CLOSED:
        found.append(str(reply["type"]))
    return found


def test_what_was_sent_is_answered_and_what_is_asked_afterwards_is_not(tmp_path: Path) -> None:
    """The disk takes its time, so that the client is told while its message is on the way."""
    fault = tmp_path / "fault"
    broker = BrokerProcess(tmp_path)
    broker.module = "tests.support.faulty_broker"
    broker.environment = {"FAULT_FILE": str(fault), "PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"}
    with broker.running(), connected(broker) as client:
        client.open_producer(TOPIC)
        client.publish(1, 1)
        fault.write_text("slow")
        client.send_message(1, 1)
        client.send(Type.PING)
        assert client.reply()["type"] == "PONG"  # The message was read.
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        assert client.reply()["type"] == "CLOSE_PRODUCER"
        client.send(Type.LOOKUP, topic=TOPIC, request_id=7)
        fault.unlink()  # What is being written is late all the same.
        assert replies_until_closed(client) == ["SEND_RECEIPT"]
        stopping.join()
    with broker.running(), connected(broker) as client:
        client.subscribe(TOPIC, 2)
        client.send(Type.FLOW, consumer_id=2, messagePermits=10)
        assert [client.reply()["type"] for _ in range(2)] == ["MESSAGE", "MESSAGE"]


def test_who_does_not_read_what_it_is_told_keeps_no_broker_from_ending(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"ledgerStore": "memory", "metadataStore": "memory"})
    with broker.running(), connected(broker) as client, connected(broker) as silent:
        client.open_producer(TOPIC)
        silent.open_producer(TOPIC + "-2")
        silent._may_read.clear()
        assert broker.stop(signal.SIGTERM) == 0
        assert replies_until_closed(client) == ["CLOSE_PRODUCER"]
