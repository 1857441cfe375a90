"""Policies and operations of topics over real HTTP on a real broker in memory: statuses, bodies, and what they change."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.memory_broker import MemoryBroker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.topic.topic import Topic
from pybroker.model.position import Position

NAMESPACE = "/namespaces/public/default"
TOPIC = "/persistent/public/default/t"
MISSING = "/persistent/public/default/missing"
QUOTA = {"limitSize": 1000, "limitTime": 60, "policy": "producer_request_hold"}
MB = 1 << 20


@pytest.fixture
async def filled(broker: MemoryBroker, topic: Topic) -> list[Position]:
    """The positions of ten messages, which subscription `s` has not read; there is another one."""
    await topic.subscription("s", True, True, {})
    await topic.subscription("other", True, True, {})
    return await broker.publish(topic, 10)


def backlog(topic: Topic, subscription: str = "s") -> int:
    return topic.subscriptions[subscription].cursor.backlog_entries


def rate(messages: int, size_bytes: int, period_s: int) -> dict[str, object]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": period_s,
    }


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("policy", "by_namespace", "by_topic", "default"),
    [
        (
            "retention",
            ({"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},) * 2,
            ({"retentionTimeInMinutes": 5, "retentionSizeInMB": 6},) * 2,
            {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        ),
        ("messageTTL", (60, 60), ("?messageTTL=30", 30), 0),
        (
            "dispatchRate",
            ({"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 2}, rate(10, 0, 2)),
            ({"dispatchThrottlingRateInByte": 99}, rate(0, 99, 0)),
            rate(0, 0, 1),
        ),
        (
            "subscriptionDispatchRate",
            ({"dispatchThrottlingRateInMsg": 10}, rate(10, 0, 0)),
            (rate(5, 6, 7), rate(5, 6, 7)),
            rate(0, 0, 1),
        ),
        (
            "subscribeRate",
            (
                {"subscribeThrottlingRatePerConsumer": 5},
                {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
            ),
            ({"ratePeriodInSecond": 7}, {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 7}),
            {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30},
        ),
        ("subscriptionExpirationTime", (5, 5), ("?subscriptionExpirationTime=7", 7), 0),
        (
            "autoSubscriptionCreation",
            ({"allowAutoSubscriptionCreation": False},) * 2,
            ({"allowAutoSubscriptionCreation": True},) * 2,
            {"allowAutoSubscriptionCreation": True},
        ),
    ],
)
async def test_a_policy_is_set_shown_applied_and_unset(
    broker: MemoryBroker,
    policy: str,
    by_namespace: tuple[object, object],
    by_topic: tuple[object, object],
    default: object,
) -> None:
    async def applied() -> object:
        return (await broker.rest("GET", f"{TOPIC}/{policy}?applied=true")).json

    for level in (NAMESPACE, TOPIC):
        unset = await broker.rest("GET", f"{level}/{policy}")
        assert (unset.status, unset.text) == (200, "")
    assert await applied() == default
    assert (await broker.rest("POST", f"{NAMESPACE}/{policy}", by_namespace[0])).status == 204
    assert (await broker.rest("GET", f"{NAMESPACE}/{policy}")).json == by_namespace[1]
    assert await applied() == by_namespace[1]
    in_query = by_topic[0] if isinstance(by_topic[0], str) else ""
    body = None if in_query else by_topic[0]
    assert (await broker.rest("POST", f"{TOPIC}/{policy}{in_query}", body)).status == 204
    assert (await broker.rest("GET", f"{TOPIC}/{policy}")).json == by_topic[1]
    assert await applied() == by_topic[1]
    assert (await broker.rest("DELETE", f"{TOPIC}/{policy}")).status == 204
    assert await applied() == by_namespace[1]
    assert (await broker.rest("DELETE", f"{NAMESPACE}/{policy}")).status == 204
    assert await applied() == default


@pytest.mark.usefixtures("topic")
async def test_quotas_of_both_types_are_set_shown_and_unset(broker: MemoryBroker) -> None:
    no_limit = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
    shown = {**QUOTA, "limit": 1000}
    for level in (NAMESPACE, TOPIC):
        assert (await broker.rest("GET", f"{level}/backlogQuotaMap")).json == {}
    applied = await broker.rest("GET", f"{TOPIC}/backlogQuotaMap?applied=true")
    assert applied.json == {"destination_storage": no_limit, "message_age": no_limit}
    for level in (NAMESPACE, TOPIC):
        assert (await broker.rest("POST", f"{level}/backlogQuota", QUOTA)).status == 204
        by_age = f"{level}/backlogQuota?backlogQuotaType=message_age"
        assert (await broker.rest("POST", by_age, {"policy": "producer_exception", "limitTime": 5})).status == 204
        quotas = (await broker.rest("GET", f"{level}/backlogQuotaMap")).json
        failing = {"limit": 0, "limitSize": 0, "limitTime": 5, "policy": "producer_exception"}
        assert quotas == {"destination_storage": shown, "message_age": failing}
        assert (await broker.rest("DELETE", by_age)).status == 204
        assert (await broker.rest("GET", f"{level}/backlogQuotaMap")).json == {"destination_storage": shown}
    assert (await broker.rest("POST", f"{TOPIC}/backlogQuota")).status == 204
    assert (await broker.rest("GET", f"{TOPIC}/backlogQuotaMap")).json == {}
    applied = await broker.rest("GET", f"{TOPIC}/backlogQuotaMap?applied=true")
    assert applied.json == {"destination_storage": shown, "message_age": no_limit}


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("level", [NAMESPACE, TOPIC])
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0}, 400),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 400),
        ("retention", {"retentionTimeInMinutes": "x"}, 400),
        ("backlogQuota", {"limitSize": 5}, 400),
        ("backlogQuota", {**QUOTA, "policy": "nonsense"}, 400),
        ("backlogQuota?backlogQuotaType=nonsense", QUOTA, 404),
    ],
)
async def test_a_value_that_makes_no_sense_is_refused(
    broker: MemoryBroker, level: str, path: str, body: object, status: int
) -> None:
    assert (await broker.rest("POST", f"{level}/{path}", body)).status == status


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{NAMESPACE}/messageTTL", -1, 412),
        (f"{NAMESPACE}/messageTTL", 1 << 31, 400),
        (f"{NAMESPACE}/messageTTL", "x", 400),
        (f"{NAMESPACE}/messageTTL", None, 400),
        (f"{NAMESPACE}/backlogQuota", None, 400),
        (f"{TOPIC}/messageTTL?messageTTL=-1", None, 412),
        (f"{TOPIC}/messageTTL?messageTTL=x", None, 404),
    ],
)
async def test_a_time_or_quota_that_makes_no_sense_is_refused(
    broker: MemoryBroker, path: str, body: object, status: int
) -> None:
    assert (await broker.rest("POST", path, body)).status == status


@pytest.mark.parametrize("policy", ["retention", "messageTTL", "backlogQuotaMap"])
async def test_policies_of_what_does_not_exist_are_not_found(broker: MemoryBroker, policy: str) -> None:
    for path in (MISSING, "/namespaces/public/no", "/persistent/public/no/t", "/non-persistent/public/default/t"):
        assert (await broker.rest("GET", f"{path}/{policy}")).status == 404, path


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("level", [NAMESPACE, TOPIC])
async def test_a_quota_and_retention_that_do_not_fit_are_refused_whichever_comes_second(
    broker: MemoryBroker, level: str
) -> None:
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    assert (await broker.rest("POST", f"{level}/retention", retention)).status == 204
    for limits, status in (
        ({"limitSize": 10 * MB, "limitTime": 0}, 412),
        ({"limitSize": -1, "limitTime": 600}, 412),
        ({"limitSize": 9 * MB, "limitTime": 599}, 204),
    ):
        assert (await broker.rest("POST", f"{level}/backlogQuota", {**QUOTA, **limits})).status == status, limits
    by_age = f"{level}/backlogQuota?backlogQuotaType=message_age"
    assert (await broker.rest("POST", by_age, {**QUOTA, "limitSize": -1, "limitTime": 6000})).status == 204
    smaller = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 9}
    assert (await broker.rest("POST", f"{level}/retention", smaller)).status == 412
    assert (await broker.rest("GET", f"{level}/retention")).json == retention


async def test_a_topics_quota_must_fit_the_retention_that_its_namespace_gives_it(
    broker: MemoryBroker, topic: Topic
) -> None:
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10}
    await broker.rest("POST", f"{NAMESPACE}/retention", retention)
    too_large = {**QUOTA, "limitSize": 10 * MB}
    assert (await broker.rest("POST", f"{TOPIC}/backlogQuota", too_large)).status == 412
    await broker.until(lambda: topic.ledger.retention.size_bytes == 10 * MB)


# --- operations ----------------------------------------------------------------------------------------------------------


async def test_cursors_are_moved_by_number_age_and_position(
    broker: MemoryBroker, topic: Topic, filled: list[Position]
) -> None:
    def at(index: int) -> dict[str, int]:
        return {"ledgerId": filled[index].ledger_id, "entryId": filled[index].entry_id}

    subscription = f"{TOPIC}/subscription/s"
    start_ms = broker.clock.now_ms
    for path, body, left in (
        ("skip/3", None, 7),
        ("skip/-1", None, 7),
        ("resetcursor", at(1), 9),
        ("expireMessages", at(4), 5),
        ("expireMessages", at(2), 5),
        ("skip_all", None, 0),
        (f"resetcursor/{start_ms}", None, 10),
        (f"resetcursor/{start_ms + 1}", None, 0),
        ("resetcursor", {"ledgerId": -1, "entryId": -1}, 10),
        ("resetcursor", {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}, 0),
        ("resetcursor", {}, 10),
    ):
        assert (await broker.rest("POST", f"{subscription}/{path}", body)).status == 204, path
        assert backlog(topic) == left, path
    assert backlog(topic, "other") == 10


async def test_expiry_by_age_is_refused_where_there_is_nothing_to_do(
    broker: MemoryBroker, topic: Topic, filled: list[Position]
) -> None:
    subscription = f"{TOPIC}/subscription/s"
    broker.clock.now_ms += 2000
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    assert (await broker.rest("POST", f"{subscription}/expireMessages/10")).status == 409
    consumer.detach()
    assert (await broker.rest("POST", f"{subscription}/expireMessages/10")).status == 204  # as Pulsar answers it
    assert (await broker.rest("POST", f"{subscription}/expireMessages/0")).status == 409
    assert backlog(topic) == 10
    assert (await broker.rest("POST", f"{subscription}/expireMessages/1")).status == 204
    assert backlog(topic) == 0
    assert (await broker.rest("POST", f"{subscription}/expireMessages/1")).status == 409
    assert (await broker.rest("POST", f"{TOPIC}/all_subscription/expireMessages/1")).status == 409
    assert backlog(topic, "other") == 0
    assert (await broker.rest("POST", f"{subscription}/expireMessages", {"ledgerId": 1 << 40})).status == 409


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "call", ["skip/1", "skip_all", "expireMessages/1", "expireMessages", "resetcursor/1", "resetcursor"]
)
async def test_what_is_asked_of_a_missing_subscription_or_topic_is_not_found(broker: MemoryBroker, call: str) -> None:
    assert (await broker.rest("POST", f"{TOPIC}/subscription/no/{call}", {})).status == 404
    assert (await broker.rest("POST", f"{MISSING}/subscription/s/{call}", {})).status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{TOPIC}/subscription/s/skip/x", 404),
        ("POST", f"{TOPIC}/subscription/s/resetcursor/x", 404),
        ("POST", f"{TOPIC}/subscription/s/resetcursor", 400),
        ("PUT", f"{TOPIC}/backlogSize", 400),
        ("POST", f"{MISSING}/terminate", 404),
        ("POST", "/non-persistent/public/default/t/terminate", 406),
        ("DELETE", f"{MISSING}/truncate", 404),
        ("GET", f"{MISSING}/internalStats", 404),
        ("GET", "/persistent/public/no/t/internalStats", 404),
        ("POST", "/namespaces/public/no/clearBacklog", 404),
        ("POST", f"{NAMESPACE}/0x00000000_0x40000001/clearBacklog", 412),
    ],
)
@pytest.mark.usefixtures("filled")
async def test_a_call_that_cannot_be_done_is_refused_with_pulsars_status(
    broker: MemoryBroker, method: str, path: str, status: int
) -> None:
    assert (await broker.rest(method, path)).status == status


async def test_the_bytes_behind_a_message_are_exact(broker: MemoryBroker, topic: Topic, filled: list[Position]) -> None:
    entry_bytes = topic.ledger.size_bytes // 10

    async def behind(ledger_id: int, entry_id: int) -> int:
        answer = await broker.rest("PUT", f"{TOPIC}/backlogSize", {"ledgerId": ledger_id, "entryId": entry_id})
        size: int = answer.json
        return size

    assert await behind(*filled[0]) == 9 * entry_bytes
    assert await behind(*filled[9]) == 0
    assert await behind(-1, -1) == 10 * entry_bytes
    assert await behind((1 << 63) - 1, (1 << 63) - 1) == 0


async def test_a_namespaces_backlog_is_cleared_whole_by_bundle_or_by_subscription(
    broker: MemoryBroker, topic: Topic, filled: list[Position]
) -> None:
    assert (await broker.rest("POST", f"{NAMESPACE}/clearBacklog/s")).status == 204
    assert (backlog(topic), backlog(topic, "other")) == (0, 10)
    bundles = (await broker.rest("GET", f"{NAMESPACE}/bundles")).json["boundaries"]
    for first, last in pairwise(bundles):
        assert (await broker.rest("POST", f"{NAMESPACE}/{first}_{last}/clearBacklog/no")).status == 204
        assert backlog(topic, "other") == 10
    for first, last in pairwise(bundles):
        assert (await broker.rest("POST", f"{NAMESPACE}/{first}_{last}/clearBacklog")).status == 204
    assert backlog(topic, "other") == 0
    await cursor_moves.reset(topic.subscriptions["s"], filled[0])
    assert (await broker.rest("POST", f"{NAMESPACE}/clearBacklog")).status == 204
    assert backlog(topic) == 0


async def test_termination_answers_with_the_last_message(broker: MemoryBroker, filled: list[Position]) -> None:
    last = {"ledgerId": filled[-1].ledger_id, "entryId": filled[-1].entry_id}
    for _ in range(2):
        answer = await broker.rest("POST", f"{TOPIC}/terminate")
        assert answer.json == {**last, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert (await broker.rest("GET", f"{TOPIC}/internalStats")).json["state"] == "Terminated"


@pytest.mark.usefixtures("filled")
async def test_internal_stats_show_ledgers_and_cursors(broker: MemoryBroker, topic: Topic) -> None:
    await cursor_moves.skip(topic.subscriptions["s"], 4)
    stats = (await broker.rest("GET", f"{TOPIC}/internalStats")).json
    ledger_id = topic.ledger.current_ledger_id
    assert stats["entriesAddedCounter"] == stats["numberOfEntries"] == stats["currentLedgerEntries"] == 10
    assert stats["totalSize"] == stats["currentLedgerSize"] == topic.ledger.size_bytes
    assert stats["lastConfirmedEntry"] == f"{ledger_id}:9"
    assert stats["state"] == "LedgerOpened"
    [row] = stats["ledgers"]
    assert (row["ledgerId"], row["entries"], row["size"]) == (ledger_id, 0, 0)  # as Pulsar shows the open one
    cursor = stats["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{ledger_id}:3"
    assert cursor["messagesConsumedCounter"] == 4
    assert cursor["individuallyDeletedMessages"] == "[]"
    assert cursor["state"] == "Open"
    assert cursor["active"] is False
    assert stats["lastLedgerCreatedTimestamp"].startswith("2023-11-14T22:13:20")


async def test_a_quota_check_can_be_asked_for(broker: MemoryBroker, topic: Topic, filled: list[Position]) -> None:
    producer = RecordingPeer()
    broker.producer(topic, producer)
    await broker.rest("POST", f"{NAMESPACE}/backlogQuota", {**QUOTA, "limitSize": 10, "limitTime": -1})
    assert (await broker.rest("GET", "/brokers/backlog-quota-check")).status == 204
    assert producer.closed_producers == [1]


@pytest.mark.usefixtures("topic")
async def test_a_rate_without_a_body_is_unset_on_a_namespace_and_left_alone_on_a_topic(broker: MemoryBroker) -> None:
    for level, left in ((NAMESPACE, None), (TOPIC, rate(1, 1, 1))):
        path = f"{level}/dispatchRate"
        assert (await broker.rest("POST", path, rate(1, 1, 1))).status == 204
        assert (await broker.rest("POST", path)).status == 204
        found = await broker.rest("GET", path)
        assert (found.json if found.text else None) == left
        assert (await broker.rest("POST", path, "ten")).status == 400
    for method, body in (("GET", None), ("POST", rate(1, 1, 1))):
        assert (await broker.rest(method, f"{MISSING}/dispatchRate", body)).status == 404
