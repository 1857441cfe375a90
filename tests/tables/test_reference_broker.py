"""Reading and writing over the binary protocol on Apache Pulsar itself, and a lake of its topics.

`PYBROKER_REFERENCE_URL` may name a reference broker that runs, deduplicates (`brokerDeduplicationEnabled`), keeps what is read
(retention) and has ledgers of 50 entries; else one is started where its script and jars are.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.support.reference import Reference, reference_broker
from tests.tables.lake.test_command import iceberg_rows
from tests.tables.stored import once, stored
from tests.tables.test_binary_source import payloads, publish, publish_in_chunks, ranges, read_all, values_of
from tests.tables.test_sink_once import attempt, options_for, rows

from pybroker.cli import main
from pybroker.client.access import Access
from pybroker.reading.entry_source import DataLoss, TopicMissing
from pybroker.reading.positions import EntryRange, Place
from pybroker.reading.transports.binary_source import BinarySource
from pybroker.spark.writer.once_writer import complete_batch
from pybroker.spark.writer.sink_notes import Writer
from pybroker.spark.writer.sink_options import parse_write_options
from pybroker.spark.writer.topic_writer import TopicWriter

pytestmark = [pytest.mark.long, pytest.mark.java]


@pytest.fixture(scope="module")
def broker() -> Iterator[Reference]:
    if url := os.environ.get("PYBROKER_REFERENCE_URL"):
        yield Reference(url, "")
        return
    with reference_broker() as started:
        yield started


@pytest.fixture
def source(broker: Reference) -> Iterator[BinarySource]:
    found = BinarySource(Access(broker.url))
    yield found
    found.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/reference-{secrets.token_hex(4)}"


def test_ledgers_are_found_and_read_exactly(broker: Reference, source: BinarySource, topic: str) -> None:
    values = [b"m%d" % index for index in range(180)]
    ids = publish(broker, topic, values)
    plan = source.plan(topic)
    assert [each.ledger_id for each in plan.ledgers] == sorted({message_id.ledger_id() for message_id in ids})
    assert len(plan.ledgers) >= 2
    for each in plan.ledgers:
        of_it = [message_id.entry_id() for message_id in ids if message_id.ledger_id() == each.ledger_id]
        assert (each.first_entry_id, each.end_entry_id) == (min(of_it), max(of_it) + 1)
    assert read_all(source, plan) == values
    part = EntryRange(topic, ids[10].ledger_id(), ids[10].entry_id(), ids[10].entry_id() + 7)
    assert payloads(list(source.read(part))) == values[10:17]
    last = ids[-1]
    beyond = EntryRange(topic, last.ledger_id(), last.entry_id(), last.entry_id() + 2)
    with pytest.raises(DataLoss):
        list(source.read(beyond))


def test_range_that_begins_inside_a_chunked_message_is_read_from_every_entry(
    broker: Reference, source: BinarySource, topic: str
) -> None:
    values = publish_in_chunks(broker, topic, 6, 8_000_000)
    (whole,) = ranges(source.plan(topic))
    for first in range(whole.first_entry_id, whole.end_entry_id):
        rest = EntryRange(topic, whole.ledger_id, first, whole.end_entry_id)
        assert values_of(source, rest) == values[(first - whole.first_entry_id) // 2 :]


def test_times_progress_and_names_are_understood(broker: Reference, source: BinarySource, topic: str) -> None:
    with pytest.raises(TopicMissing):
        source.partitions(topic)
    ids = publish(broker, topic, [b"m%d" % index for index in range(20)])
    assert source.partitions(topic) == [topic]
    assert topic in source.topics("public/default")
    assert source.plan(topic, source.place_at_time(topic, 0)).ledgers == source.plan(topic).ledgers
    assert source.plan(topic, source.place_at_time(topic, 1 << 42)).ledgers == ()
    source.show_progress(topic, "progress", Place(ids[5].ledger_id(), ids[5].entry_id()))
    source.show_progress(topic, "progress", Place(ids[2].ledger_id(), ids[2].entry_id()))
    client = pulsar.Client(broker.url)
    assert client.subscribe(topic, "progress").receive(10_000).data() == b"m5"
    client.close()


def test_rows_are_written_at_least_once(broker: Reference, topic: str) -> None:
    given = {"service.url": broker.url, "topic": topic, "compressionType": "lz4"}
    writer = TopicWriter(parse_write_options(given, is_stream=False), 0)
    for batch in rows(range(3000), range(3000, 5000)):
        writer.write(batch)
    writer.finish()
    writer.close()
    assert stored(broker, topic) == once(range(5000))  # type: ignore[arg-type]


def test_rows_are_written_effectively_once(broker: Reference, topic: str) -> None:
    options = options_for(broker, topic)  # type: ignore[arg-type]
    attempt(options, Writer("query", "run", 0), 0, rows(range(300)), dies=True)
    written = attempt(options, Writer("query", "run", 0), 0, rows(range(300), range(300, 500)))
    assert written is not None
    assert (written.skipped_rows, written.doubled_rows) == (300, 0)
    complete_batch(options, Writer("query", "run", 0), 1, 500)
    attempt(options, Writer("query", "run-2", 0), 0, rows(range(100)))
    attempt(options, Writer("query", "run-2", 1), 0, rows(range(500, 600)))
    assert stored(broker, topic) == once(range(600))  # type: ignore[arg-type]


def test_a_lake_is_filled_from_its_topics(broker: Reference, topic: str, tmp_path: Path) -> None:
    ids = publish(broker, topic, [b"m%03d" % index for index in range(120)])
    where = ["--service-url", broker.url, "--read-mode", "binary", "--topic", topic]
    table = ["--table", "events.clicks", "--target", str(tmp_path), "--once", "--log-level", "error"]
    for _ in range(2):
        assert main(["pipeline", "lake", *where, *table]) == 0
    rows = iceberg_rows(tmp_path).sort_by("value")
    assert rows["value"].to_pylist() == [b"m%03d" % index for index in range(120)]
    found = zip(rows["__ledgerId"].to_pylist(), rows["__entryId"].to_pylist(), strict=True)
    assert list(found) == [(each.ledger_id(), each.entry_id()) for each in ids]
