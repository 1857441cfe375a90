"""The current broker opens sample data directories of earlier commits, and finds everything that clients were told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.upgrade.sample_content import (
    COMPACTED,
    DELAYED,
    FAR_MS,
    FIXED,
    PARTITIONS,
    PARTS,
    PATIENCE_S,
    PLAIN,
    SCHEMAS,
    SENT,
    TAKEN,
    backlog,
    compact,
    id_text,
    rest,
)
from tests.upgrade.samples import (
    SAMPLES,
    SETTINGS,
    SOURCES,
    STATES,
    STOPPED,
    Feature,
    Promised,
    StoredMessage,
    Subscription,
    load,
    text_of,
    unpack,
)

from pybroker.cli import main
from pybroker.client import Message, MessageConsumer, MessageId, PulsarClient, RequestTimedOut, TopicSchema, connect

NOTHING_WITHIN_S = 0.5
JSON_SCHEMA = 2
NEWEST = max(SOURCES)


# Earlier samples after a clean stop are left to the long lane: those that were killed have the same content and more.
@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param(name, state, marks=[pytest.mark.long] if state == STOPPED and name != NEWEST else [])
        for name in SOURCES
        for state in STATES
    ],
)
def test_sample_of_earlier_commit_opens_with_everything(name: str, state: str, tmp_path: Path) -> None:
    promised = load(name, state)
    broker = BrokerProcess(tmp_path, SETTINGS)
    unpack(name, state, broker.data)
    assert main(["ledger", "verify", str(broker.data)]) == 0
    with broker.running_well():
        asyncio.run(_check(broker, promised))
        asyncio.run(_continue(broker, promised))
    with broker.running_well():
        asyncio.run(_check(broker, promised))
    assert main(["ledger", "verify", str(broker.data)]) == 0


def test_each_source_has_a_sample_and_each_sample_a_source() -> None:
    files = {f"{name}/{state}.{kind}" for name in SOURCES for state in STATES for kind in ("json", "tar.xz")}
    assert {str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*") if path.is_file()} == files
    for name, source in SOURCES.items():
        for state in STATES:
            assert (load(name, state).commit, frozenset(load(name, state).features)) == (source.commit, source.features)


def test_newest_sample_has_every_feature() -> None:
    assert SOURCES[NEWEST].features == frozenset(Feature)


# --- comparison --------------------------------------------------------------------------------------------------------


async def _check(broker: BrokerProcess, promised: Promised) -> None:
    for path, answer in promised.answers.items():
        _assert_contains(rest(broker, "GET", path), answer, path)
    for each in promised.subscriptions:
        if each.backlog is not None:
            assert backlog(broker, each) == each.backlog, each.name
    async with connect(broker.url, operation_timeout_s=PATIENCE_S) as client, asyncio.TaskGroup() as tasks:
        for topic, messages in promised.messages.items():
            tasks.create_task(_check_messages(client, topic, messages))
        for topic, view in promised.compacted.items():
            tasks.create_task(_check_compacted(client, topic, view))
        for subscription in promised.subscriptions:
            tasks.create_task(_check_subscription(client, subscription))


def _assert_contains(found: object, promised: object, path: str) -> None:
    """Compare answers of REST. A later version may add fields."""
    if isinstance(promised, dict) and isinstance(found, Mapping):
        for key, value in promised.items():
            _assert_contains(found[key], value, f"{path}.{key}")
    elif isinstance(promised, list) and isinstance(found, list):
        assert len(found) == len(promised), path
        for index, value in enumerate(promised):
            _assert_contains(found[index], value, f"{path}.{index}")
    else:
        assert found == promised, path


async def _check_messages(client: PulsarClient, topic: str, messages: list[StoredMessage]) -> None:
    reader = await client.reader(topic)
    received = [await reader.receive(PATIENCE_S) for _ in messages]
    assert [StoredMessage(_id_text(message.id), _text(message)) for message in received] == messages
    await _assert_nothing_arrives(reader)
    await reader.close()


async def _check_compacted(client: PulsarClient, topic: str, view: list[tuple[str, str]]) -> None:
    reader = await client.reader(topic, read_compacted=True)
    received = [await reader.receive(PATIENCE_S) for _ in view]
    assert [(message.key, _text(message)) for message in received] == view
    await _assert_nothing_arrives(reader)
    await reader.close()


async def _check_subscription(client: PulsarClient, subscription: Subscription) -> None:
    consumer = await _consumer(client, subscription)
    texts = [_text(await consumer.receive(PATIENCE_S)) for _ in subscription.left]
    if subscription.is_shared:
        assert sorted(texts) == sorted(subscription.left), subscription
    else:
        assert texts == subscription.left, subscription
    await _assert_nothing_arrives(consumer)  # such as delayed messages
    await consumer.close()


async def _consumer(client: PulsarClient, subscription: Subscription) -> MessageConsumer:
    kind = "shared" if subscription.is_shared else "exclusive"
    return await client.consumer(subscription.topic, subscription.name, kind=kind, keeps_batch_bits=True)


async def _assert_nothing_arrives(consumer: MessageConsumer) -> None:
    with pytest.raises(RequestTimedOut):
        await consumer.receive(NOTHING_WITHIN_S)


def _text(message: Message) -> str:
    assert message.value is not None
    return text_of(message.value)


def _id_text(message_id: MessageId) -> str:
    return f"{message_id.ledger_id}:{message_id.entry_id}:{message_id.batch_index}"


# --- further use -------------------------------------------------------------------------------------------------------


async def _continue(broker: BrokerProcess, promised: Promised) -> None:
    """Use the directory as the current broker can, also for features that the sample's commit did not have."""
    async with connect(broker.url, operation_timeout_s=PATIENCE_S) as client:
        for subscription in promised.subscriptions:
            await _acknowledge_first(client, subscription)
        for topic in (PLAIN, f"{PARTS}-partition-{PARTITIONS - 1}"):
            await _publish(client, promised, topic, f"further in {topic}")
        await _publish(client, promised, DELAYED, "further in the future", FAR_MS)
        await _commit(client, promised)
        if Feature.SCHEMAS in promised.features:
            await _publish_typed(client, promised)
    _publish_once(broker, promised)
    if Feature.COMPACTION in promised.features:
        compact(broker)
        promised.compacted[COMPACTED] = list({key: (key, text) for key, text in promised.compacted[COMPACTED]}.values())
        promised.compacted[COMPACTED].sort(key=lambda row: int(row[1].rsplit(" ", 1)[1]))
    rest(broker, "POST", "namespaces/sample/kept/messageTTL", 1800)
    promised.answers["namespaces/sample/kept/messageTTL"] = 1800
    for each in promised.subscriptions:
        each.backlog = None if each.backlog is None else backlog(broker, each)


