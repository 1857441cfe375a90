"""What the broker publishes itself: change events and health checks, when something goes wrong with them."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.memory_broker import MemoryBroker

from pybroker.errors import MetadataError, PersistenceError, ServiceNotReady, StoreError
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies
from pybroker.wire.entry_metadata import message_metadata

TOPIC = TopicName.parse("persistent://public/default/t")
EVENTS = "persistent://public/default/__change_events"


async def test_events_that_cannot_be_written_as_avro_do_not_hold_up_others(broker: MemoryBroker) -> None:
    events = broker.service.change_events
    events.changed(TOPIC, TopicPolicies(offloadPolicies={"managedLedgerOffloadMaxThreads": "many"}))  # type: ignore[arg-type]
    events.changed(TOPIC, TopicPolicies(maxProducerPerTopic=1))
    topic = await broker.topic(EVENTS)
    await broker.until(lambda: topic.counters.messages_in == 1)


async def test_events_of_a_namespace_keep_their_order(broker: MemoryBroker) -> None:
    events = broker.service.change_events
    names = [TopicName.parse(f"t{index}") for index in range(20)]
    for name in names:
        events.changed(name, TopicPolicies(maxProducerPerTopic=1))
    topic = await broker.topic(EVENTS)
    await broker.until(lambda: topic.counters.messages_in == len(names))
    run = await topic.ledger.read(topic.ledger.ledgers.first_position, len(names), 1 << 20)
    assert [message_metadata(entry).partition_key for entry in run.payloads] == [str(name) for name in names]


async def test_events_of_a_namespace_that_is_going_are_dropped(broker: MemoryBroker) -> None:
    broker.service.change_events.changed(TopicName.parse("persistent://public/gone/t"), None)
    assert len(broker.service.broker_context.tasks) == 0


async def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_the_next(broker: MemoryBroker) -> None:
    producer = (await broker.topic(str(TOPIC))).internal_producer()
    first = asyncio.ensure_future(producer.publish(b"first"))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(producer.publish(b"second"))
    await asyncio.sleep(0)
    producer.send_errors(0, [0], PersistenceError("late"), 0)
    assert (await second).entry_id == 1


async def test_a_broker_that_cannot_store_is_not_healthy(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.service.health_check()

    async def fail(path: str) -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(broker.service.metadata_store, "get", fail)
        with pytest.raises(MetadataError, match="the disk is gone"):
            await broker.service.health_check()
    await broker.service.health_check()
    broker.service.presence.ready = False
    with pytest.raises(ServiceNotReady):
        await broker.service.health_check()
