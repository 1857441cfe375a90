"""Why a producer does not publish, and in what state a topic is: each answer made by what clients and operators do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest
from tests.support.async_client import HeldSaves, binary_port
from tests.support.explaining import TOPIC, Explained, codes, explained
from tests.support.memory_broker import memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import run_in

from pybroker.broker.explain.producers import explain_producer
from pybroker.broker.lifecycle.topic_loading import RECOVERS
from pybroker.client import ClientError, OutgoingMessage, TopicSchema, connect
from pybroker.errors import (
    BrokerError,
    IncompatibleSchema,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    StoreError,
)
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.model.findings import Code
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

AT = "/persistent/public/default/t"
AVRO = pb.Schema.Avro


@pytest.fixture
async def world() -> AsyncIterator[Explained]:
    async with explained() as running:
        yield running


async def test_where_all_is_well_nothing_is_found(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, name="p")
    await world.client.consumer(TOPIC, "s", kind="shared")
    await producer.send(b"m")
    found = await world.explain("producer=p")
    assert (found["waiting"], found["findings"]) == (False, [])
    assert found["subject"]["state"] == "connected"
    assert found["subject"]["address"] == world.topic().producers["p"].peer.address
    of_topic = await world.explain()
    assert (of_topic["waiting"], of_topic["findings"]) == (False, [])


async def test_a_name_that_nobody_has_is_said_to_be_absent(world: Explained) -> None:
    await world.client.producer(TOPIC, name="other")
    found = await world.explain("producer=nobody")
    assert found["subject"]["state"] == "not connected"
    assert not found["waiting"]
    assert codes(found["findings"]) == ["producer-not-connected"]
    assert found["findings"][0]["evidence"]["producers"] == ["other"]


async def test_who_waits_for_exclusive_access_is_told_behind_whom(world: Explained) -> None:
    holder = await world.client.producer(TOPIC, name="holder", access_mode="exclusive")
    waits = [
        asyncio.ensure_future(world.client.producer(TOPIC, name=name, access_mode="wait_for_exclusive"))
        for name in ("first", "second")
    ]
    await world.until(lambda: world.topic().producer_registry.waiting_count == 2)
    names = [each.name for each in world.topic().producer_registry.waiting]
    await world.broker.clock.advance(minutes=30)
    (first,) = await world.of_producer(names[0])
    (second,) = await world.of_producer(names[1])
    assert first["code"] == second["code"] == "producer-waits"
    assert first["waits"]
    assert first["evidence"]["holder"] == "holder"
    assert (first["evidence"]["before"], second["evidence"]["before"]) == (0, 1)
    assert "for 30 min" in first["sentence"]
    assert holder.name == "holder"
    (disconnect,) = first["actions"]
    await world.done(disconnect["method"], disconnect["path"])
    await asyncio.wait(waits, return_when="FIRST_COMPLETED")
    assert await world.of_producer(names[0]) == []
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def test_who_lost_the_topic_is_told_to_whom(world: Explained) -> None:
    await world.client.producer(TOPIC, name="old", access_mode="exclusive")
    await world.client.producer(TOPIC, name="new", access_mode="exclusive_with_fencing")
    found = await world.of_producer("old")
    assert codes(found) == ["producer-fenced", "topic-occupied", "producer-not-connected"]
    assert "producer new from" in found[0]["sentence"]
    assert found[1]["evidence"]["holder"] == "new"
    with pytest.raises(ProducerFenced):
        await world.client.producer(TOPIC, name="third", access_mode="exclusive")
    assert codes(await world.of_producer("third"))[:2] == ["producer-fenced", "topic-occupied"]
    of_topic = await world.explain()
    assert codes(of_topic["findings"]) == ["producers-refused"]
    assert [each["producer"] for each in of_topic["findings"][0]["evidence"]["refused"]] == ["third", "old"]
    assert await world.of_producer("new") == []


async def test_a_name_that_is_taken_and_a_topic_that_is_full_are_told() -> None:
    async with explained(maxProducersPerTopic=1) as world:
        first = await world.client.producer(TOPIC, name="p")
        async with connect(world.broker.service_url) as other:
            with pytest.raises(ProducerBusy):
                await other.producer(TOPIC, name="q")
        found = await world.of_producer("q")
        assert codes(found) == ["producer-limit", "producer-not-connected"]
        assert "maxProducersPerTopic=1" in found[0]["sentence"]
        await first.close()
        again = await world.client.producer(TOPIC, name="q")
        assert await world.of_producer("q") == []
        await again.close()
        assert codes(await world.of_producer("q")) == ["producer-not-connected"]


async def test_a_schema_that_was_refused_says_why(world: Explained) -> None:
    await world.client.producer(TOPIC, schema=TopicSchema(AVRO, b'{"type":"record","name":"R","fields":[]}'))
    changed = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    with pytest.raises(IncompatibleSchema):
        await world.client.producer(TOPIC, name="p", schema=TopicSchema(AVRO, changed))
    (refused, absent) = await world.of_producer("p")
    assert (refused["code"], refused["waits"]) == ("schema-refused", True)
    assert refused["evidence"]["error"] == "IncompatibleSchema"
    assert absent["code"] == "producer-not-connected"
    await world.broker.clock.advance(minutes=3)  # its client has given up
    assert not (await world.explain("producer=p"))["waiting"]
    await world.broker.clock.advance(hours=1)
    assert codes(await world.of_producer("p")) == ["producer-not-connected"]


async def test_a_backlog_over_its_quota_names_subscription_limit_and_the_call_that_clears_it() -> None:
    async with explained(
        backlogQuotaDefaultLimitBytes=100, backlogQuotaDefaultRetentionPolicy="producer_exception"
    ) as world:
        await (await world.client.consumer(TOPIC, "slow", kind="shared", from_earliest=True)).close()
        producer = await world.client.producer(TOPIC, batching=False)
        await producer.send(bytes(500))
        await producer.close()
        with pytest.raises(ProducerBlockedQuotaExceededException):
            await world.client.producer(TOPIC, name="p")
        (quota, absent) = await world.of_producer("p")
        assert quota["code"] == "backlog-quota"
        assert quota["waits"]
        assert quota["evidence"]["subscription"] == "slow"
        assert quota["evidence"]["limitBytes"] == 100
        assert quota["evidence"]["backlogBytes"] > 500
        assert quota["evidence"]["policy"] == "producer_exception"
        assert absent["code"] == "producer-not-connected"
        assert "backlog-quota" in codes((await world.explain())["findings"])
        assert [each["severity"] for each in quota["actions"]] == ["look", "harmless", "irreversible", "irreversible"]
        clear = quota["actions"][-1]
        await world.done(clear["method"], clear["path"])
        await world.client.producer(TOPIC, name="p")
        assert await world.of_producer("p") == []


async def test_an_old_backlog_is_told_by_its_age() -> None:
    async with explained(
        backlogQuotaDefaultLimitSecond=60,
        backlogQuotaDefaultRetentionPolicy="producer_request_hold",
        preciseTimeBasedBacklogQuotaCheck=True,
    ) as world:
        await (await world.client.consumer(TOPIC, "slow", kind="shared", from_earliest=True)).close()
        producer = await world.client.producer(TOPIC, batching=False)
        await producer.send(b"m")
        await producer.close()
        await world.broker.clock.advance(seconds=100)
        (quota, _) = await world.of_producer("p")
        assert quota["code"] == "backlog-quota"
        assert quota["evidence"]["limitSeconds"] == 60
        assert quota["evidence"]["backlogAgeSeconds"] >= 100


async def test_a_full_disk_is_told_and_what_it_refused() -> None:
    async with explained() as world:
        producer = await world.client.producer(TOPIC, name="p", batching=False, send_timeout_s=1.0)
        with world.broker.faults.full_disk():
            with pytest.raises((BrokerError, ClientError)):
                await producer.send(b"m")
            found = await world.of_producer("p")
            assert found[0]["code"] == "disk-full"
            assert found[0]["waits"]
            assert "messages-refused" in codes(found) or "producer-not-connected" in codes(found)
            assert codes((await world.explain())["findings"])[0] == "disk-full"


async def test_a_terminated_topic_is_no_fault_and_keeps_producers_out(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, name="p", batching=False)
    last = await producer.send(b"last")
    await producer.close()
    await world.done("POST", f"{AT}/terminate")
    of_topic = await world.explain()
    assert codes(of_topic["findings"]) == ["topic-terminated"]
    assert not of_topic["waiting"]
    terminated, _ = await world.of_producer("p")
    assert (terminated["code"], terminated["waits"]) == ("topic-terminated", True)
    assert terminated["evidence"]["lastMessageId"] == f"{last.ledger_id}:{last.entry_id}"


async def test_sequence_ids_that_are_stored_already_are_told() -> None:
    async with explained(brokerDeduplicationEnabled=True) as world:
        client = await asyncio.to_thread(pulsar.Client, world.broker.service_url)
        producer = await asyncio.to_thread(client.create_producer, TOPIC, producer_name="p", initial_sequence_id=9)
        await asyncio.to_thread(producer.send, b"new")
        assert await world.of_producer("p") == []
        await asyncio.to_thread(producer.close)
        producer = await asyncio.to_thread(client.create_producer, TOPIC, producer_name="p", initial_sequence_id=3)
        for _ in range(2):
            await asyncio.to_thread(producer.send, b"old")
        (stale,) = await world.of_producer("p")
        assert (stale["code"], stale["waits"]) == ("sequence-id-stale", True)
        assert stale["evidence"] == {"lastSequenceId": 10, "droppedSequenceId": 5, "droppedMessages": 2}
        for _ in range(6):
            await asyncio.to_thread(producer.send, b"up to the next new one")
        assert await world.of_producer("p") == []
        await asyncio.to_thread(client.close)


async def test_publish_rates_name_whose_they_are() -> None:
    async with explained() as world:
        await world.client.producer(TOPIC, name="p")
        await world.done("POST", f"{AT}/publishRate", {"publishThrottlingRateInMsg": 1})
        producer = await world.client.producer(TOPIC, name="fast", batching=False)
        await world.until(lambda: world.topic().publish_throttle is not None)
        sends = [await producer.submit(OutgoingMessage(b"m")) for _ in range(30)]
        await world.until(lambda: any(len(each) for each in world.topic().publish_throttle.limits))  # type: ignore[union-attr]
        (found,) = await world.of_producer("fast")
        assert (found["code"], found["waits"]) == ("publish-rate", True)
        assert found["evidence"]["scope"] == "topic"
        assert found["evidence"]["messagesPerSecond"] == 1
        assert found["since"] is not None
        of_topic = await world.explain()
        assert codes(of_topic["findings"]) == ["publish-rate"]
        await world.done("DELETE", f"{AT}/publishRate")
        await asyncio.gather(*sends)
        assert await world.of_producer("fast") == []


async def test_messages_that_are_too_large_are_told(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, name="p", batching=False)
    await world.done("POST", f"{AT}/maxMessageSize", 100)
    with pytest.raises(BrokerError):
        await producer.send(bytes(500))
    (found,) = [each for each in await world.of_producer("p") if each["code"] == "messages-refused"]
    assert not found["waits"]
    assert "Exceed maximum message size" in found["sentence"]
    assert found["evidence"]["count"] == 1


async def test_a_compaction_that_runs_is_told(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await producer.send(b"m", key="k")
    async with world.topic().broker_context.compaction_slot:  # somebody else's compaction
        await world.done("PUT", f"{AT}/compaction")
        found = await world.explain()
        assert codes(found["findings"]) == ["compaction-running"]
        assert not found["waiting"]
    await world.until(lambda: not world.topic().compaction.is_running)
    assert (await world.explain())["findings"] == []


async def test_deduplication_that_recovers_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with explained(brokerDeduplicationEnabled=True) as world:
        producer = await world.client.producer(TOPIC, name="p", batching=False)
        for _ in range(5):
            await producer.send(b"m")
        goes_on = asyncio.Event()
        read_if_there = ManagedLedger.read_if_there

        async def held(*given: object, **named: Any) -> object:
            await goes_on.wait()
            return await read_if_there(*given, **named)  # type: ignore[arg-type]

        await world.client.close()
        await world.broker.crash()
        monkeypatch.setattr(ManagedLedger, "read_if_there", held)
        await world.broker.restart()
        found = await world.explain("producer=p")
        recovering = found["findings"][0]
        assert recovering["code"] == "deduplication-recovering"
        assert recovering["waits"]
        assert recovering["evidence"]["entriesToReplay"] == 5
        assert codes((await world.explain())["findings"]) == ["deduplication-recovering"]
        goes_on.set()
        await world.until(lambda: not world.topic().deduplication.is_recovering)
        assert (await world.explain())["findings"] == []


async def test_a_topic_that_is_being_closed_or_deleted_or_loaded_is_told_at_once(
    world: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await world.client.producer(TOPIC, name="p", batching=False)
    await producer.send(b"m")
    saves = HeldSaves(world, world.topic(), monkeypatch)  # type: ignore[arg-type]
    unload = asyncio.ensure_future(world.rest("PUT", f"{AT}/unload"))
    await world.until(lambda: saves.waiting > 0)
    for query, subscription in (("", ""), ("producer=p", ""), ("", "s"), ("messageId=1:1", "s")):
        found = await world.explain(query, subscription)
        assert found["findings"][0]["code"] == "topic-unloading"
        assert found["waiting"]
        assert found["findings"][0]["since"] is not None
    # Its producer asks for it again meanwhile: that load waits for the end.
    await world.until(lambda: world.broker.broker.service.topics.load_of(TopicName.parse(TOPIC)) is not None)
    unloading, loading = (await world.explain())["findings"]
    assert (unloading["code"], loading["code"]) == ("topic-unloading", "topic-loading")
    assert loading["evidence"]["step"] == "waits until its unload or deletion is complete"
    assert loading["evidence"]["waitingRequests"] >= 1
    saves.release()
    assert (await unload).status == 204
    loaded = world.broker.broker.service.loaded.persistent
    await world.until(lambda: TOPIC in loaded and "p" in loaded[TOPIC].producers)
    assert (await world.explain("producer=p"))["findings"] == []


async def test_a_topic_that_is_being_deleted_with_its_namespace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with explained(forceDeleteNamespaceAllowed=True) as world:
        await world.done("PUT", "/namespaces/public/gone")
        name = "persistent://public/gone/t"
        await (await world.client.producer(name)).close()
        goes_on, delete = asyncio.Event(), ManagedLedgerFactory.delete

        async def held(factory: ManagedLedgerFactory, ledger: ManagedLedger) -> None:
            await goes_on.wait()
            await delete(factory, ledger)

        monkeypatch.setattr(ManagedLedgerFactory, "delete", held)
        deleted = asyncio.ensure_future(world.rest("DELETE", "/namespaces/public/gone?force=true"))
        await world.until(lambda: world.broker.broker.service.topics.ending_of(TopicName.parse(name)) is not None)
        found = await world.explain(topic=name)
        assert codes(found["findings"]) == ["topic-deleting", "topic-changing"]
        goes_on.set()
        assert (await deleted).status == 204
        assert (await world.rest("GET", "/persistent/public/gone/t/explain")).status == 404


async def test_a_topic_that_cannot_be_loaded_says_why_and_one_that_takes_long_how_far_it_is(
    world: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    transaction = await world.client.transaction()
    for _ in range(3):
        await producer.send(b"m", transaction=transaction)
    await world.client.close()
    await world.broker.restart()
    open_ledger = ManagedLedgerFactory.open_existing

    async def fails(*_given: object, **_named: Any) -> object:
        raise StoreError("the disk has a bad day")

    monkeypatch.setattr(ManagedLedgerFactory, "open_existing", fails)
    (failed,) = (await world.explain())["findings"]
    assert failed["code"] == "topic-load-failed"
    assert failed["evidence"]["error"] == "the disk has a bad day"
    assert failed["waits"]
    monkeypatch.setattr(ManagedLedgerFactory, "open_existing", open_ledger)
    goes_on = asyncio.Event()
    read_if_there = ManagedLedger.read_if_there

    async def held(*given: object, **named: Any) -> object:
        await goes_on.wait()
        return await read_if_there(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ManagedLedger, "read_if_there", held)
    loading = asyncio.ensure_future(world.rest("GET", f"{AT}/stats"))
    await world.until(lambda: world.broker.broker.service.topics.load_of(TopicName.parse(TOPIC)) is not None)
    await world.until(
        lambda: world.broker.broker.service.topics.load_of(TopicName.parse(TOPIC)).step == RECOVERS  # type: ignore[union-attr]
    )
    (found,) = (await world.explain())["findings"]
    assert found["code"] == "topic-loading"
    assert found["evidence"]["step"] == "recovers its transactions"
    assert found["evidence"]["replayedEntries"] == 0
    assert found["evidence"]["entriesToReplay"] == 3
    goes_on.set()
    assert (await loading).status == 200


async def test_a_topic_that_somebody_else_has_changed_is_told(
    world: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.client.consumer(TOPIC, "s")
    topic, metadata = world.topic(), world.broker.broker.service.metadata_store
    found = await metadata.get(topic.ledger.name)
    assert found is not None
    await metadata.put(topic.ledger.name, found.value, found.version)
    goes_on = asyncio.Event()
    close = ManagedLedger.close

    async def held(ledger: ManagedLedger) -> None:
        await goes_on.wait()
        await close(ledger)

    monkeypatch.setattr(ManagedLedger, "close", held)
    answer = asyncio.ensure_future(world.rest("PUT", f"{AT}/subscription/other"))
    await world.until(lambda: topic.ledger.document.is_fenced and topic.is_fenced)
    # The consumer's client asks for the topic again meanwhile: that load waits for the end.
    await world.until(lambda: world.broker.broker.service.topics.load_of(TopicName.parse(TOPIC)) is not None)
    findings = (await world.explain())["findings"]
    assert codes(findings)[:3] == ["topic-unloading", "topic-loading", "metadata-conflict"]
    assert findings[0]["evidence"]["reason"]
    goes_on.set()
    await answer


async def test_a_write_that_failed_is_told_until_the_next_ledger_is_ready(
    world: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await world.client.producer(TOPIC, name="p", batching=False)
    await producer.send(b"m")
    topic = world.topic()
    await topic.broker_context.ledgers.store.seal(
        topic.ledger.current_ledger_id
    )  # as a store does after a failed write
    saves = HeldSaves(world, topic, monkeypatch)  # type: ignore[arg-type]
    sent = asyncio.ensure_future(producer.send(b"fails"))
    await world.until(lambda: topic.ledger.is_write_failed and saves.waiting > 0)
    found = (await world.explain())["findings"]
    assert "storage-failed" in codes(found)
    assert found[0]["code"] == "storage-failed"
    saves.release()
    await world.until(lambda: not topic.ledger.is_write_failed)
    sent.cancel()
    await asyncio.gather(sent, return_exceptions=True)
    assert "storage-failed" not in codes((await world.explain())["findings"])


async def test_the_first_transaction_of_a_topic_lets_nobody_publish_until_its_cursor_is_stored(
    world: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await world.client.producer(TOPIC, name="p", batching=False)
    saves = HeldSaves(world, world.topic(), monkeypatch)  # type: ignore[arg-type]
    transaction = await world.client.transaction()
    sent = asyncio.ensure_future(producer.send(b"m", transaction=transaction))
    await world.until(lambda: saves.waiting > 0)
    found = await world.of_producer("p")
    assert codes(found)[0] == "transactions-beginning"
    assert codes((await world.explain())["findings"]) == ["transactions-beginning"]
    saves.release()
    await sent
    assert await world.of_producer("p") == []


async def test_so_many_bytes_on_their_way_to_the_disk_that_nothing_more_is_read_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with explained(maxMessagePublishBufferSizeInMB=1) as world:
        producer = await world.client.producer(TOPIC, name="p", batching=False)
        await producer.send(b"m")
        store = world.topic().broker_context.ledgers.store
        complete = store._complete  # type: ignore[attr-defined]
        monkeypatch.setattr(store, "_complete", lambda: None)
        sends = [await producer.submit(OutgoingMessage(bytes(700_000))) for _ in range(3)]
        peer = world.topic().producers["p"].peer
        await world.until(lambda: peer.memory_waits.publishes_since_ms is not None)
        (found,) = await world.of_producer("p")
        assert (found["code"], found["waits"]) == ("publish-memory", True)
        assert found["evidence"]["pendingMessages"] >= 2
        assert found["since"] is not None
        monkeypatch.undo()
        complete()
        await asyncio.gather(*sends)
        assert await world.of_producer("p") == []


async def test_after_a_message_that_was_not_stored_the_client_has_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_broker(broker_deduplication_enabled=True) as broker:
        topic, peer = await broker.topic(TOPIC), RecordingPeer()
        await broker.until(lambda: not topic.deduplication.is_recovering)
        producer = broker.producer(topic, peer)
        await topic.broker_context.ledgers.store.seal(
            topic.ledger.current_ledger_id
        )  # as a store does after a failed write
        topic.publish(producer, run_in(None, 1))
        await broker.until(lambda: bool(peer.errors))
        topic.publish(producer, run_in(None, 1, first=1))
        answer = (await broker.rest("GET", f"{AT}/explain?producer=p")).json
        gap = next(each for each in answer["findings"] if each["code"] == "deduplication-gap")
        assert gap["waits"]
        refused = next(each for each in answer["findings"] if each["code"] == "messages-refused")
        assert refused["evidence"]["count"] == len(peer.errors)
        producer.detach()


async def test_a_role_that_may_not_produce_is_told_once_somebody_uses_the_topic() -> None:
    settings = {"authentication_enabled": True, "anonymous_user_role": "anonymous", "authorization_enabled": True}
    async with memory_broker(**settings) as broker, binary_port(broker) as port:  # type: ignore[arg-type]
        await broker.topic(TOPIC)
        client = await port.connect()
        answer = await client.request(
            pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, producer_name="p", user_provided_producer_name=True
        )
        assert answer["error"] == "AuthorizationError"
        nobody = await client.request(pb.BaseCommand.PRODUCER, topic=TOPIC + "-none", producer_id=2, producer_name="p")
        assert nobody["error"] == "AuthorizationError"
        assert len(broker.service.broker_context.refusals) == 1
        found = explain_producer(await broker.topic(TOPIC), "p", None)
        assert [each.code for each in found] == [Code.PRODUCER_NOT_AUTHORIZED, Code.PRODUCER_NOT_CONNECTED]
        # Who may not consume may not look either.
        assert (await broker.rest("GET", f"{AT}/explain?producer=p")).status == 401


async def test_a_compaction_that_failed_says_why(world: Explained, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await producer.send(b"m", key="k")

    async def fails(*_given: object) -> int:
        raise StoreError("no ledger today")

    monkeypatch.setattr(ManagedLedger, "begin_compacted", fails)
    await world.done("PUT", f"{AT}/compaction")
    await world.until(lambda: world.topic().compaction.has_failed)
    (found,) = (await world.explain())["findings"]
    assert (found["code"], found["waits"]) == ("compaction-failed", False)
    assert found["evidence"]["error"] == "no ledger today"
    monkeypatch.undo()
    (again,) = found["actions"]
    await world.done(again["method"], again["path"])
    await world.until(lambda: not world.topic().compaction.has_failed and not world.topic().compaction.is_running)
    assert (await world.explain())["findings"] == []


async def test_who_does_not_encrypt_where_everybody_must_is_refused_and_told(world: Explained) -> None:
    await (await world.client.producer(TOPIC)).close()
    await world.done("POST", "/namespaces/public/default/encryptionRequired", True)
    async with connect(world.broker.service_url, operation_timeout_s=2) as impatient:  # it asks again until then
        with pytest.raises(BrokerError):
            await impatient.producer(TOPIC, name="p")
    refused, _ = await world.of_producer("p")
    assert (refused["code"], refused["evidence"]["error"]) == ("producer-refused", "MetadataError")
    assert "Encryption is required" in refused["sentence"]


async def test_a_producer_whose_client_waits_for_another_topics_rate_is_not_heard_either(world: Explained) -> None:
    await world.client.producer(TOPIC, name="p")
    other = TOPIC + "-slow"
    fast = await world.client.producer(other, name="fast", batching=False)
    await world.done("POST", f"{AT}-slow/publishRate", {"publishThrottlingRateInMsg": 1})
    await world.until(lambda: world.topic(other).publish_throttle is not None)
    sends = [await fast.submit(OutgoingMessage(b"m")) for _ in range(20)]
    await world.until(lambda: world.topic().producers["p"].peer.not_heard_because is not None)
    (found,) = await world.of_producer("p")
    assert (found["code"], found["waits"]) == ("connection-held", True)
    assert found["evidence"]["address"] == world.topic().producers["p"].peer.address
    await world.done("DELETE", f"{AT}-slow/publishRate")
    await asyncio.gather(*sends)
    assert await world.of_producer("p") == []
