"""A real broker whose disk fails: it ends, with its own exit code, rather than receipt what may be lost; or it goes on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import new_client, receive_all
from tests.support.broker_process import BrokerProcess

EXIT_FATAL_STORAGE = 70
CHECKOUT = Path(__file__).resolve().parents[2]
TOPIC = "persistent://public/default/t"


class FaultyBroker(BrokerProcess):
    """A broker with a switch for faults."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self.module = "tests.support.faulty_broker"
        self._fault_file = directory / "fault"
        self.environment = {"FAULT_FILE": str(self._fault_file), "PYTHONPATH": f"{CHECKOUT / 'src'}:{CHECKOUT}"}

    def fail(self, operation: str) -> None:
        partial = self._fault_file.with_suffix(".partial")
        partial.write_text(operation)
        partial.replace(self._fault_file)

    def heal(self) -> None:
        self._fault_file.unlink()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    process = FaultyBroker(tmp_path)
    yield process
    process.stop()


@pytest.mark.parametrize("direct_io", ["true", "false"])
def test_a_failed_append_ends_the_process_and_is_not_receipted(broker: FaultyBroker, direct_io: str) -> None:
    broker.settings["journalDirectIo"] = direct_io
    broker.start()
    client = new_client(broker.url)
    client.subscribe(TOPIC, "s").close()
    producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=5000)
    for number in range(10):
        producer.send(b"%d" % number)
    broker.fail("append")
    answers: list[pulsar.Result] = []
    for _ in range(5):
        producer.send_async(b"lost", lambda result, _: answers.append(result))
    assert broker.process is not None
    assert broker.process.wait(60) == EXIT_FATAL_STORAGE
    assert pulsar.Result.Ok not in answers
    client.close()
    broker.heal()
    broker.start()
    client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s")
    assert [message.data() for message in receive_all(consumer, 10)] == [b"%d" % number for number in range(10)]
    client.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_checkpoint_ends_the_process_and_loses_nothing(broker: FaultyBroker, operation: str) -> None:
    broker.settings["checkpointMaxBytes"] = "65536"
    broker.start()
    client = new_client(broker.url)
    client.subscribe(TOPIC, "s").close()
    producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=5000)
    broker.fail(operation)
    receipted = 0
    try:
        while receipted < 1000:
            producer.send(b"%d" % receipted + bytes(10_000))
            receipted += 1
    except pulsar.PulsarException:
        pass
    assert broker.process is not None
    assert broker.process.wait(60) == EXIT_FATAL_STORAGE
    client.close()
    broker.heal()
    broker.start()
    client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s")
    found = [message.data() for message in receive_all(consumer, receipted)]
    assert found == [b"%d" % number + bytes(10_000) for number in range(receipted)]
    client.close()


def test_a_failed_read_is_tried_again_and_others_go_on(broker: FaultyBroker) -> None:
    broker.settings["dispatcherReadFailureBackoffInitialTimeInMs"] = "100"
    broker.start()
    client = new_client(broker.url)
    client.subscribe(TOPIC, "s").close()
    producer = client.create_producer(TOPIC)
    for number in range(10):
        producer.send(b"%d" % number)
    client.close()
    broker.restart_after_kill()  # nothing is in memory, everything is in segments
    client = new_client(broker.url)
    client.create_producer(TOPIC)  # loads the topic
    broker.fail("read")
    other = client.subscribe(TOPIC + "-other", "s")
    consumer = client.subscribe(TOPIC, "s")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    client.create_producer(TOPIC + "-other").send(b"meanwhile")
    assert other.receive(30_000).data() == b"meanwhile"
    broker.heal()
    assert [message.data() for message in receive_all(consumer, 10)] == [b"%d" % number for number in range(10)]
    client.close()


@pytest.mark.parametrize("direct_io", ["true", "false"])
def test_a_slow_disk_delays_receipts_and_the_loop_goes_on(broker: FaultyBroker, direct_io: str) -> None:
    broker.settings |= {"journalDirectIo": direct_io, "eventLoopWatchdogMs": "500"}
    broker.start()
    client = new_client(broker.url)
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC, batching_enabled=False)
    producer.send(b"quick")
    broker.fail("slow")
    start_s = time.monotonic()
    producer.send(b"slow")
    assert time.monotonic() - start_s > 0.8
    assert [message.data() for message in receive_all(consumer, 2)] == [b"quick", b"slow"]
    broker.heal()
    client.close()
    assert broker.stop() == 0
    assert "event_loop.blocked" not in broker.log.read_text()
