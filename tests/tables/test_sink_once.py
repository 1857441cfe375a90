"""An effectively-once sink on a real broker: attempts that die, are repeated or see other rows lose nothing."""

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
from tests.support.broker_process import BrokerProcess
from tests.tables.stored import once, stored

from pybroker.spark.writer.once_writer import OnceWriter, complete_batch, plan_batch
from pybroker.spark.writer.sink_notes import SinkFenced, Writer
from pybroker.spark.writer.sink_options import WriteOptions, parse_write_options
from pybroker.spark.writer.topic_writer import TopicWriter, WriteFailed, Written

DEDUPLICATES = {
    "brokerDeduplicationEnabled": "true",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), DEDUPLICATES).running() as process:
        yield process


def options_for(broker: BrokerProcess, topic: str, **more: str) -> WriteOptions:
    given = {"service.url": broker.url, "topic": topic, "delivery": "effectively-once", "sinkId": "sink"}
    return parse_write_options({**given, "batchingMaxMessages": "10", **more}, is_stream=True)


def rows(*ranges: range) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"value": [b"%d" % row for row in each]}) for each in ranges]


def attempt(
    options: WriteOptions, who: Writer, task: int, batches: list[pa.RecordBatch], *, dies: bool = False
) -> Written | None:
    """One attempt of one task; it dies after its rows were sent, without finishing."""
    writer = OnceWriter(options, task, who, plan_batch(options))
    try:
        take = writer.write if writer.start() else writer.skip
        for batch in batches:
            take(batch)
        if dies:
            for sender in writer._senders.values():
                writer._do("dying", sender._send_segment(writer.written))  # type: ignore[attr-defined]
                writer._do("dying", sender.producer.flush())
            return None
        return writer.finish()
    finally:
        writer.close()


LARGE = [b"first", random.Random(1).randbytes(11 << 20), b"", random.Random(2).randbytes(5 << 20), b"last"]
"""Two of them are over the limit of one entry, the second because of its metadata."""


def large_rows() -> list[pa.RecordBatch]:
    keys, properties = [b"k", b"\xff", None, b"k", b"k"], [[("a", "b")]] * len(LARGE)
    types = {"value": pa.binary(), "__key": pa.binary(), "__messageProperties": pa.map_(pa.string(), pa.string())}
    rows = {"value": LARGE, "__key": keys, "__messageProperties": properties}
    return [pa.RecordBatch.from_pydict(rows, schema=pa.schema(types))]


