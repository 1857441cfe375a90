"""The reader of Spark and of the tables on a broker with ledgers on BookKeeper, which has no segment files."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.pulsar_layout import Layout
from tests.support.rest import call
from tests.unit.managed_ledger.stack import SMALL, settled

from pybroker.broker_assembly import Stores
from pybroker.client.access import Access
from pybroker.reading.entry_source import ReadingFailed
from pybroker.reading.positions import EntryRange
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.reading.transports.bulk_source import BulkSource

TOPIC = "persistent://public/default/a topic"
ENTRIES = 25
"""In three ledgers."""


def read_all(broker: MemoryBroker, mode: str, directory: Path | None = None) -> tuple[type[object], int]:
    """Return the type of the source, and the number of entries that it has read."""
    access = Access("pulsar://127.0.0.1:1", admin_url=f"http://127.0.0.1:{broker.port}")
    with contextlib.closing(open_source(SourceOptions(access, mode, directory, patience_s=5))) as source:
        plan = source.plan(TOPIC)
        assert len(plan.ledgers) == 3
        ranges = [EntryRange(TOPIC, each.ledger_id, each.first_entry_id, each.end_entry_id) for each in plan.ledgers]
        return type(source), sum(len(run.starts) for each in ranges for run in source.read(each))


async def test_reader_uses_the_bulk_endpoint_and_the_broker_says_why(tmp_path: Path) -> None:
    layout = Layout()
    bookies = layout.broker()
    stores = Stores(layout.metadata, bookies.store, bookies.cursors, bookies.records)
    async with memory_broker(SMALL, stores=stores, system_topic_enabled=False) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        for _ in range(ENTRIES // 5):
            await broker.publish(topic, 5)
            await settled(topic.ledger)
        for directory in (None, tmp_path):
            assert await asyncio.to_thread(read_all, broker, "auto", directory) == (BulkSource, ENTRIES)
        with pytest.raises(
            ReadingFailed,
            match="the segment files of the broker cannot be read: the broker does not store its ledgers in files",
        ):
            await asyncio.to_thread(read_all, broker, "segment")
        root = f"http://127.0.0.1:{broker.port}/admin/v3"
        answer = await asyncio.to_thread(call, f"{root}/entries/directory")
        assert answer.status == 404
        assert "does not store ledgers in local files (ledgerStore)" in answer.text
        snapshot = await asyncio.to_thread(call, f"{root}/data-snapshots", "POST")
        assert snapshot.status == 405
        assert "does not store data in local files (ledgerStore" in snapshot.text
    await bookies.crash()