async def _acknowledge_first(client: PulsarClient, subscription: Subscription) -> None:
    consumer = await _consumer(client, subscription)
    message = await consumer.receive(PATIENCE_S)
    await consumer.ack(message, wants_receipt=True)
    subscription.left.remove(_text(message))
    await consumer.close()


async def _publish(client: PulsarClient, promised: Promised, topic: str, text: str, deliver_at_ms: int = 0) -> None:
    producer = await client.producer(topic, batching=False)
    _record(promised, topic, await producer.send(text.encode(), deliver_at_ms=deliver_at_ms), text)
    await producer.close()
    for each in promised.subscriptions:
        if each.topic == topic.partition("-partition-")[0]:
            (each.delayed if deliver_at_ms else each.left).append(text)


def _record(promised: Promised, topic: str, message_id: MessageId, text: str) -> None:
    promised.messages.setdefault(topic, []).append(StoredMessage(_id_text(message_id), text))


def _publish_once(broker: BrokerProcess, promised: Promised) -> None:
    """Send the last message of a deduplicated producer again, and a new one."""
    client = new_client(broker.url)
    for topic, last in promised.sequence_ids.items():
        producer = client.create_producer(topic, FIXED, batching_enabled=False)
        assert producer.last_sequence_id() == last
        assert producer.send(b"again", sequence_id=last).ledger_id() == -1
        sent = producer.send(b"next", sequence_id=last + 1)
        promised.messages[topic].append(StoredMessage(id_text(sent), "next"))
        promised.sequence_ids[topic] = last + 1
    client.close()


async def _commit(client: PulsarClient, promised: Promised) -> None:
    """Commit a transaction, which has a topic of its own in directories from before transactions."""
    taken, sent = promised.subscription(TAKEN, "s"), promised.subscription(SENT, "s")
    consumer = await client.consumer(TAKEN, "s", kind="shared", from_earliest=True)
    await (await client.consumer(SENT, "s", kind="shared", from_earliest=True)).close()
    await _publish(client, promised, TAKEN, "further taken")
    async with await client.transaction() as transaction:
        message = await consumer.receive(PATIENCE_S)
        await consumer.ack(message, transaction=transaction)
        producer = await client.producer(SENT, batching=False)
        _record(promised, SENT, await producer.send(b"further sent", transaction=transaction), "further sent")
        sent.left.append("further sent")
    taken.left.remove(_text(message))
    await consumer.close()


async def _publish_typed(client: PulsarClient, promised: Promised) -> None:
    """Publish with the newest schema of the topic, which exists and gets no new version."""
    schemas = promised.answers[SCHEMAS]["getSchemaResponses"]
    schema = TopicSchema(JSON_SCHEMA, schemas[-1]["data"].encode(), name="typed")
    producer = await client.producer("typed", schema=schema, batching=False)
    text = '{"number": "further", "note": null}'
    _record(promised, "typed", await producer.send(text.encode()), text)
    await producer.close()
