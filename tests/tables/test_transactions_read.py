"""Ranges of topics with transactions: what each way of reading gives is what a consumer gets, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call
from tests.tables.stored import ranges_of

from pybroker.cli import main
from pybroker.client import PulsarClient, RequestTimedOut, connect
from pybroker.client.access import Access
from pybroker.columns.message_columns import VALUE
from pybroker.pipelines.replay import _entries
from pybroker.reading.entry_source import DataLoss, EntrySource, ReadingFailed
from pybroker.reading.message_batches import MessageReader, MessageReading
from pybroker.reading.positions import EntryRange, Place, TopicPlan
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source

MODES = ["segment", "bulk", "binary"]
ROUNDS = 60
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "maxMessageSize": "60000",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS).start()
    yield process
    assert process.stop() == 0


def opened(broker: BrokerProcess, mode: str) -> closing[EntrySource]:
    return closing(open_source(SourceOptions(Access(broker.url, broker.http_url), mode, patience_s=20)))


def values_of(source: EntrySource, ranges: list[EntryRange]) -> list[bytes]:
    reader = MessageReader(source, MessageReading((VALUE,)))
    return [value for each in ranges for batch in reader.read(each) for value in batch.column(VALUE).to_pylist()]


async def write(client: PulsarClient, topic: str, seed: int) -> None:
    """Single messages, batches and messages in parts, of no transaction, of some that overlap, committed and aborted."""
    chance = random.Random(seed)
    producers = [
        await client.producer(topic, batching=False, chunking=True),
        await client.producer(topic, batch_delay_s=0.001),
    ]
    under_way = []
    for number in range(ROUNDS):
        transaction = await client.transaction() if chance.random() < 0.7 else None
        producer = producers[chance.random() < 0.5]
        for part in range(chance.randint(1, 4)):
            size = 100_000 if producer is producers[0] and chance.random() < 0.1 else 20
            await producer.send(b"%d-%d " % (number, part) + b"x" * size, key=str(number % 7), transaction=transaction)
        if transaction is not None:
            under_way.append(transaction)
        while under_way and (len(under_way) > 3 or chance.random() < 0.5):
            ended = under_way.pop(chance.randrange(len(under_way)))
            await (ended.commit() if chance.random() < 0.5 else ended.abort())
    for ended in under_way:
        await ended.abort()  # so that the topic ends with what nobody gets


async def consumed(client: PulsarClient, topic: str) -> list[bytes]:
    reader = await client.reader(topic)
    found: list[bytes] = []
    while await reader.has_more():
        found.append((await reader.receive(20)).value or b"")
    await reader.close()
    return found


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> str:
    """A topic of several ledgers with messages in transactions, all of which have ended."""
    name = "persistent://public/default/mixed"

    async def fill() -> None:
        async with connect(broker.url) as client:
            await write(client, name, 7)

    asyncio.run(fill())
    return name


@pytest.fixture(scope="module")
def expected(broker: BrokerProcess, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        async with connect(broker.url) as client:
            return await consumed(client, topic)

    found = asyncio.run(read())
    assert 40 < len(found) < 2.5 * ROUNDS
    return found


@pytest.mark.parametrize("mode", MODES)
def test_each_way_of_reading_gives_what_a_reader_gets(
    broker: BrokerProcess, topic: str, expected: list[bytes], mode: str
) -> None:
    with opened(broker, mode) as source:
        plan = source.plan(topic)
        assert len(plan.ledgers) > 3
        assert values_of(source, ranges_of(plan)) == expected


@pytest.mark.parametrize("mode", MODES)
def test_ranges_that_were_planned_elsewhere_and_cut_anywhere_give_the_same(
    broker: BrokerProcess, topic: str, expected: list[bytes], mode: str
) -> None:
    with opened(broker, "bulk") as planner:
        plan = planner.plan(topic)
    assert _end_of_what_is_visible(plan) < plan.end, "a range of which nothing at its end is given to anybody"
    pieces = [
        EntryRange(topic, each.ledger_id, first, min(first + 9, each.end_entry_id))
        for each in plan.ledgers
        for first in range(each.first_entry_id, each.end_entry_id, 9)
    ]
    with opened(broker, mode) as source:
        assert values_of(source, pieces) == expected


def _end_of_what_is_visible(plan: TopicPlan) -> Place:
    for ledger in reversed(plan.ledgers):
        hidden = BitMap.deserialize(ledger.hidden) if ledger.hidden else BitMap()
        visible = BitMap(range(ledger.first_entry_id, ledger.end_entry_id)) - hidden
        if visible:
            return Place(ledger.ledger_id, visible.max() + 1)
    raise AssertionError("nothing is visible")


def test_entries_that_are_copied_are_those_that_readers_get(broker: BrokerProcess, topic: str) -> None:
    with opened(broker, "bulk") as bulk, opened(broker, "binary") as binary:
        plan = bulk.plan(topic)
        copied = [
            (run.ledger_id, entry_id)
            for each in ranges_of(plan)
            for run in bulk.read(each)
            for entry_id, _ in _entries(run)
        ]
        sent = [
            (run.ledger_id, entry_id)
            for each in ranges_of(binary.plan(topic))
            for run in binary.read(each)
            for entry_id in range(run.first_entry_id, run.end_entry_id)
        ]
    assert copied == sent


def test_what_is_hidden_is_hidden_after_a_restart_and_behind_a_compaction(tmp_path: Path) -> None:
    topic = "persistent://public/default/again"
    with BrokerProcess(tmp_path, SETTINGS).running() as own:

        async def fill() -> list[bytes]:
            async with connect(own.url) as client:
                await write(client, topic, 7)
                return await consumed(client, topic)

        expected = asyncio.run(fill())
        with opened(own, "bulk") as source:
            before = source.plan(topic)
        assert _end_of_what_is_visible(before) < before.end
        call(f"{own.http_url}/admin/v2/persistent/public/default/again/compaction", "PUT")
        own.kill()
        own.start()
        for mode in MODES:
            with opened(own, mode) as source:
                assert values_of(source, ranges_of(source.plan(topic))) == expected, mode
                assert values_of(source, ranges_of(before)) == expected, f"{mode}, planned before the restart"


async def test_ledgers_of_which_nobody_gets_anything_are_no_loss_and_those_that_are_gone_are(
    broker: BrokerProcess,
) -> None:
    topic = "persistent://public/default/hidden-ledgers"
    async with connect(broker.url) as client:
        producer = await client.producer(topic, batching=False)
        for last in (b"first", b"second"):
            transaction = await client.transaction()
            for _ in range(90):
                await producer.send(b"never", transaction=transaction)
            await transaction.abort()
            await asyncio.to_thread(_planned_in_bulk_and_read_over_binary, broker, topic)
            await producer.send(last)
        plan = await asyncio.to_thread(_planned_in_bulk_and_read_over_binary, broker, topic)
    assert len(plan.ledgers) > 4
    call(f"{broker.http_url}/admin/v2/persistent/public/default/hidden-ledgers/truncate", "DELETE")
    await asyncio.to_thread(_all_are_lost, broker, ranges_of(plan)[:-1])  # the last one is still there


def _all_are_lost(broker: BrokerProcess, ranges: list[EntryRange]) -> None:
    with opened(broker, "binary") as source:
        for each in ranges:
            with pytest.raises(DataLoss):
                values_of(source, [each])


def _planned_in_bulk_and_read_over_binary(broker: BrokerProcess, topic: str) -> TopicPlan:
    with opened(broker, "bulk") as planner, opened(broker, "binary") as source:
        ranges = ranges_of(plan := planner.plan(topic))
        assert values_of(source, ranges) == values_of(planner, ranges)
        return plan


async def test_an_open_transaction_ends_what_can_be_read_and_nothing_is_read_twice_behind_it(
    broker: BrokerProcess,
) -> None:
    topic = "persistent://public/default/open"
    async with connect(broker.url) as client:
        producer = await client.producer(topic, batching=False)
        await producer.send(b"before")
        transaction = await client.transaction()
        first = await producer.send(b"in it", transaction=transaction)
        behind = await producer.send(b"behind")
        for mode in ("segment", "bulk", "binary"):
            await asyncio.to_thread(_ends_in_front_of, broker, topic, mode, Place(*first[:2]))
        by_time = await asyncio.to_thread(_planned_by_time, broker, topic)
        assert by_time.end == by_time.start, "who begins behind the transaction has not gone back"
        await transaction.commit()
        assert await consumed(client, topic) == [b"before", b"in it", b"behind"]
        with opened(broker, "bulk") as source:
            rest = await asyncio.to_thread(source.plan, topic, Place(*first[:2]))
            found = await asyncio.to_thread(values_of, source, ranges_of(rest))
        assert found == [b"in it", b"behind"]
        assert rest.end > Place(*behind[:2])


def _ends_in_front_of(broker: BrokerProcess, topic: str, mode: str, limit: Place) -> None:
    with opened(broker, mode) as source:
        plan = source.plan(topic)
        assert plan.end == limit, mode
        assert plan.is_held_back == (mode != "binary")
        assert values_of(source, ranges_of(plan)) == [b"before"], mode
        if mode != "binary":
            beyond = EntryRange(topic, limit.ledger_id, limit.entry_id, limit.entry_id + 2)
            with pytest.raises(ReadingFailed, match="a transaction is open"):
                values_of(source, [beyond])


def _planned_by_time(broker: BrokerProcess, topic: str) -> TopicPlan:
    with opened(broker, "bulk") as source:
        return source.plan(topic, source.place_at_time(topic, 1 << 42))


async def test_a_topic_of_nothing_but_aborted_messages_is_empty(broker: BrokerProcess) -> None:
    topic = "persistent://public/default/aborted"
    async with connect(broker.url) as client:
        producer = await client.producer(topic)
        transaction = await client.transaction()
        for number in range(50):
            await producer.send(b"%d" % number, transaction=transaction)
        await transaction.abort()
        consumer = await client.consumer(topic, "s", from_earliest=True)
        with pytest.raises(RequestTimedOut):
            await consumer.receive(0.5)
    for mode in MODES:
        assert await asyncio.to_thread(_all, broker, mode, topic) == [], mode


def _all(broker: BrokerProcess, mode: str, topic: str) -> list[bytes]:
    with opened(broker, mode) as source:
        return values_of(source, ranges_of(source.plan(topic)))


def test_a_lake_table_has_what_a_reader_gets(
    broker: BrokerProcess, topic: str, expected: list[bytes], tmp_path: Path
) -> None:
    urls = ["--admin-url", broker.http_url, "--service-url", broker.url]
    where = ["--topic", topic, "--target", str(tmp_path), "--table", "a.b", "--format", "parquet", "--once"]
    assert main(["pipeline", "lake", *urls, *where, "--log-level", "error"]) == 0
    rows = [value for path in tmp_path.rglob("*.parquet") for value in pq.read_table(path).column("value").to_pylist()]
    assert Counter(rows) == Counter(expected)
