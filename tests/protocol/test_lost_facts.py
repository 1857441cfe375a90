"""A broker whose `checkpoint.db` is gone says so and stays down, so that no topic is served what belongs to another."""

from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import Type, connected

TOPIC = "persistent://public/default/a"


def test_a_broker_without_its_checkpoint_table_does_not_begin_anew(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    with broker.running(), connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"
        client.publish(1, 10)
    table = broker.data / "checkpoint.db"
    kept = table.read_bytes()
    ledgers = {path.name: path.read_bytes() for path in broker.data.glob("ledgers/*")}
    for what in ("missing", "empty"):
        table.unlink()
        if what == "empty":
            table.touch()
        with pytest.raises(RuntimeError, match=rf"checkpoint\.db is {what}, but .* holds .* Put it back"):
            broker.start()
        assert {path.name: path.read_bytes() for path in broker.data.glob("ledgers/*")} == ledgers
        table.touch()
    table.write_bytes(kept)
    with broker.running(), connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        client.send(Type.FLOW, consumer_id=1, messagePermits=100)
        assert [client.reply()["payload"] for _ in range(10)] == [f"m{number}" for number in range(10)]


def test_one_flipped_bit_in_the_log_of_the_table_costs_nothing(tmp_path: Path) -> None:
    """SQLite drops what the log holds, and the mark of the stop before comes back."""
    broker = BrokerProcess(tmp_path)
    with broker.running(), connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
    broker.start()
    with connected(broker) as client:
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"
        client.publish(1, 100)
        broker.kill()
    log = broker.data / "checkpoint.db-wal"
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    log.write_bytes(bytes(data))
    with broker.running(), connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        assert [client.reply()["payload"] for _ in range(100)] == [f"m{number}" for number in range(100)]
    assert "checkpoint.clean_mark_wrong" in broker.log.read_text()
