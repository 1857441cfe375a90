"""What REST does to topics, subscriptions and all partitions at once, with clients connected and without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.entry_filters import EntryFilter, FilteredEntry, Verdict
from pybroker.broker.topic.topic import Topic
from pybroker.cluster.bundles import find_bundle
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.names import TopicName
from pybroker.model.position import Position

NAME = "persistent://public/default/t"
PATH = "/persistent/public/default/t"
EARLIEST = {"ledgerId": -1, "entryId": -1}
PARTITIONS = 3


async def partitions(broker: MemoryBroker) -> list[Topic]:
    """The partitions of the topic, each with two messages."""
    assert (await broker.rest("PUT", f"{PATH}/partitions", PARTITIONS)).status == 204
    topics = [await broker.topic(f"{NAME}-partition-{index}") for index in range(PARTITIONS)]
    for topic in topics:
        await broker.publish(topic, 2)
    return topics


def backlogs(topics: Sequence[Topic], name: str = "s") -> list[int]:
    return [topic.subscriptions[name].cursor.backlog_entries for topic in topics]


async def statuses(broker: MemoryBroker, *calls: tuple[str, str] | tuple[str, str, object]) -> list[int]:
    return [(await broker.rest(method, f"{PATH}/{path}", *body)).status for method, path, *body in calls]


# --- unload ----------------------------------------------------------------------------------------------------------


async def test_an_unloaded_topic_tells_its_clients_and_comes_back_as_it_was(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    positions = await broker.publish(topic, 4)
    broker.producer(topic, peer)
    await broker.until(lambda: len(peer.delivered) == 4)
    acknowledge(consumer, [positions[1], positions[2]])
    assert (await broker.rest("PUT", f"{PATH}/unload")).status == 204
    assert (peer.closed_producers, peer.closed_consumers, broker.service.loaded.persistent) == ([1], [1], {})
    again = RecordingPeer()
    await broker.consumer(await broker.topic(NAME), "s", again)
    await broker.until(lambda: len(again.delivered) == 2)
    assert again.delivered == [positions[0], positions[3]]


async def test_a_topic_that_is_not_loaded_is_not_loaded_to_unload_it(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", f"{PATH}/unload")).status == 404
    await broker.topic(NAME)
    assert await statuses(broker, ("PUT", "unload"), ("PUT", "unload")) == [204, 204]
    assert not broker.service.loaded.persistent


async def test_calls_to_unload_and_delete_at_once_get_along(broker: MemoryBroker) -> None:
    for _ in range(5):
        topic = await broker.topic(NAME)
        await broker.publish(topic, 3)
        await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
        calls = [
            ("PUT", f"{PATH}/unload"),
            ("POST", f"{PATH}/subscription/s/skip/1"),
            ("PUT", f"{PATH}/unload"),
            ("POST", f"{PATH}/subscription/s/resetcursor/0"),
            ("DELETE", f"{PATH}?force=true"),
            ("GET", f"{PATH}/subscription/s/position/1"),
            ("POST", f"{PATH}/subscription/s/skip_all"),
            ("POST", f"{PATH}/trim"),
            ("GET", f"{PATH}/internal-info"),
            ("POST", f"{PATH}/terminate"),
            ("PUT", f"{PATH}/unload"),
        ]
        answers = await asyncio.gather(*(broker.rest(method, path) for method, path in calls))
        assert all(answer.status in {200, 204, 404, 412, 503} for answer in answers), answers
        # Where the deletion came while the topic was being unloaded, a terminated one is left.
        assert (await broker.rest("DELETE", f"{PATH}?force=true")).status in {204, 404}
    assert broker.service.runtime.stats.bugs == 0


# --- partitioned topics ----------------------------------------------------------------------------------------------


async def test_a_subscription_of_a_partitioned_topic_is_one_on_every_partition(broker: MemoryBroker) -> None:
    topics = await partitions(broker)
    await broker.rest("PUT", f"{PATH}-partition-1/subscription/s", EARLIEST)
    assert (await broker.rest("GET", f"{PATH}/subscriptions")).json == ["s"]
    create = ("PUT", "subscription/s", {**EARLIEST, "properties": {"a": "b"}})
    assert await statuses(broker, create, create) == [204, 409]
    assert backlogs(topics) == [2, 2, 2]
    assert (await broker.rest("GET", f"{PATH}/subscription/s/properties")).json == {"a": "b"}
    assert await statuses(broker, ("PUT", "subscription/s/properties", {"c": "d"})) == [204]
    assert [topic.subscriptions["s"].properties for topic in topics] == [{"c": "d"}] * 3
    assert await statuses(broker, ("DELETE", "subscription/s"), ("DELETE", "subscription/s")) == [204, 404]
    assert not any(topic.subscriptions for topic in topics)


async def test_what_is_done_to_all_partitions_is_done_to_those_that_can(broker: MemoryBroker) -> None:
    topics = await partitions(broker)
    await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
    assert await statuses(broker, ("POST", "subscription/s/skip_all")) == [204]
    assert backlogs(topics) == [0, 0, 0]
    assert await statuses(broker, ("POST", "subscription/s/resetcursor/0")) == [204]
    assert backlogs(topics) == [2, 2, 2]
    await broker.rest("DELETE", f"{PATH}-partition-1/subscription/s")
    assert await statuses(broker, ("POST", "subscription/s/skip_all")) == [404]
    assert backlogs([topics[0], topics[2]]) == [0, 0]
    consumer = await broker.consumer(topics[2], "s", RecordingPeer())
    assert await statuses(broker, ("DELETE", "subscription/s")) == [404]
    assert [list(topic.subscriptions) for topic in topics] == [[], [], ["s"]], "the one with a consumer stays"
    consumer.detach()
    assert await statuses(broker, ("DELETE", "subscription/s")) == [404]
    assert not topics[2].subscriptions


async def test_expiry_of_a_partitioned_topic_is_refused_when_a_partition_had_nothing(broker: MemoryBroker) -> None:
    topics = await partitions(broker)
    await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
    broker.clock.now_ms += 10_000
    await broker.rest("POST", f"{PATH}-partition-1/subscription/s/skip_all")
    assert await statuses(broker, ("POST", "subscription/s/expireMessages/5")) == [409]
    assert backlogs(topics) == [0, 0, 0]
    assert await statuses(broker, ("POST", "all_subscription/expireMessages/5")) == [409]


async def test_partitions_are_unloaded_trimmed_truncated_and_terminated_together(broker: MemoryBroker) -> None:
    topics = await partitions(broker)
    await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
    assert await statuses(broker, ("PUT", "unload"), ("POST", "trim")) == [204, 200]
    assert all(topic.is_fenced for topic in topics)
    ended = await broker.rest("POST", f"{PATH}/terminate/partitions")
    assert [ended.json[str(index)]["entryId"] for index in range(PARTITIONS)] == [1, 1, 1]
    assert all(topic.ledger.is_terminated for topic in broker.service.loaded.persistent.values())
    assert (await broker.rest("POST", f"{PATH}/terminate/partitions")).json == ended.json
    assert await statuses(broker, ("DELETE", "truncate")) == [204]
    assert all(
        not topic.subscriptions["s"].cursor.backlog_entries for topic in broker.service.loaded.persistent.values()
    )


async def test_what_is_kept_of_a_partitioned_topic_is_shown_for_each_partition(broker: MemoryBroker) -> None:
    topics = await partitions(broker)
    info = (await broker.rest("GET", f"{PATH}/internal-info")).json
    assert (info["version"], sorted(info["partitions"])) == (0, [str(topic.name) for topic in topics])
    summary = (await broker.rest("GET", f"{PATH}/backlog")).json
    assert (summary["topicName"], summary["totalMessages"]) == ("public/default/persistent/t", 6)
    assert await statuses(
        broker, ("PUT", "subscription/s"), ("POST", "subscription/s/replicatedSubscriptionStatus", True)
    )
    shown = (await broker.rest("GET", f"{PATH}/subscription/s/replicatedSubscriptionStatus")).json
    assert shown == {str(topic.name): True for topic in topics}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "terminate", 405),
        ("POST", "subscription/s/skip/1", 405),
        ("POST", "subscription/s/resetcursor", 405),
        ("POST", "subscription/s/expireMessages", 405),
        ("POST", "subscription/s/analyzeBacklog", 405),
        ("PUT", "backlogSize", 405),
        ("GET", "lastMessageId", 404),
        ("GET", "internalStats", 404),
        ("GET", "compaction", 404),
        ("GET", "offload", 404),
        ("PUT", "offload", 404),
    ],
)
async def test_what_only_one_topic_can_do_is_refused(broker: MemoryBroker, method: str, path: str, status: int) -> None:
    await partitions(broker)
    await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
    assert await statuses(broker, (method, path, EARLIEST)) == [status]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "terminate", 406),
        ("POST", "terminate/partitions", 405),
        ("POST", "trim", 405),
        ("DELETE", "truncate", 412),
        ("GET", "internal-info", 405),
        ("GET", "compaction", 405),
        ("PUT", "compaction", 405),
        ("GET", "offload", 405),
        ("PUT", "offload", 405),
        ("PUT", "backlogSize", 405),
        ("GET", "lastMessageId", 405),
        ("PUT", "subscription/s", 400),
        ("POST", "subscription/s/skip/1", 405),
        ("POST", "subscription/s/skip_all", 405),
        ("POST", "subscription/s/resetcursor/1", 405),
        ("POST", "subscription/s/resetcursor", 405),
        ("POST", "subscription/s/expireMessages/1", 405),
        ("POST", "subscription/s/expireMessages", 405),
        ("POST", "all_subscription/expireMessages/1", 405),
        ("POST", "subscription/s/analyzeBacklog", 405),
    ],
)
async def test_what_needs_a_persistent_topic_says_so(broker: MemoryBroker, method: str, path: str, status: int) -> None:
    await broker.service.topics.any(TopicName.parse("non-persistent://public/default/t"), may_create=True)
    answer = await broker.rest(method, f"/non-persistent/public/default/t/{path}", EARLIEST)
    assert answer.status == status
    assert answer.json["reason"]


# --- one topic -------------------------------------------------------------------------------------------------------


async def test_a_terminated_topic_takes_every_call_but_messages(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    (_, last) = await broker.publish(topic, 2)
    assert (await broker.rest("POST", f"{PATH}/terminate")).json["entryId"] == last.entry_id
    assert await statuses(
        broker,
        ("PUT", "subscription/s", EARLIEST),
        ("PUT", "unload"),
        ("GET", "subscription/s/position/2"),
        ("POST", "subscription/s/skip/1"),
        ("POST", "subscription/s/resetcursor/0"),
        ("POST", "subscription/s/skip_all"),
        ("GET", "lastMessageId"),
        ("POST", "trim"),
        ("DELETE", "truncate"),
        ("GET", "internal-info"),
        ("POST", "terminate"),
        ("DELETE", "subscription/s"),
    ) == [204, 204, 200, 204, 204, 204, 200, 200, 204, 200, 200, 204]


async def test_what_is_stored_of_a_topic_is_shown(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 2)
    await broker.rest("PUT", f"{PATH}/unload")
    topic = await broker.topic(NAME)
    await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
    info = (await broker.rest("GET", f"{PATH}/internal-info")).json
    sealed, current = info["ledgers"]
    assert (sealed["entries"], sealed["size"], sealed["isOffloaded"]) == (2, topic.ledger.size_bytes, False)
    assert sealed["timestamp"] == broker.clock.now_ms
    assert (current["ledgerId"], "entries" in current) == (topic.ledger.current_ledger_id, False)
    if not broker.service.metadata_store.is_shared:  # ZooKeeper dates the creation by its own clock
        assert info["creationDate"] == "2023-11-14T22:13:20Z"
    assert info["cursors"]["s"]["markDelete"] == {"ledgerId": sealed["ledgerId"], "entryId": -1}
    last = (await broker.rest("POST", f"{PATH}/terminate")).json
    info = (await broker.rest("GET", f"{PATH}/internal-info")).json
    assert info["terminatedPosition"] == {"ledgerId": last["ledgerId"], "entryId": last["entryId"]}


async def test_trimming_drops_what_nobody_needs_any_more() -> None:
    async with memory_broker(LedgerLimits(max_entries_per_ledger=2, min_rollover_ms=0)) as broker:
        topic = await broker.topic(NAME)
        await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
        for _ in range(3):
            await broker.publish(topic, 2)
        await broker.rest("POST", f"{PATH}/subscription/s/skip/4")
        assert await statuses(broker, ("POST", "trim")) == [200]
        assert topic.ledger.ledgers.entry_count <= 4


async def test_a_compaction_runs_once_at_a_time_and_says_how_it_went(broker: MemoryBroker) -> None:
    assert await statuses(broker, ("GET", "compaction"), ("PUT", "compaction")) == [404, 404]
    topic = await broker.topic(NAME)
    assert (await broker.rest("GET", f"{PATH}/compaction")).json == {"status": "NOT_RUN", "lastError": ""}
    async with broker.service.broker_context.compaction_slot:
        assert await statuses(broker, ("PUT", "compaction")) == [204]
        assert (await broker.rest("GET", f"{PATH}/compaction")).json == {"status": "RUNNING", "lastError": ""}
        refused = await broker.rest("PUT", f"{PATH}/compaction")
        assert (refused.status, refused.json["reason"]) == (409, "Compaction already in progress")
    await broker.until(lambda: topic.compaction.status != "RUNNING")
    assert (await broker.rest("GET", f"{PATH}/compaction")).json == {"status": "SUCCESS", "lastError": ""}


async def test_a_compaction_that_cannot_read_is_an_error_and_the_next_one_goes_on(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 3, keys=["a"])

    async def unreadable(*_: object) -> EntryRun:
        raise StoreError("the disk says no")

    with monkeypatch.context() as patched:
        patched.setattr(topic.ledger, "read", unreadable)
        assert await statuses(broker, ("PUT", "compaction")) == [204]
        await broker.until(lambda: topic.compaction.status != "RUNNING")
    assert (await broker.rest("GET", f"{PATH}/compaction")).json == {"status": "ERROR", "lastError": "the disk says no"}
    assert await statuses(broker, ("PUT", "compaction")) == [204]
    await broker.until(lambda: topic.compaction.status != "RUNNING")
    stats = (await broker.rest("GET", f"{PATH}/stats")).json
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 2
    assert (await broker.rest("GET", f"{PATH}/internalStats")).json["compactedLedger"]["entries"] == 1


async def test_an_offload_fails_in_the_background_for_want_of_a_place(broker: MemoryBroker) -> None:
    await broker.topic(NAME)
    resting = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    shown = (await broker.rest("GET", f"{PATH}/offload")).json
    assert shown == {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": resting}
    assert await statuses(broker, ("PUT", "offload"), ("PUT", "offload", EARLIEST)) == [400, 204]
    shown = (await broker.rest("GET", f"{PATH}/offload")).json
    assert (shown["status"], "tiered storage" in shown["lastError"]) == ("ERROR", True)


async def test_a_subscription_says_whether_it_is_replicated_and_keeps_it(broker: MemoryBroker) -> None:
    await broker.topic(NAME)
    path = "subscription/s/replicatedSubscriptionStatus"
    assert await statuses(broker, ("GET", path), ("POST", path, True)) == [404, 404]
    await broker.rest("PUT", f"{PATH}/subscription/s?replicated=true", {**EARLIEST, "properties": {"a": "b"}})
    assert (await broker.rest("GET", f"{PATH}/{path}")).json == {NAME: True}
    assert await statuses(broker, ("PUT", "subscription/s/properties", {"c": "d"}), ("PUT", "unload")) == [204, 204]
    assert (await broker.rest("GET", f"{PATH}/{path}")).json == {NAME: True}
    assert (await broker.rest("GET", f"{PATH}/subscription/s/properties")).json == {"c": "d"}
    assert await statuses(broker, ("POST", path, False), ("POST", path)) == [204, 400]
    assert (await broker.rest("GET", f"{PATH}/{path}")).json == {NAME: False}


# --- analysis of a backlog -------------------------------------------------------------------------------------------


class EveryThird(EntryFilter):
    """Rejects the third entry of each ledger, and wants to see the fourth later."""

    def judge(self, entry: FilteredEntry) -> Verdict:
        return {2: Verdict.REJECT, 3: Verdict.RESCHEDULE}.get(entry.position.entry_id, Verdict.ACCEPT)


async def test_a_backlog_is_counted_entry_by_entry_with_what_filters_make_of_it(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 4)
    positions += await broker.publish(topic, 1, messages_each=5)
    acknowledge(consumer, [positions[0], positions[1]])
    broker.service.broker_context.entry_filters.configured = (EveryThird(),)
    assert (await broker.rest("POST", f"{PATH}/subscription/s/analyzeBacklog")).json == {
        "entries": 3,
        "messages": 7,
        "markerMessages": 0,
        "filterRejectedEntries": 1,
        "filterAcceptedEntries": 1,
        "filterRescheduledEntries": 1,
        "filterRejectedMessages": 1,
        "filterAcceptedMessages": 5,
        "filterRescheduledMessages": 1,
        "aborted": False,
        "firstMessageId": str(positions[2]),
        "lastMessageId": str(positions[4]),
    }


async def test_a_backlog_is_counted_from_a_message_on_and_without_what_is_acknowledged(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 6)
    acknowledge(consumer, [positions[0], positions[3]])
    for start, entries in (
        (None, 4),
        (EARLIEST, 5),
        (id_of(positions[2]), 3),
        (id_of(positions[3]), 2),
        ({"ledgerId": 99_999, "entryId": 0}, 0),
    ):
        found = (await broker.rest("POST", f"{PATH}/subscription/s/analyzeBacklog", start)).json
        assert (found["entries"], "firstMessageId" in found) == (entries, entries > 0), start


@pytest.mark.parametrize("limit", ["entries", "time"])
async def test_a_long_analysis_ends_at_its_limit(limit: str) -> None:
    limits = {
        "entries": ("subscription_backlog_scan_max_entries", 3),
        "time": ("subscription_backlog_scan_max_time_ms", 0),
    }
    setting, value = limits[limit]
    async with memory_broker(None, **{setting: value}) as broker:  # type: ignore[arg-type]
        topic = await broker.topic(NAME)
        await broker.publish(topic, 150)
        await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
        found = (await broker.rest("POST", f"{PATH}/subscription/s/analyzeBacklog")).json
        assert (found["aborted"], found["entries"]) == (True, {"entries": 3, "time": 100}[limit])


def id_of(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


# --- the subscriptions of a namespace --------------------------------------------------------------------------------


async def test_subscriptions_of_a_name_are_deleted_in_a_namespace_or_a_bundle(broker: MemoryBroker) -> None:
    names = [f"persistent://public/default/t{index}" for index in range(8)]
    topics = [await broker.topic(name) for name in names]
    for topic in topics:
        await topic.subscription("s", True, True, {})
        await topic.subscription("other", True, True, {})
    boundaries = (await broker.rest("GET", "/namespaces/public/default/bundles")).json["boundaries"]
    bundles = [str(find_bundle(topic.name, boundaries)) for topic in topics]
    base = "/namespaces/public/default"
    assert (await broker.rest("POST", f"{base}/{bundles[0]}/unsubscribe/s")).status == 204
    for topic, bundle in zip(topics, bundles, strict=True):
        assert ("s" in topic.subscriptions) == (bundle != bundles[0])
    consumer = await broker.consumer(topics[0], "s", RecordingPeer())
    assert (await broker.rest("POST", f"{base}/unsubscribe/s")).status == 412
    assert [name for topic in topics for name in topic.subscriptions].count("s") == 1, "others are deleted all the same"
    consumer.detach()
    assert (await broker.rest("POST", f"{base}/unsubscribe/s")).status == 204
    assert all(list(topic.subscriptions) == ["other"] for topic in topics)
    assert (await broker.rest("POST", f"{base}/unsubscribe/none")).status == 204
    assert (await broker.rest("POST", "/namespaces/public/missing/unsubscribe/s")).status == 404
    assert (await broker.rest("POST", f"{base}/0x00000000_0x00000001/unsubscribe/s")).status == 412


async def test_backlogs_are_cleared_on_partitions_that_are_not_loaded(broker: MemoryBroker) -> None:
    await partitions(broker)
    await broker.rest("PUT", f"{PATH}/subscription/s", EARLIEST)
    await broker.rest("PUT", f"{PATH}/unload")
    assert (await broker.rest("POST", "/namespaces/public/default/clearBacklog/s")).status == 204
    topics = [await broker.topic(f"{NAME}-partition-{index}") for index in range(PARTITIONS)]
    assert backlogs(topics) == [0, 0, 0]
