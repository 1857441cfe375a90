"""What is read over the binary protocol is what was sent, and nothing missing is taken for the end."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.reference import Reference
from tests.support.rest import call

from pybroker.client.access import Access
from pybroker.columns.entry_run import EntryRun
from pybroker.reading.entry_source import DataLoss, ReadingFailed, TopicMissing
from pybroker.reading.message_batches import MessageReader, MessageReading
from pybroker.reading.positions import EntryRange, Place, TopicPlan
from pybroker.reading.transports.binary_source import BinarySource
from pybroker.wire.entry_metadata import message_metadata, metadata_span


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Its ledgers are short, so that topics have several."""
    settings = {
        "managedLedgerMaxEntriesPerLedger": "50",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running() as process:
        yield process


@pytest.fixture
def source(broker: BrokerProcess) -> Iterator[BinarySource]:
    found = BinarySource(Access(broker.url, operation_timeout_s=10))
    yield found
    found.close()


def publish(broker: BrokerProcess | Reference, topic: str, values: list[bytes]) -> list[pulsar.MessageId]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(value) for value in values]
    client.close()
    return ids


def publish_in_chunks(broker: BrokerProcess | Reference, topic: str, count: int, size: int) -> list[bytes]:
    """`count` messages of `size` bytes, each over the limit of one entry."""
    values = [random.Random(index).randbytes(size) for index in range(count)]
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    for value in values:
        producer.send(value)
    client.close()
    return values


def values_of(source: BinarySource, entries: EntryRange) -> list[bytes]:
    """The values of the messages whose last chunk is in that range."""
    reader = MessageReader(source, MessageReading(columns=("value",)))
    return [value for batch in reader.read(entries) for value in batch["value"].to_pylist()]


def payloads(runs: list[EntryRun]) -> list[bytes]:
    found = []
    for run in runs:
        data = bytes(run.data)
        for start, length in zip(run.starts, run.lengths, strict=True):
            entry = data[start : start + length]
            assert message_metadata(entry).producer_name
            found.append(entry[metadata_span(entry)[1] :])
    return found


def ranges(plan: TopicPlan) -> list[EntryRange]:
    return [EntryRange(plan.topic, each.ledger_id, each.first_entry_id, each.end_entry_id) for each in plan.ledgers]


def read_all(source: BinarySource, plan: TopicPlan) -> list[bytes]:
    return [value for each in ranges(plan) for value in payloads(list(source.read(each)))]


def test_a_topic_of_several_ledgers_is_planned_and_read_exactly(
    broker: BrokerProcess, source: BinarySource, topic: str
) -> None:
    values = [b"m%d" % index for index in range(180)]
    ids = publish(broker, topic, values)
    plan = source.plan(topic)
    ledgers = sorted({message_id.ledger_id() for message_id in ids})
    assert len(ledgers) >= 3
    assert [each.ledger_id for each in plan.ledgers] == ledgers
    for each in plan.ledgers:
        of_it = [message_id.entry_id() for message_id in ids if message_id.ledger_id() == each.ledger_id]
        assert (each.first_entry_id, each.end_entry_id) == (min(of_it), max(of_it) + 1)
        assert each.message_count == -1
        assert each.is_sealed == (each.ledger_id != ledgers[-1])
    assert plan.first == Place(ids[0].ledger_id(), ids[0].entry_id())
    assert plan.end == Place(ids[-1].ledger_id(), ids[-1].entry_id() + 1)
    assert not plan.lost
    assert read_all(source, plan) == values


@pytest.mark.parametrize(("first", "end"), [(0, 1), (10, 20), (49, 50), (49, 51), (0, 99), (100, 180), (60, 60)])
def test_a_part_of_a_topic_is_read_exactly(
    broker: BrokerProcess, source: BinarySource, topic: str, first: int, end: int
) -> None:
    values = [b"m%d" % index for index in range(180)]
    ids = publish(broker, topic, values)
    places = [Place(each.ledger_id(), each.entry_id()) for each in ids]
    stop = places[end] if end < len(places) else Place(places[-1].ledger_id, places[-1].entry_id + 1)
    plan = source.plan(topic, places[first], stop)
    assert (plan.start, plan.end) == (places[first], stop)
    assert read_all(source, plan) == values[first:end]


