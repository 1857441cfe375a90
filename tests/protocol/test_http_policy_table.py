"""Every plain policy at both levels over real HTTP on a real broker in memory: set, shown, applied, refused and unset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker

from pybroker.admin.policies.policy_table import TABLE

NAMESPACE = "/namespaces/public/default"
TOPIC = "/persistent/public/default/t"
EMPTY, NOTHING = (200, ""), (204, "")


@dataclass(frozen=True)
class Sample:
    """Values of one policy: for each level the path, what is sent and what is shown then, and what is refused."""

    namespace: str
    topic: str
    by_namespace: Any
    by_topic: Any
    by_broker: Any = None
    """What is in force where nothing is set; None where there is no answer to that."""
    shown_of_namespace: Any = None
    """None: as sent."""
    shown_of_topic: Any = None
    refused: Any = "x"
    status: int = 400
    namespace_method: str = "POST"
    topic_method: str = "POST"
    unset_namespace: tuple[int, str] = EMPTY
    unset_topic: tuple[int, str] = EMPTY
    removed_topic: tuple[int, str] | None = None
    """None: as before it was set."""
    has_delete_of_namespace: bool = True
    has_delete_of_topic: bool = True
    is_in_query: bool = False


def rate(messages: int, period_s: int = 0) -> dict[str, object]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": 0,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": period_s,
    }


def some(messages: int) -> dict[str, int]:
    return {"dispatchThrottlingRateInMsg": messages}


def subscribe_rate(count: int) -> dict[str, int]:
    return {"subscribeThrottlingRatePerConsumer": count, "ratePeriodInSecond": 30}


def inactive(mode: str, seconds: int) -> dict[str, object]:
    return {
        "inactiveTopicDeleteMode": f"delete_when_{mode}",
        "maxInactiveDurationSeconds": seconds,
        "deleteWhileInactive": True,
    }


def copies(count: int, mark_delete_rate: float) -> dict[str, object]:
    return {
        "bookkeeperEnsemble": count,
        "bookkeeperWriteQuorum": count,
        "bookkeeperAckQuorum": count,
        "managedLedgerMaxMarkDeleteRate": mark_delete_rate,
    }


def delay(tick_ms: int) -> dict[str, object]:
    return {"active": True, "tickTime": tick_ms, "maxDeliveryDelayInMillis": 0}


def limit(namespace: str, topic: str, by_broker: int | None, unset_topic: tuple[int, str] = EMPTY) -> Sample:
    return Sample(namespace, topic, 5, 0, by_broker, refused=-1, status=412, unset_topic=unset_topic)


SAMPLES = [
    Sample("dispatchRate", "dispatchRate", some(5), some(6), rate(0, 1), rate(5), rate(6)),
    Sample("subscriptionDispatchRate", "subscriptionDispatchRate", some(5), some(6), rate(0, 1), rate(5), rate(6)),
    Sample("replicatorDispatchRate", "replicatorDispatchRate", some(5), some(6), rate(0, 1), rate(5), rate(6)),
    Sample(
        "publishRate",
        "publishRate",
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
        {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 6},
        unset_topic=NOTHING,
    ),
    Sample("subscribeRate", "subscribeRate", subscribe_rate(5), subscribe_rate(6), subscribe_rate(0)),
    limit("maxProducersPerTopic", "maxProducers", 0),
    limit("maxConsumersPerTopic", "maxConsumers", 0),
    limit("maxConsumersPerSubscription", "maxConsumersPerSubscription", None, NOTHING),
    limit("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", None, NOTHING),
    limit("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 50_000),
    limit("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", 200_000),
    Sample("maxTopicsPerNamespace", "", 5, None, refused=-1, status=412, unset_namespace=(200, "0")),
    Sample("", "maxMessageSize", None, 5, refused=5242881, status=412, unset_topic=NOTHING),
    Sample("messageTTL", "messageTTL", 60, 30, 0, refused=-1, status=412, is_in_query=True),
    Sample(
        "subscriptionExpirationTime", "subscriptionExpirationTime", 5, 7, 0, refused=-1, status=412, is_in_query=True
    ),
    Sample(
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        inactive("subscriptions_caught_up", 5),
        inactive("no_subscriptions", 6),
        inactive("no_subscriptions", 60),
        refused={"inactiveTopicDeleteMode": "x"},
    ),
    Sample(
        "autoTopicCreation",
        "",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        None,
        refused={"allowAutoTopicCreation": True, "topicType": "partitioned"},
        status=412,
    ),
    Sample(
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        {"allowAutoSubscriptionCreation": False},
        {"allowAutoSubscriptionCreation": True},
        {"allowAutoSubscriptionCreation": True},
    ),
    Sample(
        "persistence",
        "persistence",
        copies(3, 1.5),
        copies(2, 2.5),
        copies(1, 2.0),
        refused={"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2},
    ),
    Sample(
        "compactionThreshold",
        "compactionThreshold",
        500,
        0,
        0,
        refused=-1,
        status=412,
        namespace_method="PUT",
    ),
    Sample("delayedDelivery", "delayedDelivery", delay(2), delay(3), delay(1000)),
    Sample(
        "subscriptionTypesEnabled",
        "subscriptionTypesEnabled",
        ["Shared"],
        ["Failover"],
        refused=["x"],
        unset_namespace=(200, "[]"),
        unset_topic=NOTHING,
        removed_topic=(200, "[]"),
    ),
    Sample(
        "entryFilters",
        "entryFilters",
        None,
        None,
        {"entryFilterNames": ""},
        refused={"entryFilterNames": "unknown"},
    ),
    Sample(
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistent",
        None,
        None,
        by_broker=False,
        shown_of_namespace=True,
        shown_of_topic=True,
        refused=None,
        unset_namespace=(200, "false"),
        unset_topic=(200, "false"),
    ),
    Sample("deduplication", "deduplicationEnabled", True, False, by_broker=False),
    Sample(
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotInterval",
        60,
        0,
        refused=-1,
        status=412,
        has_delete_of_namespace=False,
    ),
    Sample("allowedTopicPropertyKeysForMetrics", "", ["a"], None),
    Sample(
        "schemaCompatibilityStrategy",
        "schemaCompatibilityStrategy",
        "BACKWARD",
        "FORWARD",
        "FULL",
        namespace_method="PUT",
        topic_method="PUT",
        unset_namespace=(200, '"UNDEFINED"'),
        has_delete_of_namespace=False,
    ),
    Sample(
        "schemaAutoUpdateCompatibilityStrategy",
        "",
        "Backward",
        None,
        namespace_method="PUT",
        unset_namespace=NOTHING,
        has_delete_of_namespace=False,
    ),
    Sample(
        "schemaValidationEnforced",
        "schemaValidationEnforced",
        True,
        False,
        by_broker=False,
        unset_namespace=(200, "false"),
        unset_topic=(200, "false"),
        has_delete_of_namespace=False,
        has_delete_of_topic=False,
    ),
    Sample("isAllowAutoUpdateSchema", "", False, None, unset_namespace=(200, "true"), has_delete_of_namespace=False),
    Sample("encryptionRequired", "", True, None, unset_namespace=(200, "false"), has_delete_of_namespace=False),
    Sample("subscriptionAuthMode", "", "Prefix", None, unset_namespace=(200, '"None"'), has_delete_of_namespace=False),
    Sample(
        "",
        "offloadPolicies",
        None,
        {"managedLedgerOffloadDriver": "filesystem"},
        refused={"managedLedgerOffloadDriver": "x"},
        status=412,
    ),
]


def test_every_row_of_the_table_has_a_sample() -> None:
    for level, sampled in (
        ("namespace", [sample.namespace for sample in SAMPLES]),
        ("topic", [sample.topic for sample in SAMPLES]),
    ):
        rows = [getattr(policy, level) for policy in TABLE]
        assert sorted(row.path for row in rows if row is not None) == sorted(filter(None, sampled))


def title(sample: Sample) -> str:
    return sample.namespace or sample.topic


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.namespace], ids=title)
async def test_a_policy_of_a_namespace_is_set_shown_refused_and_unset(broker: MemoryBroker, sample: Sample) -> None:
    path = f"{NAMESPACE}/{sample.namespace}"
    found = await broker.rest("GET", path)
    assert (found.status, found.text) == sample.unset_namespace
    if sample.by_namespace is not None or sample.shown_of_namespace is not None:
        assert (await broker.rest(sample.namespace_method, path, sample.by_namespace)).status == 204
        shown = sample.by_namespace if sample.shown_of_namespace is None else sample.shown_of_namespace
        assert (await broker.rest("GET", path)).json == shown
        assert await applied(broker, sample) in (None, shown)
    if sample.refused is not None:
        before = (await broker.rest("GET", path)).text
        assert (await broker.rest(sample.namespace_method, path, sample.refused)).status == sample.status
        assert (await broker.rest("GET", path)).text == before
    assert (await broker.rest("DELETE", path)).status == (204 if sample.has_delete_of_namespace else 412)
    if sample.has_delete_of_namespace:
        found = await broker.rest("GET", path)
        assert (found.status, found.text) == sample.unset_namespace
        assert await applied(broker, sample) == sample.by_broker


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.topic], ids=title)
async def test_a_policy_of_a_topic_is_set_shown_refused_and_unset(broker: MemoryBroker, sample: Sample) -> None:
    path = f"{TOPIC}/{sample.topic}"

    async def put(value: object) -> int:
        if sample.is_in_query:
            return (await broker.rest("POST", f"{path}?{sample.topic}={value}")).status
        return (await broker.rest(sample.topic_method, path, value)).status

    found = await broker.rest("GET", path)
    assert (found.status, found.text) == sample.unset_topic
    assert await applied(broker, sample) == sample.by_broker
    if sample.by_topic is not None or sample.shown_of_topic is not None:
        if sample.namespace and (sample.by_namespace is not None or sample.shown_of_namespace is not None):
            method = sample.namespace_method
            await broker.rest(method, f"{NAMESPACE}/{sample.namespace}", sample.by_namespace)
        assert await put(sample.by_topic) == 204
        shown = sample.by_topic if sample.shown_of_topic is None else sample.shown_of_topic
        value = (await broker.rest("GET", path)).json
        assert value == shown or value.items() >= shown.items()
        assert await applied(broker, sample) in (None, value)
    if sample.refused is not None:
        before = (await broker.rest("GET", path)).text
        assert await put(sample.refused) == sample.status
        assert (await broker.rest("GET", path)).text == before
    assert (await broker.rest("DELETE", path)).status == (204 if sample.has_delete_of_topic else 405)
    if sample.has_delete_of_topic:
        found = await broker.rest("GET", path)
        # An event of `__change_events` has no difference between a removed and an unset list.
        is_in_event = broker.service.ledgers.store.has_pulsar_layout
        expected = sample.unset_topic if is_in_event else sample.removed_topic or sample.unset_topic
        assert (found.status, found.text) == expected


async def applied(broker: MemoryBroker, sample: Sample) -> object:
    """What is in force for the topic, None where the policy has no answer to that."""
    if not sample.topic or sample.by_broker is None:
        return None
    return (await broker.rest("GET", f"{TOPIC}/{sample.topic}?applied=true")).json
