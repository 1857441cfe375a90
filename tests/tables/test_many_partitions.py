"""Plans of a thousand partitions, in as many requests as it takes and no more; and answers that come in parts."""

import asyncio
from typing import Any

import pytest
from tests.support.memory_broker import memory_broker

from pybroker.admin.entries import entry_plan
from pybroker.client.access import Access
from pybroker.managed_ledger.retention import KEEP_ALL
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.reading import plans as reading_plans
from pybroker.reading.positions import Place, TopicPlan
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource

TOPIC = "persistent://public/default/t"


async def plans(source: BulkSource, asked: list[tuple[str, Place | None, Place | None]]) -> list[TopicPlan]:
    return await asyncio.to_thread(source.plans, asked)


async def test_a_thousand_partitions_are_planned_in_two_requests() -> None:
    async with memory_broker() as broker:
        assert (await broker.rest("PUT", "/persistent/public/default/t/partitions", 1000)).status == 204
        for index in (0, 500, 999):
            await broker.publish(await broker.topic(f"{TOPIC}-partition-{index}"), 7)
        source = BulkSource(SourceOptions(Access("", f"http://127.0.0.1:{broker.port}"), patience_s=20))
        asked = 0
        json = source.rest.json

        def counted(*args: object, **options: Any) -> object:
            nonlocal asked
            asked += 1
            return json(*args, **options)  # type: ignore[arg-type]

        source.rest.json = counted  # type: ignore[method-assign]
        names = await asyncio.to_thread(source.partitions, TOPIC)
        found = await plans(source, [(name, None, None) for name in names])
        assert [plan.topic for plan in found] == names
        assert sum(ledger.message_count for plan in found for ledger in plan.ledgers) == 21
        assert asked == 1 + 1000 // reading_plans.TOPICS_AT_ONCE
        source.close()


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
async def test_answers_that_come_in_parts_are_one_plan(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_plan.PlanBudget.__init__, "__defaults__", (rows,))
    async with memory_broker(LedgerLimits(max_entries_per_ledger=10, min_rollover_ms=0)) as broker:
        topics = [f"{TOPIC}{index}" for index in range(3)]
        for name in topics:
            topic = await broker.topic(name)
            topic.ledger.retention = KEEP_ALL
            while len(topic.ledger.ledgers) < 4:
                await broker.publish(topic, 10)
        ids = [[row.ledger_id for row in (await broker.topic(name)).ledger.ledgers.rows()] for name in topics]
        source = BulkSource(SourceOptions(Access("", f"http://127.0.0.1:{broker.port}"), patience_s=20))
        start = Place(ids[1][0], 3)
        end = Place(ids[2][1], 4)
        found = await plans(source, [(topics[0], None, None), (topics[1], start, None), (topics[2], None, end)])
        assert [plan.topic for plan in found] == topics
        covered = [[(each.ledger_id, each.first_entry_id) for each in plan.ledgers] for plan in found]
        counts = [len(await entries_of(broker.service.loaded.persistent[name])) for name in topics]
        assert covered[0] == [(each, 0) for each in ids[0][: counts[0]]]
        assert covered[1] == [(ids[1][0], 3), *((each, 0) for each in ids[1][1 : counts[1]])]
        assert covered[2] == [(ids[2][0], 0), (ids[2][1], 0)]
        assert (found[1].start, found[2].end) == (start, end)
        assert found[0].end == Place(ids[0][counts[0] - 1], found[0].ledgers[-1].end_entry_id)
        source.close()


async def entries_of(topic: object) -> list[int]:
    """The ledgers of the topic that have entries."""
    return [row.ledger_id for row in topic.ledger.ledgers.rows() if row.entry_count]  # type: ignore[attr-defined]
