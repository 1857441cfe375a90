"""Ack holes over REST: what is acknowledged behind the first gap, how old that is, and what keeps ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call
from tests.support.transactions import send, txn

from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.topic.topic import Topic
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.rollover import LedgerLimits

AT = "/persistent/public/default/t"
ENTRIES = 5


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(LedgerLimits(max_entries_per_ledger=ENTRIES, min_rollover_ms=0)) as found:
        yield found


async def holes(broker: MemoryBroker, subscription: str = "s", query: str = "") -> Any:
    answer = await broker.rest("GET", f"{AT}/subscription/{subscription}/ackHoles{query}")
    assert answer.status == 200, answer.text
    return answer.json


async def test_the_gap_its_age_and_the_ranges_behind_it_are_shown(broker: MemoryBroker, topic: Topic) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = [position for _ in range(4) for position in await broker.publish(topic, ENTRIES)]
    await broker.quiet(topic)
    broker.clock.now_ms += 90_500
    assert (await holes(broker))["acknowledgedBehind"] == []
    acknowledge(consumer, [*positions[:2], *positions[3:5], positions[6], *positions[10:12]])
    found = await holes(broker)
    assert found["markDeletePosition"] == str(positions[1])
    published_ms = broker.clock.now_ms - 90_500
    assert found["oldestUnacked"] == {"messageId": str(positions[2]), "publishTime": published_ms, "ageMs": 90_500}
    ranges = [(positions[3], positions[4], 2), (positions[6], positions[6], 1), (positions[10], positions[11], 2)]
    assert found["acknowledgedBehind"] == [{"from": str(a), "to": str(b), "entries": n} for a, b, n in ranges]
    assert found["more"] == 0
    first = await holes(broker, query="?limit=1")
    assert (len(first["acknowledgedBehind"]), first["more"]) == (1, 2)
    acknowledge(consumer, positions)
    assert (await holes(broker))["oldestUnacked"] is None


async def test_what_keeps_a_ledger_is_named_each_with_what_it_keeps(broker: MemoryBroker, topic: Topic) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    other = await broker.consumer(topic, "other", RecordingPeer())
    positions = [position for _ in range(3) for position in await broker.publish(topic, ENTRIES)]
    await broker.quiet(topic)
    await broker.rest(
        "POST", "/namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    )
    acknowledge(consumer, positions[1:])
    acknowledge(other, positions)
    rows = [row for row in topic.ledger.ledgers.rows() if row.entry_count]
    found = (await holes(broker))["held"]
    assert (found["ledgers"], found["bytes"]) == (1, rows[0].size_bytes)
    reasons = {(each["kind"], each["name"]): each for each in found["reasons"]}
    assert reasons[("subscription", "s")] == {
        "kind": "subscription",
        "name": "s",
        "ledgers": 1,
        "bytes": rows[0].size_bytes,
        "firstLedger": rows[0].ledger_id,
    }
    assert ("subscription", "other") not in reasons
    assert reasons[("retention", None)]["firstLedger"] == rows[1].ledger_id
    assert reasons[("open-ledger", None)]["ledgers"] == 1

    leased = await asyncio.to_thread(
        call,
        f"http://127.0.0.1:{broker.port}/admin/v3/entries/persistent/public/default/leases",
        "POST",
        body={"reader": "r", "topics": [{"topic": "t", "start": [rows[1].ledger_id, 0]}]},
    )
    assert leased.status == 200
    reasons = {(each["kind"], each["name"]): each for each in (await holes(broker))["held"]["reasons"]}
    assert reasons[("lease", "r")]["firstLedger"] == rows[1].ledger_id

    await send(broker, topic, txn(5), 1)
    groups = ((positions[0].ledger_id, [positions[0].entry_id]),)
    assert topic.subscriptions["s"].transactions.hold(txn(6), Acknowledged(None, groups)) is None
    kinds = {(each["kind"], each["name"]) for each in (await holes(broker))["held"]["reasons"]}
    assert {("open-transaction", str(txn(5))), ("transaction-acknowledgements", str(txn(6)))} <= kinds


async def test_the_age_of_the_oldest_message_is_in_stats_and_metrics_and_costs_no_read_while_it_stays_the_oldest(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    await broker.consumer(topic, "done", RecordingPeer())
    positions = await broker.publish(topic, ENTRIES)
    await broker.quiet(topic)
    done = topic.subscriptions["done"]
    acknowledge(done.consumers[0], positions)
    reads: list[object] = []
    read = ManagedLedger.read_cached

    def counted(self: ManagedLedger, position: Any, entries: int, size_bytes: int) -> Any:
        reads.append(position)
        return read(self, position, entries, size_bytes)

    monkeypatch.setattr(ManagedLedger, "read_cached", counted)
    broker.clock.now_ms += 7_000
    for _ in range(3):
        stats = (await broker.rest("GET", f"{AT}/stats")).json["subscriptions"]
        assert stats["s"]["oldestUnackedMessageAgeSeconds"] == 7
        assert "oldestUnackedMessageAgeSeconds" not in stats["done"]
        await holes(broker)
    assert reads == [positions[0]]
    page = (await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("pybroker_subscription_oldest_unacked_age_seconds{")]
    ages = {line.split('subscription="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
    assert ages == {"s": 7, "done": -1}
    acknowledge(consumer, positions[:1])
    assert (await broker.rest("GET", f"{AT}/stats")).json["subscriptions"]["s"]["oldestUnackedMessageAgeSeconds"] == 7
    assert reads == positions[:2]


async def test_a_hundred_thousand_holes_are_answered_with_the_first_and_how_many_more_there_are(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    positions = [position for _ in range(10) for position in await broker.publish(topic, ENTRIES)]
    state = topic.subscriptions["s"].cursor.state
    for position in positions[1::2]:
        state.acknowledge(position.ledger_id, [position.entry_id])
    found = await holes(broker, query="?limit=3")
    assert [each["from"] for each in found["acknowledgedBehind"]] == [str(each) for each in positions[1:6:2]]
    assert found["more"] == 22
