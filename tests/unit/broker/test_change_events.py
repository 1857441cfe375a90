import json
from importlib import resources
from io import BytesIO
from typing import Any, cast

import fastavro
import pytest

from pybroker.broker.policies.change_events import encode_event
from pybroker.model.names import TopicName
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    EntryFilters,
    InactiveTopicPolicies,
    PersistencePolicies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
    SubscriptionPolicies,
    TopicPolicies,
)

SCHEMA = fastavro.parse_schema(
    json.loads(resources.files("pybroker.broker.policies").joinpath("change_events.avsc").read_text(encoding="utf-8"))
)
RETENTION = RetentionPolicies(5, 7)
RATE = DispatchRate(10, 20, True, 2)
QUOTA = BacklogQuota("producer_exception", limitSize=100, limitTime=-1)

# As Apache Pulsar 4.2.4 wrote them for the same policies of persistent://public/pc-1795285197/t in the cluster standalone.
START = "020402000202147374616e64616c6f6e650002021470657273697374656e74021a70632d31373935323835313937"
END = "02000200020c7075626c6963020274"
DESTINATION_STORAGE = "2664657374696e6174696f6e5f73746f72616765"
WRITTEN = [
    (
        TopicPolicies(retentionPolicies=RETENTION),
        "0200020000000000000000000000020000000000000000000000000000020e0a000000000000",
    ),
    (
        TopicPolicies(retentionPolicies=RETENTION, messageTTLInSeconds=77, maxProducerPerTopic=3),
        "02000200000000000000000000000200000000" + "0206000000029a010000000000020e0a000000000000",
    ),
    (
        TopicPolicies({"destination_storage": QUOTA}, None, 77, RATE, maxProducerPerTopic=3),
        f"02000202{DESTINATION_STORAGE}c80102c80101020200000000000000022814040100000002000000000206000000029a01"
        + "00" * 12,
    ),
]


def record_of(policies: TopicPolicies, topic: str = "persistent://t/ns/orders") -> dict[str, Any]:
    data = BytesIO(encode_event(TopicName.parse(topic), policies, "standalone"))
    record = cast("dict[str, Any]", fastavro.schemaless_reader(data, SCHEMA, None))
    assert not data.read()
    return record


@pytest.mark.parametrize(("policies", "middle"), WRITTEN)
def test_an_event_is_byte_for_byte_what_pulsar_writes(policies: TopicPolicies, middle: str) -> None:
    topic = TopicName.parse("persistent://public/pc-1795285197/t")
    assert encode_event(topic, policies, "standalone").hex() == START + middle + END


def test_an_event_names_its_topic() -> None:
    event = record_of(TopicPolicies())
    assert (event["actionType"], event["eventType"], event["replicateTo"]) == ("UPDATE", "TOPIC_POLICY", ["standalone"])
    said = event["topicPoliciesEvent"]
    assert [said[name] for name in ("domain", "tenant", "namespace", "topic")] == ["persistent", "t", "ns", "orders"]


def test_every_policy_is_in_the_event() -> None:
    everything = TopicPolicies(
        backlogQuotaMap={"message_age": QUOTA},
        retentionPolicies=RETENTION,
        messageTTLInSeconds=1,
        dispatchRate=RATE,
        subscriptionDispatchRate=RATE,
        subscribeRate=SubscribeRate(1, 2),
        subscriptionExpirationTimeMinutes=2,
        autoSubscriptionCreationOverride=AutoSubscriptionCreationOverride(True),
        delayedDeliveryPolicies=DelayedDeliveryPolicies(True, 100, 200),
        subscriptionPolicies={"sub": SubscriptionPolicies(RATE)},
        publishRate=PublishRate(1, 2),
        replicatorDispatchRate=RATE,
        maxProducerPerTopic=3,
        maxConsumerPerTopic=4,
        maxConsumersPerSubscription=5,
        maxSubscriptionsPerTopic=6,
        maxUnackedMessagesOnConsumer=7,
        maxUnackedMessagesOnSubscription=8,
        maxMessageSize=9,
        subscriptionTypesEnabled=["Shared", "Key_Shared"],
        dispatcherPauseOnAckStatePersistentEnabled=True,
        deduplicationEnabled=True,
        deduplicationSnapshotIntervalSeconds=10,
        persistence=PersistencePolicies(3, 2, 1, 0.5),
        inactiveTopicPolicies=InactiveTopicPolicies("delete_when_no_subscriptions", 60, True),  # type: ignore[arg-type]
        compactionThreshold=11,
        schemaCompatibilityStrategy="BACKWARD",
        schemaValidationEnforced=True,
        entryFilters=EntryFilters("a,b"),
        offloadPolicies={"managedLedgerOffloadDriver": "filesystem", "offloadersDirectory": "./offloaders"},  # type: ignore[arg-type]
        replicationClusters=["standalone"],
        shadowTopics=["persistent://t/ns/shadow"],
    )
    # One that is forgotten here is not looked at below.
    assert all(getattr(everything, field) not in (None, {}) for field in everything.__struct_fields__)
    said = record_of(everything)["topicPoliciesEvent"]["policies"]
    assert {name for name, value in said.items() if value in (None, {}, [])} == set()
    assert said["backLogQuotaMap"]["message_age"]["policy"] == "producer_exception"
    assert said["subscriptionPolicies"]["sub"]["dispatchRate"]["dispatchThrottlingRateInMsg"] == 10
    assert said["offloadPolicies"]["managedLedgerOffloadDriver"] == "filesystem"
    assert said["delayedDeliveryTickTimeMillis"] == 100