def large_values(client: pulsar.Client, topic: str) -> list[bytes]:
    """What an official reader sees, checked but for its value."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(20_000)
        assert message.properties() == {"a": "b"}
        found.append(message.data())
    reader.close()
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_row_over_the_limit_of_one_entry_is_sent_in_chunks(
    broker: BrokerProcess, client: pulsar.Client, topic: str, compression: str
) -> None:
    given = {"service.url": broker.url, "topic": topic, "compressionType": compression}
    writer = TopicWriter(parse_write_options(given, is_stream=False), 0)
    writer.write(large_rows()[0])
    written = writer.finish()
    writer.close()
    assert (written.rows, written.entries) == (5, 1 + 3 + 1 + 2 + 1)
    assert large_values(client, topic) == LARGE


def test_chunked_rows_of_a_task_that_is_tried_again_are_stored_once(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    options, who = options_for(broker, topic), Writer("query", "run", 0)
    attempt(options, who, 0, large_rows(), dies=True)
    written = attempt(options, who, 0, large_rows())
    assert written is not None
    assert (written.skipped_rows, written.doubled_rows) == (5, 0)
    assert large_values(client, topic) == LARGE


def test_a_task_that_dies_and_is_tried_again_stores_each_row_once(broker: BrokerProcess, topic: str) -> None:
    options, who = options_for(broker, topic), Writer("query", "run", 0)
    attempt(options, who, 0, rows(range(300)), dies=True)
    written = attempt(options, who, 0, rows(range(300), range(300, 500)))
    assert written is not None
    assert (written.rows, written.skipped_rows, written.doubled_rows) == (500, 300, 0)
    assert stored(broker, topic) == once(range(500))


def test_a_batch_that_is_complete_is_skipped_whatever_its_plan(broker: BrokerProcess, topic: str) -> None:
    options, who = options_for(broker, topic), Writer("query", "run", 0)
    for task in range(2):
        attempt(options, who, task, rows(range(task * 100, task * 100 + 100)))
    complete_batch(options, who, 2, 200)
    again = Writer("query", "run-2", 0)
    for task, part in enumerate((range(70), range(70, 140), range(140, 200))):
        written = attempt(options, again, task, rows(part))
        assert written is not None
        assert written.skipped_rows == len(part)
    attempt(options, Writer("query", "run-2", 1), 0, rows(range(200, 250)))
    assert stored(broker, topic) == once(range(250))


def test_a_driver_that_dies_before_its_note_doubles_nothing_with_the_same_plan(
    broker: BrokerProcess, topic: str
) -> None:
    options = options_for(broker, topic)
    for run in ("run-1", "run-2"):
        for task in range(2):
            attempt(options, Writer("query", run, 7), task, rows(range(task * 100, task * 100 + 100)))
    assert stored(broker, topic) == once(range(200))


def test_another_number_of_tasks_loses_nothing_and_says_what_may_be_doubled(broker: BrokerProcess, topic: str) -> None:
    options, total = options_for(broker, topic), range(1000)
    first = Writer("query", "run-1", 3)
    attempt(options, first, 0, rows(range(334)))
    attempt(options, first, 1, rows(range(334, 667)))
    doubled = 0
    again = Writer("query", "run-2", 3)
    for task, part in enumerate((range(500), range(500, 1000))):
        written = attempt(options, again, task, rows(part))
        assert written is not None
        doubled += written.doubled_rows
    found = stored(broker, topic)
    assert set(found) == set(total)
    assert max(found.values()) <= 2
    assert 0 < sum(found.values()) - 1000 <= doubled


def test_another_order_of_rows_loses_nothing(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    attempt(options, Writer("query", "run", 0), 0, rows(range(100)), dies=True)
    written = attempt(options, Writer("query", "run", 0), 0, rows(range(50, 100), range(50)))
    assert written is not None
    assert written.doubled_rows == 100
    found = stored(broker, topic)
    assert set(found) == set(range(100))
    third = attempt(options, Writer("query", "run", 0), 0, rows(range(50, 100), range(50)))
    assert third is not None
    assert (third.skipped_rows, third.doubled_rows) == (100, 0)
    assert stored(broker, topic) == found


def test_a_second_query_is_refused_the_sink_id_and_so_is_a_run_that_was_replaced(
    broker: BrokerProcess, topic: str
) -> None:
    options = options_for(broker, topic)
    attempt(options, Writer("query", "run-1", 0), 0, rows(range(10)))
    with pytest.raises(SinkFenced, match="belongs to the query"):
        attempt(options, Writer("other", "run-9", 0), 0, rows(range(10)))
    attempt(options, Writer("query", "run-2", 0), 0, rows(range(10)))
    with pytest.raises(SinkFenced, match="replaced"):
        attempt(options, Writer("query", "run-1", 1), 0, rows(range(10)))
    taking = options_for(broker, topic, takeOver="true")
    attempt(taking, Writer("other", "run-9", 0), 0, rows(range(10, 20)))
    assert stored(broker, topic) == once(range(20))


def test_an_older_batch_behind_later_ones_is_refused_and_not_swallowed(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    attempt(options, Writer("query", "run", 9), 0, rows(range(10)))
    with pytest.raises(WriteFailed, match="may be an older copy"):
        attempt(options, Writer("query", "run", 8), 0, rows(range(10, 20)))


def test_a_topic_that_does_not_deduplicate_is_refused(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        options = options_for(broker, topic)
        with pytest.raises(WriteFailed, match="does not deduplicate"):
            attempt(options, Writer("query", "run", 0), 0, rows(range(1000)))
        assert sum(stored(broker, topic).values()) <= 10


def test_a_broker_killed_while_rows_are_sent_stores_each_once(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path, DEDUPLICATES).running() as broker:
        options, who = options_for(broker, topic), Writer("query", "run", 0)
        writer = OnceWriter(options, 0, who, plan_batch(options))
        assert writer.start()
        restart = threading.Thread(target=broker.restart_after_kill)
        for index in range(100):
            if index == 20:
                restart.start()
            (batch,) = rows(range(index * 200, index * 200 + 200))
            writer.write(batch)
        writer.finish()
        writer.close()
        restart.join()
        assert stored(broker, topic) == once(range(20_000))


def test_notes_of_complete_batches_are_not_read_again(broker: BrokerProcess, topic: str) -> None:
    options = options_for(broker, topic)
    places = []
    for batch in range(4):
        who = Writer("query", "run", batch)
        attempt(options, who, 0, rows(range(batch * 10, batch * 10 + 10)))
        complete_batch(options, who, 1, 10)
        places.append(plan_batch(options).notes_from)
    assert places == sorted(places)
    assert places[0] < places[-1]
    client = pulsar.Client(broker.url)
    notes = client.create_reader(f"{topic}-sink-sink", pulsar.MessageId.earliest)
    kinds = [json.loads(notes.read_next(5000).data())["kind"] for _ in range(9)]
    client.close()
    assert kinds == ["claim", *["sent", "complete"] * 4]
    assert stored(broker, topic) == once(range(40))
