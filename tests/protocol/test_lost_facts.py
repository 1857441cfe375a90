"""A broker whose `checkpoint.db` is gone says so and stays down, so that no topic is served what belongs to another."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.clients.conftest import until
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric
from tests.support.raw_client import Type, connected

from pybroker.cli import main
from pybroker.managed_ledger.orphaned_ledgers import ledger_ids_in
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/a"
OTHER = "persistent://public/default/b"


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
        with pytest.raises(RuntimeError, match=rf"checkpoint\.db is {what}, but .* contains .* Restore checkpoint\.db"):
            broker.start()
        assert {path.name: path.read_bytes() for path in broker.data.glob("ledgers/*")} == ledgers
        table.touch()
    for name in ("ledgers", "journal"):
        (broker.data / name).rename(broker.data / f"away-{name}")
    for _ in range(2):
        table.unlink(missing_ok=True)
        with pytest.raises(
            RuntimeError, match=r"contains topics \(\S*/a\), but no ledgers, no journal and no checkpoint"
        ):
            broker.start()
    for name in ("ledgers", "journal"):
        (broker.data / f"away-{name}").rename(broker.data / name)
    table.write_bytes(kept)
    with broker.running(), connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        client.send(Type.FLOW, consumer_id=1, messagePermits=100)
        assert [client.reply()["payload"] for _ in range(10)] == [f"m{number}" for number in range(10)]


def test_a_repaired_broker_without_its_checkpoint_table_serves_what_it_had(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    with connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"
        client.publish(1, 10)
        broker.kill()
    (broker.data / "checkpoint.db").unlink()
    with pytest.raises(RuntimeError, match=r"checkpoint\.db is missing"):
        broker.start()
    assert main(["ledger", "repair", str(broker.data), "--apply"]) == 0
    for _ in range(2):
        with broker.running_well(), connected(broker) as client:
            assert client.subscribe(TOPIC)["type"] == "SUCCESS"
            client.send(Type.FLOW, consumer_id=1, messagePermits=100)
            assert [client.reply()["payload"] for _ in range(10)] == [f"m{number}" for number in range(10)]
    assert (next(broker.data.glob("taken-away-*")) / "journal").is_dir()


@pytest.mark.parametrize("is_killed", [False, True], ids=["after a stop", "after a kill"])
def test_a_topic_that_is_missing_from_metadata_is_told_and_set_aside(
    tmp_path: Path, is_killed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = two_topics(tmp_path, {}, is_killed=is_killed)
    lost = forget_topic(broker.data, TOPIC)
    said = rf"with entries, but its metadata\.db does not list these ledgers: 10 entries in ledger {lost}\. .*repair"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            broker.start()
    place = f"{lost:020d}.ledger, positions {lost}:0 to {lost}:9: no topic refers to these entries, so metadata is lost"
    assert main(["ledger", "verify", str(broker.data)]) == 1
    assert f"damage: {place}\n" in capsys.readouterr().out
    assert main(["ledger", "repair", str(broker.data), "--apply"]) == 0
    shown = capsys.readouterr().out
    assert f"found: damage: {place}\n" in shown
    assert f"lost: no topic, positions {lost}:0 to {lost}:9: their topic is unknown\n" in shown
    assert [path.name for path in broker.data.glob("taken-away-*/ledgers/*")] == [f"{lost:020d}.ledger"]
    assert main(["ledger", "verify", str(broker.data)]) == 0
    for _ in range(2):
        with broker.running_well(), connected(broker) as client:
            assert client.subscribe(OTHER)["type"] == "SUCCESS"
            client.send(Type.FLOW, consumer_id=1, messagePermits=100)
            assert [client.reply()["payload"] for _ in range(10)] == [f"m{number}" for number in range(10)]


def test_without_a_synced_journal_a_ledger_without_a_name_is_a_warning(tmp_path: Path) -> None:
    broker = two_topics(tmp_path, {"journalSyncData": "false"}, is_killed=True)
    lost = forget_topic(broker.data, TOPIC)
    for is_synced in ("false", "true"):
        broker.settings["journalSyncData"] = is_synced
        broker.log.write_text("")
        with broker.running_well():
            until(lambda: "orphaned_ledgers.kept" in broker.log.read_text())
            assert str(lost) in next(
                line for line in broker.log.read_text().splitlines() if "orphaned_ledgers.kept" in line
            )
        assert main(["ledger", "verify", str(broker.data)]) == 0
    with broker.running(), connected(broker) as client:
        client.open_producer(TOPIC)
        client.publish(1, 10)
    forget_topic(broker.data, TOPIC)
    with pytest.raises(RuntimeError, match="does not list these ledgers"):
        broker.start()


def two_topics(directory: Path, settings: dict[str, str], *, is_killed: bool) -> BrokerProcess:
    """A broker that ran, with ten messages in each of two topics."""
    broker = BrokerProcess(directory, settings)
    broker.start()
    for topic in (TOPIC, OTHER):
        with connected(broker) as client:
            assert client.subscribe(topic)["type"] == "SUCCESS"
            assert client.open_producer(topic)["type"] == "PRODUCER_SUCCESS"
            client.publish(1, 10)
    if is_killed:
        broker.kill()
    else:
        assert broker.stop() == 0
    return broker


def forget_topic(directory: Path, topic: str) -> int:
    """Take the document of a topic out of metadata.db; the ledger that it named last."""

    async def forget() -> int:
        store = await SqliteMetadataStore.open(directory / "metadata.db", mark=directory / "metadata.end")
        path = f"/managed-ledgers/public/default/persistent/{topic.rpartition('/')[2]}"
        found = await store.get(path)
        assert found is not None
        await store.delete(path)
        await store.close()
        return max(ledger_ids_in(path, found.value))

    return asyncio.run(forget())


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


def test_a_damaged_cursor_is_refused_by_name_and_other_topics_go_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    topics = {"a": TOPIC, "b": TOPIC[:-1] + "b"}
    with broker.running():
        for topic in topics.values():
            with connected(broker) as client:
                assert client.subscribe(topic, sub_type="Shared")["type"] == "SUCCESS"
                assert client.open_producer(topic)["type"] == "PRODUCER_SUCCESS"
                client.publish(1, 3)
                client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
                first, *_ = [client.reply() for _ in range(3)]
                position = pb.MessageIdData(**{key: int(first["message_id"][key]) for key in ("ledgerId", "entryId")})  # type: ignore[arg-type]
                acked = client.request(Type.ACK, consumer_id=1, ack_type=0, message_id=[position])
                assert acked["type"] == "ACK_RESPONSE"
    table = broker.data / "checkpoint.db"
    connection = sqlite3.connect(table)
    assert connection.execute("UPDATE snapshots SET number = number + 1 WHERE cursor_id LIKE '%/a/s%'").rowcount == 1
    connection.commit()
    connection.close()
    with broker.running(), connected(broker) as client:
        refused = client.subscribe(topics["a"], sub_type="Shared")
        assert refused["type"] == "ERROR"
        assert client.subscribe(topics["b"], sub_type="Shared")["type"] == "SUCCESS"
        client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        assert [client.reply()["payload"] for _ in range(2)] == ["m1", "m2"]
        until_metric(broker, lambda cursors: cursors == 1, "pybroker_store_damaged_cursors")
    assert "checkpoint.cursor_damaged" in broker.log.read_text()
