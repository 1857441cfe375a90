import contextlib
import json
from importlib import resources
from io import BytesIO
from typing import Any, cast

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.broker.policies import topic_policy_table
from pybroker.broker.policies.policy_events import (
    BASE_PROPERTY,
    InvalidEvent,
    PolicyEvent,
    StoredPolicies,
    decode_event,
    encode_event,
    event_key,
    event_properties,
)
from pybroker.broker.policies.topic_policy_table import TopicPolicyTable
from pybroker.model.names import NamespaceName, TopicName
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
    to_pulsar_topic_policies,
)
from pybroker.model.position import EARLIEST, Position

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
    data = BytesIO(encode_event(TopicName.parse(topic), to_pulsar_topic_policies(policies), "standalone"))
    record = cast("dict[str, Any]", fastavro.schemaless_reader(data, SCHEMA, None))
    assert not data.read()
    return record


@pytest.mark.parametrize(("policies", "middle"), WRITTEN)
def test_an_event_is_byte_for_byte_what_pulsar_writes(policies: TopicPolicies, middle: str) -> None:
    topic = TopicName.parse("persistent://public/pc-1795285197/t")
    assert encode_event(topic, to_pulsar_topic_policies(policies), "standalone").hex() == START + middle + END


def test_an_event_names_its_topic() -> None:
    event = record_of(TopicPolicies())
    assert (event["actionType"], event["eventType"], event["replicateTo"]) == ("UPDATE", "TOPIC_POLICY", ["standalone"])
    said = event["topicPoliciesEvent"]
    assert [said[name] for name in ("domain", "tenant", "namespace", "topic")] == ["persistent", "t", "ns", "orders"]


def all_policies() -> TopicPolicies:
    return TopicPolicies(
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


def test_every_policy_is_in_the_event() -> None:
    everything = all_policies()
    # One that is forgotten here is not looked at below.
    assert all(getattr(everything, field) not in (None, {}) for field in everything.__struct_fields__)
    said = record_of(everything)["topicPoliciesEvent"]["policies"]
    assert {name for name, value in said.items() if value in (None, {}, [])} == set()
    assert said["backLogQuotaMap"]["message_age"]["policy"] == "producer_exception"
    assert said["subscriptionPolicies"]["sub"]["dispatchRate"]["dispatchThrottlingRateInMsg"] == 10
    assert said["offloadPolicies"]["managedLedgerOffloadDriver"] == "filesystem"
    assert said["delayedDeliveryTickTimeMillis"] == 100


TOPIC = TopicName.parse("persistent://t/ns/orders")
KEY = event_key(TOPIC)


def event_of(policies: TopicPolicies, *, is_global: bool = False) -> PolicyEvent:
    document = {**to_pulsar_topic_policies(policies), "isGlobal": is_global}
    return decode_event(TOPIC.namespace, KEY, encode_event(TOPIC, document, "c1"))


@pytest.mark.parametrize("policies", [TopicPolicies(), all_policies(), *(policies for policies, _ in WRITTEN)])
def test_decoded_event_equals_written_policies(policies: TopicPolicies) -> None:
    event = event_of(policies)
    assert (event.topic, event.is_global) == (TOPIC, False)
    assert event.stored is not None
    found, written = to_pulsar_topic_policies(event.stored.policies), to_pulsar_topic_policies(policies)
    # Pulsar's record of offload policies has properties that the document leaves out.
    assert found.pop("offloadPolicies", {}).items() >= written.pop("offloadPolicies", {}).items()
    assert found == written


def test_change_keeps_policies_that_this_broker_does_not_know() -> None:
    stored = StoredPolicies(TopicPolicies(messageTTLInSeconds=5), {"messageTTLInSeconds": 5, "addedLater": [1]})
    changed = stored.changed(TopicPolicies(maxProducerPerTopic=3))
    assert {name: value for name, value in changed.items() if value} == {"addedLater": [1], "maxProducerPerTopic": 3}


def test_message_without_value_deletes_local_or_global_policies() -> None:
    table = TopicPolicyTable()
    table.apply(event_of(TopicPolicies(messageTTLInSeconds=5)))
    table.apply(event_of(TopicPolicies(messageTTLInSeconds=6, maxProducerPerTopic=7), is_global=True))
    assert table.in_force(TOPIC) == TopicPolicies(messageTTLInSeconds=5, maxProducerPerTopic=7)
    table.apply(decode_event(TOPIC.namespace, event_key(TOPIC), None))
    assert table.in_force(TOPIC) == TopicPolicies(messageTTLInSeconds=6, maxProducerPerTopic=7)
    table.apply(decode_event(TOPIC.namespace, event_key(TOPIC, is_global=True), b""))
    assert table.in_force(TOPIC) == TopicPolicies()
    assert len(table) == 0


def test_topic_of_another_namespace_is_no_event() -> None:
    value = encode_event(TOPIC, {}, "c1")
    with pytest.raises(InvalidEvent, match="not a topic of t/other"):
        decode_event(NamespaceName("t", "other"), KEY, value)
    with pytest.raises(InvalidEvent, match="not a topic of t/ns"):
        decode_event(TOPIC.namespace, "persistent://t/other/orders", None)


@given(st.binary(max_size=400))
def test_random_value_is_no_event(value: bytes) -> None:
    with contextlib.suppress(InvalidEvent):
        decode_event(TOPIC.namespace, KEY, value)


@given(st.data())
def test_damaged_value_is_an_event_or_refused(data: st.DataObject) -> None:
    value = bytearray(encode_event(TOPIC, to_pulsar_topic_policies(all_policies()), "c1"))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidEvent):
        decode_event(TOPIC.namespace, KEY, bytes(value[: data.draw(st.integers(0, len(value)))]))


