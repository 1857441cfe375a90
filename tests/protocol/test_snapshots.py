"""One snapshot behind statistics, broker statistics, metrics, the console, and `explain`: all of them report the same figures."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.protocol.test_topic_stats import AT_ONCE, KEYS, NAME, PATH, TYPES, attached, received
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.rest import call


async def document(broker: MemoryBroker, path: str) -> Any:
    answer = await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}{path}", "GET")
    assert answer.status == 200, answer.text
    return answer.json


async def metrics(broker: MemoryBroker, prefix: str) -> dict[str, float]:
    """Return the samples of subscription `s` or its only consumer, by name without the prefix."""
    page = (await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics", "GET")).text
    found = re.findall(rf'^{prefix}(\w+)\{{[^}}]*subscription="s"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize("kind", TYPES)
async def test_all_pages_report_the_figures_of_the_snapshot(kind: str) -> None:
    async with memory_broker(**AT_ONCE, expose_consumer_level_metrics_in_prometheus=True) as broker:  # type: ignore[arg-type]
        topic = await broker.topic(NAME)
        consumer, peer = await attached(topic, "c", kind, permits=30)
        positions = await broker.publish(topic, 40, KEYS)
        await broker.until(received(peer, count=30))
        acknowledge(consumer, positions[:4] + positions[6:8])
        await broker.end_window(10)
        unacked = 24 if "Shared" in kind else 0

        stats = (await document(broker, f"/admin/v2{PATH}/stats"))["subscriptions"]["s"]
        tree = await document(broker, "/admin/v2/broker-stats/topics")
        short = _find(tree, NAME)["subscriptions"]["s"]
        of_subscription = await metrics(broker, "pulsar_subscription_")
        of_consumer = await metrics(broker, "pulsar_consumer_")
        explained = await document(broker, f"/admin/v2{PATH}/subscription/s/explain")

        assert [page["msgBacklog"] for page in (stats, short)] == [34, 34]
        assert of_subscription["back_log"] == explained["subject"]["backlogEntries"] == 34
        assert {page["type"] for page in (stats, short, explained["subject"])} == {kind}
        assert stats["unackedMessages"] == of_subscription["unacked_messages"] == unacked
        assert short.get("unackedMessages", 0) == unacked
        assert short["totalNonContiguousDeletedMessagesRange"] == stats["nonContiguousDeletedMessagesRanges"] == 1
        (row,), (short_row,) = stats["consumers"], short["consumers"]
        assert row["availablePermits"] == short_row["availablePermits"] == of_consumer["available_permits"] == 0
        assert row["unackedMessages"] == of_consumer["unacked_messages"] == unacked


def _find(tree: Any, name: str) -> Any:
    """Return the leaf with that key of nested dictionaries."""
    if name in tree:
        return tree[name]
    return next(found for each in tree.values() if isinstance(each, dict) and (found := _find(each, name)))
