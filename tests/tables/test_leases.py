"""Ledgers that a reader has planned to read are not trimmed while it holds them."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.rest import Answer, call

from pybroker.broker.topic.topic import Topic
from pybroker.client.access import Access
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.reading.leases import Leases
from pybroker.reading.positions import Place
from pybroker.reading.read_options import SourceOptions

TOPIC = "persistent://public/default/t"
PATH = "/persistent/public/default"
SMALL = LedgerLimits(max_entries_per_ledger=10, min_rollover_ms=0)


async def entries(broker: MemoryBroker, method: str, path: str, body: object = None) -> Answer:
    url = f"http://127.0.0.1:{broker.port}/admin/v3/entries{path}"
    return await asyncio.to_thread(call, url, method, body=body)


async def filled(broker: MemoryBroker, name: str = TOPIC) -> Topic:
    """A topic of several sealed ledgers, of which nothing is kept but by leases."""
    topic = await broker.topic(name)
    topic.ledger.retention = RetentionLimits(-1, -1)
    while len(topic.ledger.ledgers) < 5:
        await broker.publish(topic, 10)
    return topic


async def hold(broker: MemoryBroker, ledger_id: int, reader: str = "r", topic: str = "t") -> dict[str, object]:
    body = {"reader": reader, "topics": [{"topic": topic, "start": [ledger_id, 0]}]}
    answer = await entries(broker, "POST", PATH + "/leases", body)
    assert answer.status == 200, answer
    found: dict[str, object] = answer.json["topics"][0]
    return found


async def test_ledgers_from_a_lease_on_stay_until_it_is_given_back() -> None:
    async with memory_broker(SMALL) as broker:
        topic = await filled(broker)
        ids = topic.ledger.ledgers.ledger_ids()
        assert (await hold(broker, ids[2]))["endsInMillis"] == 60_000
        await topic.ledger.truncate()
        assert topic.ledger.ledgers.ledger_ids()[: len(ids) - 2] == ids[2:]
        stats = (await broker.rest("GET", PATH + "/t/internalStats")).json
        assert [(each["reader"], each["ledgerId"]) for each in stats["readLeases"]] == [("r", ids[2])]
        listed = (await entries(broker, "GET", PATH + "/leases")).json
        assert [(each["topic"], each["reader"]) for each in listed] == [("t", "r")]
        assert (await entries(broker, "DELETE", PATH + "/leases/another")).json == []
        assert (await entries(broker, "DELETE", PATH + "/leases/r")).json == ["t"]
        await topic.ledger.truncate()
        assert topic.ledger.ledgers.ledger_ids()[0] > ids[2]
        assert "readLeases" not in (await broker.rest("GET", PATH + "/t/internalStats")).json
        # It is told what is gone to who asks too late.
        assert len((await hold(broker, ids[0]))["lost"]) >= 3  # type: ignore[arg-type]


async def test_a_lease_outlives_the_topic_that_is_unloaded_but_not_its_deletion() -> None:
    async with memory_broker(SMALL) as broker:
        topic = await filled(broker)
        ids = topic.ledger.ledgers.ledger_ids()
        await hold(broker, ids[1])
        await broker.service.topics.unload(topic)
        topic = await broker.topic(TOPIC)
        await topic.ledger.truncate()
        assert topic.ledger.ledgers.ledger_ids()[0] == ids[1]
        await broker.service.topics.delete(topic.name, force=True)
        assert (await hold(broker, ids[1]))["status"] == 404


async def test_leases_are_refused_with_a_reason() -> None:
    async with memory_broker(SMALL, max_read_leases_per_topic=1) as broker:
        await broker.topic(TOPIC)
        assert (await hold(broker, 1)).get("status", 200) == 200
        assert (await hold(broker, 1, "r2"))["status"] == 429
        assert (await hold(broker, 1, topic="missing"))["status"] == 404
        for reader in ["", "x" * 129]:
            answer = await entries(broker, "POST", PATH + "/leases", {"reader": reader, "topics": []})
            assert answer.status == 412
        many = [{"topic": "t", "start": [1, 0]}] * 2001
        assert (await entries(broker, "POST", PATH + "/leases", {"reader": "r", "topics": many})).status == 413
    async with memory_broker(SMALL, read_lease_max_duration_seconds=0) as broker:
        await broker.topic(TOPIC)
        assert (await hold(broker, 1))["status"] == 405


async def test_a_reader_renews_its_leases_by_itself_and_gives_them_back() -> None:
    async with memory_broker(SMALL, read_lease_duration_seconds=1) as broker:
        topic = await filled(broker)
        ids = topic.ledger.ledgers.ledger_ids()
        leases = Leases(SourceOptions(Access("", f"http://127.0.0.1:{broker.port}"), patience_s=5))
        await asyncio.to_thread(leases.hold, {TOPIC: Place(ids[1], 0)})
        held = broker.service.broker_context.read_leases

        def ends_ms() -> float:
            found = held.on(TOPIC, 0)
            return found[0].ends_ms if found else 0

        first_end_ms = ends_ms()
        await until(broker, lambda: ends_ms() > first_end_ms)
        await topic.ledger.truncate()
        assert topic.ledger.ledgers.ledger_ids()[0] == ids[1]
        await asyncio.to_thread(leases.close)
        assert held.topics() == []


async def until(broker: MemoryBroker, condition: Callable[[], bool]) -> None:
    waited: Awaitable[None] = broker.until(condition)
    await waited