def ttl_event(ttl: int | None, base: Position | None = None) -> PolicyEvent:
    stored = None if ttl is None else StoredPolicies(TopicPolicies(messageTTLInSeconds=ttl), {})
    return PolicyEvent(TOPIC, False, stored, base)


def at(entry_id: int) -> Position:
    return Position(5, entry_id)


def test_base_of_a_change_is_in_the_properties_of_its_message() -> None:
    value = encode_event(TOPIC, {"messageTTLInSeconds": 5}, "c1")
    for base in (None, EARLIEST, Position(7, 3)):
        assert decode_event(TOPIC.namespace, KEY, value, event_properties(base)).base == base
    assert decode_event(TOPIC.namespace, KEY, value, {BASE_PROPERTY: "x"}).base is None


def test_change_with_an_outdated_base_is_not_applied() -> None:
    table = TopicPolicyTable()
    assert table.base_of(TOPIC) == EARLIEST
    assert table.apply(ttl_event(1, EARLIEST), at(0))
    assert not table.apply(ttl_event(2, EARLIEST), at(1))
    assert table.apply(ttl_event(3, at(0)), at(2))
    assert not table.apply(ttl_event(4, at(0)), at(3))
    assert table.in_force(TOPIC).messageTTLInSeconds == 3
    assert table.base_of(TOPIC) == at(2)


def test_event_without_base_is_always_applied() -> None:
    table = TopicPolicyTable()
    assert table.apply(ttl_event(1, EARLIEST), at(0))
    assert table.apply(ttl_event(2), at(1))
    assert not table.apply(ttl_event(3, at(0)), at(2))
    assert table.apply(ttl_event(None), at(3))
    assert not table.apply(ttl_event(4, at(1)), at(4)), "a deletion is newer"
    assert table.apply(ttl_event(5, at(3)), at(5))
    assert table.in_force(TOPIC).messageTTLInSeconds == 5


def test_outdated_event_that_compaction_has_kept_yields_to_the_repeated_change() -> None:
    """Compaction has removed the events at 0 and 1. The event at 2 was outdated; its broker repeats the change at 3."""
    table = TopicPolicyTable()
    assert table.apply(ttl_event(1, at(0)), at(2))
    assert table.apply(ttl_event(2, at(1)), at(3))
    assert table.in_force(TOPIC).messageTTLInSeconds == 2


def test_deletions_are_forgotten_above_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_policy_table, "MAX_DELETIONS", 2)
    table = TopicPolicyTable()
    names = [TopicName.parse(f"persistent://t/ns/{number}") for number in range(4)]
    table.apply(ttl_event(1), at(0))
    for number, name in enumerate(names, 1):
        table.apply(PolicyEvent(name, False, None), at(number))
    assert [table.base_of(name) for name in names] == [EARLIEST, EARLIEST, at(3), at(4)]
    assert table.base_of(TOPIC) == at(0)


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.none() | st.integers(1, 9)), max_size=30)


@given(EVENTS)
def test_table_has_last_event_of_each_key(events: list[tuple[str, bool, int | None]]) -> None:
    table = TopicPolicyTable()
    model: dict[tuple[str, bool], int | None] = {}
    for name, is_global, ttl in events:
        topic = TopicName.parse(f"persistent://t/ns/{name}")
        stored = None if ttl is None else StoredPolicies(TopicPolicies(messageTTLInSeconds=ttl), {})
        table.apply(PolicyEvent(topic, is_global, stored))
        model[name, is_global] = ttl
    for name in "abc":
        found = table.in_force(TopicName.parse(f"persistent://t/ns/{name}")).messageTTLInSeconds
        assert found == (model.get((name, False)) or model.get((name, True)))