def test_range_that_begins_inside_a_chunked_message_is_read_from_every_entry(
    broker: BrokerProcess, source: BinarySource, topic: str
) -> None:
    # Two entries of a message are over the limit at which a consumer pauses its connection.
    values = publish_in_chunks(broker, topic, 6, 8_000_000)
    (whole,) = ranges(source.plan(topic))
    assert whole.end_entry_id == 12
    for first in range(12):
        rest = EntryRange(topic, whole.ledger_id, first, whole.end_entry_id)
        assert values_of(source, rest) == values[first // 2 :]
    source.close()
    assert "pulsar-client" not in {thread.name for thread in threading.enumerate()}


def test_source_answers_other_requests_while_a_read_waits_for_its_caller(
    broker: BrokerProcess, source: BinarySource, topic: str
) -> None:
    publish_in_chunks(broker, topic, 6, 8_000_000)
    (whole,) = ranges(source.plan(topic))
    runs = source.read(whole)
    next(runs)
    assert ranges(source.plan(topic)) == [whole]
    assert source.schema(topic) is None
    part = EntryRange(topic, whole.ledger_id, 3, 5)
    assert [run.first_entry_id for run in source.read(part)] == [3, 4]
    assert sum(run.entry_count for run in runs) == 11


def test_an_empty_topic_has_a_plan_without_ledgers(broker: BrokerProcess, source: BinarySource, topic: str) -> None:
    client = pulsar.Client(broker.url)
    client.create_producer(topic)
    client.close()
    plan = source.plan(topic)
    assert plan.ledgers == ()
    assert plan.start == plan.end == plan.first
    # Whoever begins there has lost nothing when messages come.
    publish(broker, topic, [b"first"])
    assert source.plan(topic, plan.end).lost == ()


def test_partitions_and_topics_are_listed(broker: BrokerProcess, source: BinarySource, topic: str) -> None:
    path = topic.replace("persistent://", "persistent/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=3).status == 204
    partitions = [f"{topic}-partition-{index}" for index in range(3)]
    assert source.partitions(topic) == partitions
    assert source.partitions(partitions[1]) == [partitions[1]]
    assert set(partitions) <= set(source.topics("public/default"))


def test_a_topic_that_does_not_exist_is_refused_and_not_made(source: BinarySource, topic: str) -> None:
    with pytest.raises(TopicMissing, match="the topic does not exist"):
        source.partitions(topic)
    with pytest.raises(TopicMissing, match="the topic does not exist"):
        source.plan(topic)
    assert topic not in source.topics("public/default")


def test_a_start_that_was_trimmed_is_told_with_both_places(broker: BrokerProcess, source: BinarySource) -> None:
    topic = "persistent://public/trimmed/t"
    assert call(f"{broker.http_url}/admin/v2/namespaces/public/trimmed", "PUT").status == 204
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    assert call(f"{broker.http_url}/admin/v2/namespaces/public/trimmed/retention", "POST", body=nothing).status == 204
    client = pulsar.Client(broker.url)
    client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.close()
    ids = publish(broker, topic, [b"m%d" % index for index in range(120)])
    asked = EntryRange(topic, ids[0].ledger_id(), 0, 50)
    client = pulsar.Client(broker.url)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    consumer.acknowledge_cumulative(ids[110])
    client.close()
    path = topic.replace("persistent://", "persistent/")
    assert call(f"{broker.http_url}/admin/v2/{path}/trim", "POST").status < 300
    plan = source.plan(topic, Place(ids[0].ledger_id(), 7))
    assert plan.first.ledger_id == ids[111].ledger_id()  # the first that is not acknowledged keeps its ledger
    assert len(plan.lost) == 1
    assert f"{ids[0].ledger_id()}:7" in plan.lost[0]
    assert f"{plan.first.ledger_id}:0" in plan.lost[0]
    with pytest.raises(DataLoss, match=f"{ids[0].ledger_id()}:0"):
        list(source.read(asked))


def test_a_range_beyond_the_end_is_no_short_read(broker: BrokerProcess, source: BinarySource, topic: str) -> None:
    ids = publish(broker, topic, [b"a", b"b"])
    with pytest.raises(DataLoss, match="has entries only up to"):
        list(source.read(EntryRange(topic, ids[0].ledger_id(), 0, 3)))


def test_a_place_by_time_is_that_of_the_first_entry_since(
    broker: BrokerProcess, source: BinarySource, topic: str
) -> None:
    ids = publish(broker, topic, [b"m%d" % index for index in range(60)])
    times = []
    for each in ranges(source.plan(topic)):
        for run in source.read(each):
            data = bytes(run.data)
            for index, (start, length) in enumerate(zip(run.starts, run.lengths, strict=True)):
                metadata = message_metadata(data[start : start + length])
                times.append((metadata.publish_time, Place(run.ledger_id, run.first_entry_id + index)))
    asked = times[30][0]
    expected = next(place for time_ms, place in times if time_ms >= asked)
    found = source.place_at_time(topic, asked)
    plan = source.plan(topic, found)
    assert Place(plan.ledgers[0].ledger_id, plan.ledgers[0].first_entry_id) == expected
    late = source.place_at_time(topic, times[-1][0] + 1000)
    assert late >= Place(ids[-1].ledger_id(), ids[-1].entry_id() + 1)
    assert source.plan(topic, late).ledgers == ()


def test_progress_moves_a_durable_subscription_forwards_only(
    broker: BrokerProcess, source: BinarySource, topic: str
) -> None:
    ids = publish(broker, topic, [b"m%d" % index for index in range(120)])
    places = [Place(each.ledger_id(), each.entry_id()) for each in ids]
    path = topic.replace("persistent://", "persistent/")

    def backlog() -> int:
        stats = call(f"{broker.http_url}/admin/v2/{path}/stats?getPreciseBacklog=true", "GET").json
        return int(stats["subscriptions"]["progress"]["msgBacklog"])

    source.show_progress(topic, "progress", places[30])
    assert backlog() == 90
    source.show_progress(topic, "progress", places[10])
    assert backlog() == 90
    first_of_a_ledger = next(place for place in places[31:] if place.entry_id == 0)
    source.show_progress(topic, "progress", first_of_a_ledger)
    assert backlog() == 120 - places.index(first_of_a_ledger)
    source.show_progress(topic, "progress", Place(places[-1].ledger_id, places[-1].entry_id + 1))
    assert backlog() == 0


def test_a_broker_killed_in_the_middle_of_a_read_costs_and_doubles_nothing(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        values = [b"%06d" % index + bytes(20_000) for index in range(1500)]
        client = pulsar.Client(broker.url)
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        for value in values:
            producer.send_async(value, lambda *_: None)
        producer.flush()
        client.close()
        source = BinarySource(Access(broker.url, operation_timeout_s=20))
        plan = source.plan(topic)
        (asked,) = ranges(plan)
        runs = source.read(asked)
        found = payloads([next(runs)])
        assert len(found) < len(values)
        restart = threading.Thread(target=broker.restart_after_kill)
        restart.start()
        found += payloads(list(runs))
        restart.join()
        source.close()
    assert found == values


def test_a_broker_that_is_gone_is_an_error_and_no_end(tmp_path: Path, topic: str) -> None:
    broker = BrokerProcess(tmp_path).start()
    publish(broker, topic, [b"a"])
    source = BinarySource(Access(broker.url, operation_timeout_s=1, connection_timeout_s=1))
    (asked,) = ranges(source.plan(topic))
    broker.kill()
    with pytest.raises(ReadingFailed, match="reading"):
        list(source.read(asked))
    source.close()
