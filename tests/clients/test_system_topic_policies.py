"""Topic policies in `__change_events`: changes, other brokers' events, junk, lost connections, deletion of the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from pybroker.broker.policies import system_topic_policies
from pybroker.broker.policies.policy_events import encode_event, event_key
from pybroker.broker.topic.topic import Topic
from pybroker.client import MessageProducer, PulsarClient, connect
from pybroker.embedding import embed
from pybroker.embedding.embedded_broker import EmbeddedBroker
from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.model import policies as documents
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import NamespacePolicies, TopicPolicies
from pybroker.model.position import Position

TOPIC = TopicName.parse("persistent://public/default/t")
EVENTS = "persistent://public/default/__change_events"
DEADLINE_S = 20.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with embed(tmp_path) as embedded:
        embedded.broker.service.keep_topic_policies_in_system_topics()
        yield embedded


@pytest.fixture
async def client(broker: EmbeddedBroker) -> AsyncIterator[PulsarClient]:
    async with connect(broker.service_url) as connected:
        yield connected


async def change(broker: EmbeddedBroker, topic: TopicName = TOPIC, **fields: object) -> None:
    def changed(policies: TopicPolicies) -> None:
        for name, value in fields.items():
            setattr(policies, name, value)

    await broker.broker.service.resources.update_topic_policies(topic, changed)


async def found(broker: EmbeddedBroker, topic: TopicName = TOPIC) -> TopicPolicies:
    return await broker.broker.service.resources.topic_policies(topic)


async def send_event(producer: MessageProducer, ttl: int, topic: TopicName = TOPIC, **more: object) -> None:
    value = encode_event(topic, {"messageTTLInSeconds": ttl, **more}, "standalone")
    await producer.send(value, key=event_key(topic, is_global=bool(more.get("isGlobal"))))


async def test_change_applies_to_loaded_topic_and_survives_restart(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    await client.producer(str(TOPIC))
    await change(broker, messageTTLInSeconds=5)
    await change(broker, maxProducerPerTopic=3)
    loaded = broker.broker.service.loaded.get(TOPIC)
    assert loaded is not None
    assert loaded.policies.max_producers == 3
    await broker.crash()
    await broker.restart()
    broker.broker.service.keep_topic_policies_in_system_topics()
    assert await found(broker) == TopicPolicies(messageTTLInSeconds=5, maxProducerPerTopic=3)


async def test_concurrent_changes_of_one_topic_all_apply(broker: EmbeddedBroker) -> None:
    fields = [
        "messageTTLInSeconds",
        "maxProducerPerTopic",
        "maxConsumerPerTopic",
        "maxMessageSize",
        "compactionThreshold",
    ]
    async with asyncio.TaskGroup() as group:
        for number, field in enumerate(fields, 1):
            group.create_task(change(broker, TOPIC, **{field: number}))
    assert await found(broker) == TopicPolicies(**{field: number for number, field in enumerate(fields, 1)})  # type: ignore[arg-type]


async def test_event_of_another_broker_applies_and_junk_is_skipped(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    await client.producer(str(TOPIC))
    events = await client.producer(EVENTS)
    await events.send(b"junk")
    await events.send(b"\x02\x00" * 30, key=str(TOPIC))
    await send_event(events, 1, TopicName.parse("persistent://other/ns/t"))
    await send_event(events, 4, maxProducerPerTopic=2, isGlobal=True)
    await send_event(events, 5)
    loaded = broker.broker.service.loaded.get(TOPIC)
    assert loaded is not None
    await until(lambda: loaded.policies.message_ttl_s == 5 and loaded.policies.max_producers == 2, 0.01)
    await events.send(None, key=event_key(TOPIC))
    await until(lambda: loaded.policies.message_ttl_s == 4, 0.01)
    assert await found(broker) == TopicPolicies()


async def test_compacted_deletions_do_not_block_first_reading(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_topic_policies, "LAST_MESSAGE_TIMEOUT_S", 0.5)
    events = await client.producer(EVENTS)
    await send_event(events, 5)
    await events.send(None, key=event_key(TOPIC))
    topic = broker.broker.service.loaded.get(TopicName.parse(EVENTS))
    assert topic is not None
    assert isinstance(topic, Topic)
    assert topic.compaction.start()
    await until(lambda: not topic.compaction.is_running, 0.01)
    async with asyncio.timeout(DEADLINE_S):
        assert await found(broker) == TopicPolicies()


async def test_deleted_topic_leaves_no_policies(broker: EmbeddedBroker, client: PulsarClient) -> None:
    await (await client.producer(str(TOPIC))).close()
    await change(broker, messageTTLInSeconds=5)
    await broker.broker.service.topics.delete(TOPIC, force=True)
    assert await found(broker) == TopicPolicies()


async def test_policies_follow_after_system_topic_is_unloaded(broker: EmbeddedBroker, client: PulsarClient) -> None:
    await change(broker, messageTTLInSeconds=5)
    topic = broker.broker.service.loaded.get(TopicName.parse(EVENTS))
    assert topic is not None
    await broker.broker.service.topics.unload(topic)
    await change(broker, maxProducerPerTopic=3)
    assert await found(broker) == TopicPolicies(messageTTLInSeconds=5, maxProducerPerTopic=3)


async def test_documents_of_metadata_store_move_to_system_topic(broker: EmbeddedBroker) -> None:
    store = broker.broker.service.metadata_store
    path = metadata_paths.topic_policies(TOPIC)
    await store.put(path, documents.encode(TopicPolicies(messageTTLInSeconds=5)))
    assert await found(broker) == TopicPolicies(messageTTLInSeconds=5)
    assert await store.get(path) is None
    await broker.restart()
    broker.broker.service.keep_topic_policies_in_system_topics()
    assert await found(broker) == TopicPolicies(messageTTLInSeconds=5)


async def test_deletion_of_namespace_ends_its_reader(broker: EmbeddedBroker, client: PulsarClient) -> None:
    namespace = NamespaceName("public", "short")
    service = broker.broker.service
    for _ in range(2):
        await service.resources.create_namespace(namespace, NamespacePolicies())
        topic = TopicName.parse(f"persistent://{namespace}/t")
        assert await found(broker, topic) == TopicPolicies()
        await (await client.producer(str(topic))).close()
        await change(broker, topic, messageTTLInSeconds=5)
        await service.topics.delete(topic, force=True)
        async with asyncio.timeout(DEADLINE_S):
            await service.namespace_deletion.delete(namespace, force=False)
        assert service.resources.namespace(namespace) is None
        assert await service.directory.list(namespace, None, include_system=True) == []


async def test_unused_namespaces_are_forgotten_above_limit(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_topic_policies, "MAX_NAMESPACES", 2)
    await client.producer(str(TOPIC))  # its namespace stays in use
    service = broker.broker.service
    for number in range(4):
        namespace = NamespaceName("public", f"n{number}")
        await service.resources.create_namespace(namespace, NamespacePolicies())
        topic = TopicName.parse(f"persistent://{namespace}/t")
        await change(broker, topic, messageTTLInSeconds=number + 1)
    reading = service.resources._topic_policies._namespaces  # type: ignore[attr-defined]
    assert set(reading) == {TOPIC.namespace, NamespaceName("public", "n3")}
    first = TopicName.parse("persistent://public/n0/t")
    assert await found(broker, first) == TopicPolicies(messageTTLInSeconds=1)


def publishing_first(
    monkeypatch: pytest.MonkeyPatch, events: MessageProducer, documents_of_others: list[dict[str, object]]
) -> None:
    """Before each message of this broker, publish one of another broker, which has read nothing of this one's change."""
    publish = system_topic_policies._Namespace.publish

    async def after_another(self: Any, key: str, value: bytes | None, **facts: Any) -> Position:
        if documents_of_others:
            await events.send(encode_event(TOPIC, documents_of_others.pop(0), "standalone"), key=event_key(TOPIC))
        return await publish(self, key, value, **facts)

    monkeypatch.setattr(system_topic_policies._Namespace, "publish", after_another)


