"""Places that were kept while ledgers went: what is gone is told, and nothing else."""

import asyncio

from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.client.access import Access
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.reading.positions import Place, TopicPlan
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource

TOPIC = "persistent://public/default/t"
SMALL = LedgerLimits(max_entries_per_ledger=10, min_rollover_ms=0)


async def plan(broker: MemoryBroker, start: Place | None = None, topic: str = TOPIC) -> TopicPlan:
    source = BulkSource(SourceOptions(Access("", f"http://127.0.0.1:{broker.port}"), patience_s=5))
    try:
        return await asyncio.to_thread(source.plan, topic, start)
    finally:
        source.close()


async def test_a_place_behind_the_last_trimmed_entry_has_lost_nothing() -> None:
    async with memory_broker(SMALL) as broker:
        topic = await broker.topic(TOPIC)
        topic.ledger.retention = RetentionLimits(-1, -1)
        while len(topic.ledger.ledgers) < 4:
            await broker.publish(topic, 10)
        counts = {each.ledger_id: each.end_entry_id for each in (await plan(broker)).ledgers}
        await topic.ledger.truncate()
        left = await plan(broker)
        gone = [each for each in counts if each < left.first.ledger_id]
        last, count = gone[-1], counts[gone[-1]]
        assert (await plan(broker, left.first)).lost == ()
        assert (await plan(broker, Place(last, count))).lost == ()
        told = (await plan(broker, Place(last, count - 1))).lost
        assert len(told) == 1
        assert f"{last}:{count - 1} up to {last}:{count} are deleted" in told[0]
        assert f"the oldest remaining entry is {left.first.ledger_id}:{left.first.entry_id}" in told[0]
        assert len((await plan(broker, Place(gone[0], 0))).lost) == len(gone)
        assert (await plan(broker)).lost == ()
        # It is remembered by the next one who loads the topic.
        await broker.service.topics.unload(topic)
        assert (await plan(broker, Place(last, count))).lost == ()
        assert len((await plan(broker, Place(gone[0], 0))).lost) == len(gone)


async def test_a_place_in_an_earlier_topic_of_that_name_has_lost_what_followed() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await broker.publish(topic, 3)
        end = (await plan(broker)).end
        await broker.service.topics.delete(topic.name)
        await broker.publish(await broker.topic(TOPIC), 3)
        assert len((await plan(broker, end)).lost) == 1


async def test_a_topic_that_never_had_a_message_has_lost_nothing_by_a_restart() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        end = (await plan(broker)).end
        await broker.service.topics.unload(topic)
        await broker.publish(await broker.topic(TOPIC), 3)
        found = await plan(broker, end)
        assert found.lost == ()
        assert sum(each.message_count for each in found.ledgers) == 3
