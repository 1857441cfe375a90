"""Entries over the bulk endpoint: exactly what a consumer of the same topic sees."""

import pulsar
import pytest
from tests.clients.conftest import admin, path_of
from tests.support.broker_process import BrokerProcess
from tests.tables.stored import bodies_of, payload_of, publish, ranges_of

from pybroker.client.access import Access
from pybroker.reading.entry_source import DataLoss, ReadingFailed
from pybroker.reading.positions import EntryRange, Place
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource


def source_of(broker: BrokerProcess) -> BulkSource:
    return BulkSource(SourceOptions(Access(broker.url, broker.http_url), patience_s=20))


def test_a_plain_topic_is_read_whole_and_in_order(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    sent = publish(client, topic, 500)
    source = source_of(broker)
    plan = source.plan(topic)
    assert plan.lost == ()
    assert sum(each.message_count for each in plan.ledgers) == 500
    assert bodies_of(source, plan) == sent
    source.close()


def test_large_and_small_entries_are_read_from_files_and_from_memory(own_broker: BrokerProcess, topic: str) -> None:
    client = pulsar.Client(own_broker.url)
    sent = publish(client, topic, 2000, size=3000)
    client.close()
    assert own_broker.stop() == 0
    own_broker.start()
    client = pulsar.Client(own_broker.url)
    sent += publish(client, topic, 3, size=2_000_000)
    sent += publish(client, topic, 100, size=0)
    source = source_of(own_broker)
    plan = source.plan(topic)
    assert len(plan.ledgers) == 2
    assert [each.is_sealed for each in plan.ledgers] == [True, False]
    assert len(plan.ledgers[0].points) >= 4
    assert bodies_of(source, plan) == sent
    # Every sub-range: the same entries.
    first = plan.ledgers[0]
    whole = [payload_of(run, i) for run in source.read(ranges_of(plan)[0]) for i in range(run.entry_count)]
    for start, end in [(0, 1), (17, 18), (first.end_entry_id - 1, first.end_entry_id), (100, 900)]:
        runs = source.read(EntryRange(topic, first.ledger_id, start, end))
        assert [payload_of(run, i) for run in runs for i in range(run.entry_count)] == whole[start:end]
    client.close()
    source.close()


def test_a_plan_between_places_counts_exactly(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    sent = publish(client, topic, 100)
    source = source_of(broker)
    ledger_id = source.plan(topic).ledgers[0].ledger_id
    plan = source.plan(topic, Place(ledger_id, 10), Place(ledger_id, 40))
    assert (plan.start, plan.end) == (Place(ledger_id, 10), Place(ledger_id, 40))
    assert [(each.first_entry_id, each.end_entry_id, each.message_count) for each in plan.ledgers] == [(10, 40, 30)]
    assert bodies_of(source, plan) == sent[10:40]
    assert source.plan(topic, plan.end, plan.end).ledgers == ()
    source.close()


def test_what_is_not_there_is_data_loss(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 10)
    source = source_of(broker)
    ledger_id = source.plan(topic).ledgers[0].ledger_id
    for entries in [EntryRange(topic, ledger_id + 1000, 0, 1), EntryRange(topic, ledger_id, 5, 11)]:
        with pytest.raises(DataLoss):
            list(source.read(entries))
    with pytest.raises(DataLoss):
        source.plan(topic + "-missing")
    with pytest.raises(ReadingFailed):
        source.plan("non-persistent://public/default/x")
    assert admin(broker, "GET", "/persistent/public/default").text.count(topic + "-missing") == 0
    source.close()


def test_partitions_topics_times_and_progress(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    admin(broker, "PUT", path_of(topic) + "/partitions", 3)
    source = source_of(broker)
    names = [f"{topic}-partition-{index}" for index in range(3)]
    assert source.partitions(topic) == names
    assert set(names) <= set(source.topics("public/default"))
    assert source.partitions(names[1]) == [names[1]]
    publish(client, names[0], 20)
    end = source.plan(names[0]).end
    assert source.place_at_time(names[0], 0) == Place(end.ledger_id, 0)
    assert source.place_at_time(names[0], 1 << 50) == end
    for entry_id, backlog in [(5, 15), (12, 8), (7, 8), (20, 0)]:
        source.show_progress(names[0], "progress", Place(end.ledger_id, entry_id))
        stats = admin(broker, "GET", path_of(names[0]) + "/stats").json["subscriptions"]["progress"]
        assert stats["msgBacklog"] == backlog
    assert source.schema(names[0]) is None
    source.close()