async def test_change_keeps_policies_that_another_broker_sets_at_the_same_time(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await change(broker, messageTTLInSeconds=5)
    events = await client.producer(EVENTS)
    of_others: list[dict[str, object]] = [
        {"messageTTLInSeconds": 5, "maxConsumerPerTopic": 7},
        {"messageTTLInSeconds": 6, "maxConsumerPerTopic": 8},
    ]
    publishing_first(monkeypatch, events, of_others)
    await change(broker, maxProducerPerTopic=3)
    expected = TopicPolicies(messageTTLInSeconds=6, maxConsumerPerTopic=8, maxProducerPerTopic=3)
    assert await found(broker) == expected
    assert of_others == []


async def test_change_that_is_refused_when_it_is_repeated_changes_nothing(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = await client.producer(EVENTS)
    publishing_first(monkeypatch, events, [{"maxConsumerPerTopic": 7}])

    def refused(policies: TopicPolicies) -> None:
        if policies.maxConsumerPerTopic is not None:
            raise AdminError(412, "refused")
        policies.messageTTLInSeconds = 5

    with pytest.raises(AdminError, match="refused"):
        await broker.broker.service.resources.update_topic_policies(TOPIC, refused)
    assert await found(broker) == TopicPolicies(maxConsumerPerTopic=7)


async def test_change_ends_with_an_error_if_other_brokers_do_not_stop(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = await client.producer(EVENTS)
    of_others = [{"maxConsumerPerTopic": number} for number in range(1, 100)]
    publishing_first(monkeypatch, events, of_others)  # type: ignore[arg-type]
    with pytest.raises(AdminError, match="other brokers change them at the same time"):
        await change(broker, maxProducerPerTopic=3)
    assert len(of_others) == 99 - system_topic_policies.MAX_ATTEMPTS


async def test_change_begins_with_the_last_policies_in_the_system_topic(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await change(broker, messageTTLInSeconds=5)
    events = await client.producer(EVENTS)
    sent: list[bytes | None] = []
    publish = system_topic_policies._Namespace.publish

    async def recorded(self: Any, key: str, value: bytes | None, **facts: Any) -> Position:
        sent.append(value)
        return await publish(self, key, value, **facts)

    monkeypatch.setattr(system_topic_policies._Namespace, "publish", recorded)
    for number in range(1, 20):
        await send_event(events, 5, maxConsumerPerTopic=number)
        await change(broker, maxProducerPerTopic=number)
        expected = {"messageTTLInSeconds": 5, "maxConsumerPerTopic": number, "maxProducerPerTopic": number}
        assert await found(broker) == TopicPolicies(**expected)  # type: ignore[arg-type]
    assert len(sent) == 19, "no change was repeated"


async def test_change_that_waits_ends_when_the_broker_stops_reading(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await change(broker, messageTTLInSeconds=5)
    store = broker.broker.service.resources._topic_policies
    assert isinstance(store, system_topic_policies.SystemTopicPolicies)
    namespace = store._namespaces[TOPIC.namespace]
    namespace._reader = None
    changing = asyncio.create_task(change(broker, maxProducerPerTopic=3))
    await until(lambda: bool(namespace._users), 0.01)
    await store.close()
    with pytest.raises(StoreError, match="does not read"):
        await changing


async def test_policies_stay_when_ledgers_of_their_topic_are_sealed_and_no_broker_reads_them(tmp_path: Path) -> None:
    rollover = {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    topics = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(7)]
    async with embed(tmp_path, **rollover) as broker:
        broker.broker.service.keep_topic_policies_in_system_topics()
        for number, topic in enumerate(topics, 1):
            await change(broker, topic, messageTTLInSeconds=number)
        for _ in range(2):
            await broker.restart()
            broker.broker.service.keep_topic_policies_in_system_topics()
            events = await broker.broker.service.topics.get(TopicName.parse(EVENTS), may_create=False)
            await events.ledger.trim()  # as at a rollover
            assert list(events.subscriptions) == ["__compaction"]
        for number, topic in enumerate(topics, 1):
            assert await found(broker, topic) == TopicPolicies(messageTTLInSeconds=number)


async def test_compaction_keeps_policies_and_deletes_former_events(tmp_path: Path) -> None:
    rollover = {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    async with embed(tmp_path, **rollover) as broker:
        broker.broker.service.keep_topic_policies_in_system_topics()
        for ttl in range(1, 10):
            await change(broker, messageTTLInSeconds=ttl)
        events = await broker.broker.service.topics.get(TopicName.parse(EVENTS), may_create=False)
        ledgers = len(list(events.ledger.ledgers.rows()))
        await events.compaction.start_if_due()
        await until(lambda: not events.compaction.is_running, 0.01)
        await events.ledger.trim()
        assert len(list(events.ledger.ledgers.rows())) < ledgers
        await broker.restart()
        broker.broker.service.keep_topic_policies_in_system_topics()
        assert await found(broker) == TopicPolicies(messageTTLInSeconds=9)
