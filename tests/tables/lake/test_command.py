"""`pybroker pipeline lake` beside a real broker: rows of real clients, schemas that change, exit codes, signals."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pulsar.schema import AvroSchema, Integer, Long, Record, String
from pyiceberg.catalog import load_catalog
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.cli import main
from pybroker.lake.parquet import ParquetTable

FIRST = 300


class Click(Record):
    """The first version of a schema."""

    user = String()
    count = Integer()


class WiderClick(Record):
    """The second one: a wider number, and a new field."""

    user = String()
    count = Long()
    page = String(required_default=True)


WiderClick.__name__ = "Click"


def options(broker: BrokerProcess, topic: str, target: Path, *more: str) -> list[str]:
    urls = ["--admin-url", f"http://127.0.0.1:{broker.ready['http_port']}", "--service-url", broker.url]
    where = ["--topic", topic, "--target", str(target), "--table", "events.clicks", "--log-level", "error"]
    return ["pipeline", "lake", *urls, *where, *more]


def iceberg_rows(target: Path) -> pa.Table:
    catalog = load_catalog("pybroker", type="sql", uri=f"sqlite:///{target}/catalog.db", warehouse=f"file://{target}")
    try:
        return catalog.load_table("events.clicks").scan().to_arrow()
    finally:
        catalog.close()


def publish(
    client: pulsar.Client, topic: str, schema: Any, records: list[Any], **producer: Any
) -> list[pulsar.MessageId]:
    sender = client.create_producer(topic, schema=schema, **producer)
    sent = [
        sender.send(record, partition_key=f"k{i % 7}", properties={"n": str(i)}, event_timestamp=1_700_000_000_000 + i)
        for i, record in enumerate(records)
    ]
    sender.close()
    return sent


def test_rows_are_what_clients_sent_and_columns_follow_the_schema(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    # A number may become wider; the default strategy asks that old readers read it too.
    strategy = "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"
    assert call(broker.http_url + strategy, "PUT", body="BACKWARD").status == 204
    publish(client, topic, AvroSchema(Click), [Click(user=f"u{i}", count=i) for i in range(FIRST)])
    assert main(options(broker, topic, tmp_path, "--once")) == 0
    rows = iceberg_rows(tmp_path)
    assert sorted(zip(rows["user"].to_pylist(), rows["count"].to_pylist(), strict=True), key=lambda r: r[1]) == [
        (f"u{i}", i) for i in range(FIRST)
    ]
    assert Counter(rows["__key"].to_pylist()) == Counter(b"k%d" % (i % 7) for i in range(FIRST))
    assert sorted(int(dict(p)["n"]) for p in rows["__messageProperties"].to_pylist()) == list(range(FIRST))
    assert rows["count"].type == pa.int32()
    publish(client, topic, AvroSchema(WiderClick), [WiderClick(user="w", count=2**40 + i, page="p") for i in range(50)])
    for _ in range(2):
        assert main(options(broker, topic, tmp_path, "--once")) == 0
        rows = iceberg_rows(tmp_path)
        assert rows.num_rows == FIRST + 50
        assert rows["count"].type == pa.int64()
        assert sorted(rows["count"].to_pylist()) == [*range(FIRST), *range(2**40, 2**40 + 50)]
        assert rows["page"].null_count == FIRST
    ids = set(
        zip(
            rows["__ledgerId"].to_pylist(), rows["__entryId"].to_pylist(), rows["__batchIndex"].to_pylist(), strict=True
        )
    )
    assert len(ids) == FIRST + 50


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_the_other_formats_of_a_partitioned_topic_without_schema(
    kind: str,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    publish(client, topic, pulsar.schema.BytesSchema(), [b"%d" % i for i in range(200)], batching_enabled=True)
    target = ["--format", kind, "--partition-by", "event-day", "--once", "--json"]
    assert main(options(broker, topic, tmp_path, *target)) == 0
    end = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (end["event"], end["rows"], end["lag_bytes"]) == ("end", 200, 0)
    files = list((tmp_path / "events.clicks" / "data").rglob("*.parquet"))
    assert len(files) == 1
    assert "event" in files[0].parent.name


def test_a_lake_over_the_binary_protocol_needs_no_admin_api(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    sent = publish(client, topic, AvroSchema(Click), [Click(user=f"u{i}", count=i) for i in range(100)])
    nobody = "http://127.0.0.1:1"
    more = ["--read-mode", "binary", "--admin-url", nobody, "--progress-subscription", "lake", "--once"]
    assert main(options(broker, topic, tmp_path, *more)) == 0
    sent += publish(client, topic, AvroSchema(Click), [Click(user=f"u{i}", count=i) for i in range(100, 150)])
    assert main(options(broker, topic, tmp_path, *more)) == 0
    rows = iceberg_rows(tmp_path).sort_by("count")
    assert rows["user"].to_pylist() == [f"u{i}" for i in range(150)]
    assert rows["__key"].to_pylist() == [b"k%d" % (i % 7) for i in (*range(100), *range(50))]
    ids = zip(rows["__ledgerId"].to_pylist(), rows["__entryId"].to_pylist(), strict=True)
    assert list(ids) == [(each.ledger_id(), each.entry_id()) for each in sent]
    path = topic.replace("://", "/")
    assert call(f"{broker.http_url}/admin/v2/{path}/stats").json["subscriptions"]["lake"]["msgBacklog"] == 0


def test_a_lake_that_may_lose_entries_keeps_all_around_damage(tmp_path: Path, topic: str) -> None:
    keeps_all = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    process = BrokerProcess(tmp_path, keeps_all).start()
    try:
        client = new_client(process.url)
        publish(client, topic, pulsar.schema.BytesSchema(), [b"<%03d>" % i for i in range(50)])
        client.close()
        assert process.stop() == 0  # so that the ledger is sealed
        (file,) = (process.data / "ledgers").glob("*.ledger")
        data = bytearray(file.read_bytes())
        data[data.index(b"<020>")] ^= 1
        file.write_bytes(data)
        process.start()
        more = ["--format", "parquet", "--once"]
        assert main(options(process, topic, tmp_path / "lake", *more)) == 1
        assert main(options(process, topic, tmp_path / "lake", *more, "--on-data-loss", "skip")) == 0
    finally:
        process.stop()
    table = ParquetTable(str(tmp_path / "lake" / "events.clicks"), "main")
    rows = pa.concat_tables([pq.read_table(Path(location), partitioning=None) for location in table.data_files()])
    assert sorted(rows["value"].to_pylist()) == [b"<%03d>" % i for i in range(50) if i != 20]


def test_a_dry_run_says_what_would_be_read_and_changes_nothing(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    publish(client, topic, pulsar.schema.BytesSchema(), [b"x"] * 10)
    assert main(options(broker, topic, tmp_path, "--format", "parquet", "--dry-run", "--json")) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["event"] == "plan"
    assert plan["bytes"] > 0
    assert list(plan["positions"]) == [topic]
    assert not (tmp_path / "events.clicks").exists()


def test_what_is_wrong_has_its_own_exit_code_and_says_what_to_do(
    broker: BrokerProcess, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "lake", "--once"]) == 2
    assert "--topic" in capfd.readouterr().err
    assert main(options(broker, topic, tmp_path, "--once", "--format", "parquet")) == 1
    assert topic in capfd.readouterr().err


def test_sigterm_ends_a_continuous_pipeline_after_its_commit_and_a_second_one_is_refused_meanwhile(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, pulsar.schema.StringSchema(), ["a"] * 20)
    common = options(
        broker, topic, tmp_path, "--json", "--interval", "0.2", "--metrics-file", str(tmp_path / "metrics.prom")
    )
    command = [sys.executable, "-W", "ignore", "-m", "pybroker", *common]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        dog = threading.Timer(60, running.kill)
        dog.start()
        assert json.loads(running.stdout.readline())["rows"] == 20
        assert main(options(broker, topic, tmp_path, "--once")) == 3
        publish(client, topic, pulsar.schema.StringSchema(), ["b"] * 30)
        assert json.loads(running.stdout.readline())["rows"] > 20
        os.kill(running.pid, signal.SIGTERM)
        running.stdout.read()
        dog.cancel()
    assert running.returncode == 0
    assert main(options(broker, topic, tmp_path, "--once")) == 0
    assert iceberg_rows(tmp_path).num_rows == 50
    assert 'pybroker_lake_rows_total{pipeline="main",table="events.clicks"}' in (tmp_path / "metrics.prom").read_text()
