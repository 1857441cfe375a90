"""Who asks whether a consumer lives whose connection is just ending."""

import json
from collections.abc import Iterator

import pytest
from tests.clients.conftest import until
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import Type, connected

TOPIC = "persistent://public/default/t"
MESSAGES, MESSAGE_BYTES = 20, 1 << 20  # more than the sockets of both sides hold


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")).running_well() as process:
        yield process


def sent_to(broker: BrokerProcess) -> int:
    """How many messages have been written for the consumer."""
    stats = json.loads(broker.get("/admin/v2/persistent/public/default/t/stats"))
    return int(stats["subscriptions"]["sub"]["msgOutCounter"])


def test_a_consumer_whose_connection_cannot_end_as_its_client_reads_nothing_holds_no_place(
    broker: BrokerProcess,
) -> None:
    """Its connection is closed with much to be written still: who comes for its place gets it, and nobody is held up."""
    with connected(broker) as leaving, connected(broker) as coming:
        assert leaving.subscribe(TOPIC, consumer_id=1)["type"] == "SUCCESS"
        coming.open_producer(TOPIC)
        for number in range(MESSAGES):
            coming.send_message(1, number, b"x" * MESSAGE_BYTES)
        assert {coming.reply()["type"] for _ in range(MESSAGES)} == {"SEND_RECEIPT"}
        leaving.stop_reading()
        leaving.send(Type.FLOW, consumer_id=1, messagePermits=MESSAGES)
        until(lambda: sent_to(broker) > 0)
        leaving.send_bytes(b"\xff" * 8)
        said = coming.subscribe(TOPIC, consumer_id=1)
        assert said["type"] == "SUCCESS", said
        assert broker.get("/admin/v2/brokers/health") == "ok"
        leaving.read_again()
