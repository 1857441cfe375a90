"""Access modes of producers on a live broker: what is durable when a producer is told, who learns what, and who comes in between.

What newcomers of each mode get is compared with the real broker by `differential/scenarios_producers.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import CLOSED, DeadClient, RawClient, Type, connected
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call

from pybroker.broker.context.topic_context import TopicContext
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.producer_access import AccessMode
from pybroker.broker.publishing.producer_registry import LARGEST_EPOCH, TOPIC_EPOCH_PROPERTY, stored_epoch
from pybroker.broker.topic.topic import Topic
from pybroker.errors import MetadataError, PersistenceError, ProducerBusy, ProducerFenced, ServiceNotReady, StoreError
from pybroker.wire import pulsar_api_pb2 as pb

NAME = "persistent://public/default/t"
EPOCH = "pulsar.topic.epoch"
SHARED, EXCLUSIVE = AccessMode.SHARED, AccessMode.EXCLUSIVE
FENCING, WAIT = AccessMode.EXCLUSIVE_WITH_FENCING, AccessMode.WAIT_FOR_EXCLUSIVE
LIVENESS_MS = 300
_serial = itertools.count(1)


class Room:
    """One topic whose epochs are stored when the test says so."""

    def __init__(self, broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.topic = topic
        self.blocked_reason = asyncio.Event()
        self.blocked_reason.set()
        self.failure: StoreError | None = None
        store = topic.store_epoch

        async def store_epoch(epoch: int) -> None:
            await self.blocked_reason.wait()
            if self.failure is not None:
                raise self.failure
            await store(epoch)

        monkeypatch.setattr(topic, "store_epoch", store_epoch)

    def producer(self, mode: AccessMode, name: str = "", **more: Any) -> Producer:
        name = name or f"p{next(_serial)}"
        peer = more.pop("peer", None) or RecordingPeer()
        epoch = more.pop("epoch", 0)
        return Producer(
            self.topic.producer_registry.remove,
            next(_serial),
            name,
            False,
            epoch,
            peer,
            {},
            0,
            access_mode=mode,
            **more,
        )

    async def enter(self, mode: AccessMode, name: str = "", **more: Any) -> Producer:
        producer = self.producer(mode, name, **more)
        await self.topic.producer_registry.enter(producer)
        return producer

    async def turns(self) -> None:
        """Let everything happen that needs no more than the loop's turns."""
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def attached(self) -> list[str]:
        return sorted(self.topic.producers)


@pytest.fixture
async def room(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    async with memory_broker() as broker:
        yield Room(broker, await broker.topic(NAME), monkeypatch)


def peer_of(producer: Producer) -> RecordingPeer:
    assert isinstance(producer.peer, RecordingPeer)
    return producer.peer


# --- while an epoch is being stored --------------------------------------------------------------------------------------


async def test_nobody_is_attached_before_its_epoch_is_stored(room: Room) -> None:
    room.blocked_reason.clear()
    entering = asyncio.create_task(room.enter(EXCLUSIVE, "first"))
    await room.turns()
    assert room.attached == []
    assert room.topic.ledger.properties == {}
    with pytest.raises(ProducerBusy):
        await room.enter(SHARED)
    room.blocked_reason.set()
    producer = await entering
    assert room.attached == ["first"]
    assert room.topic.ledger.properties == {EPOCH: "0"}
    assert producer.topic_epoch == 0


async def test_one_that_fences_takes_the_topic_from_one_whose_epoch_is_being_stored(room: Room) -> None:
    room.blocked_reason.clear()
    first = asyncio.create_task(room.enter(EXCLUSIVE, "first"))
    await room.turns()
    second = asyncio.create_task(room.enter(FENCING, "second"))
    await room.turns()
    room.blocked_reason.set()
    with pytest.raises(ProducerFenced):
        await first
    await second
    assert room.attached == ["second"]


async def test_one_that_leaves_while_its_epoch_is_being_stored_makes_way(room: Room) -> None:
    room.blocked_reason.clear()
    first = asyncio.create_task(room.enter(EXCLUSIVE))
    await room.turns()
    waiting = await room.enter(WAIT, "waiting")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    room.blocked_reason.set()
    await room.broker.until(lambda: room.attached == ["waiting"])
    assert peer_of(waiting).ready_producers == [waiting.producer_id]
    assert waiting.topic_epoch == 0


async def test_an_epoch_that_cannot_be_stored_is_nobody_s(room: Room) -> None:
    room.failure = StoreError("no space")
    with pytest.raises(StoreError):
        await room.enter(EXCLUSIVE)
    assert room.topic.producer_registry.epoch is None
    room.failure = None
    assert (await room.enter(EXCLUSIVE)).topic_epoch == 0


async def test_one_that_waits_is_told_when_its_epoch_cannot_be_stored(room: Room) -> None:
    holder = await room.enter(EXCLUSIVE)
    waiting = await room.enter(WAIT)
    room.failure = StoreError("no space")
    holder.detach()
    await room.broker.until(lambda: bool(peer_of(waiting).refused_producers))
    assert [type(each) for each in peer_of(waiting).refused_producers] == [PersistenceError]
    assert room.attached == []


async def test_a_failed_change_of_properties_takes_nothing_else_back(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = room.topic.ledger.document
    await document.change_properties({"a": "1", "b": "1"})
    save = document.save

    async def fail() -> None:
        document.properties[EPOCH] = "4"  # somebody else, meanwhile
        raise StoreError("no space")

    monkeypatch.setattr(document, "save", fail)
    with pytest.raises(StoreError):
        await document.change_properties({"a": "2", "b": None, "c": "2"})
    monkeypatch.setattr(document, "save", save)
    assert document.properties == {"a": "1", "b": "1", EPOCH: "4"}


# --- coming, going, coming back -------------------------------------------------------------------------------------------


async def test_an_epoch_outlives_the_loaded_topic(room: Room) -> None:
    await room.enter(EXCLUSIVE)
    await room.broker.service.topics.unload(room.topic)
    loaded = await room.broker.topic(NAME)
    assert loaded.producer_registry.epoch == 0


@pytest.mark.parametrize("text", ["", "x", "-1", "²"])
async def test_what_others_write_where_the_epoch_stands_is_no_epoch(room: Room, text: str) -> None:
    await room.topic.ledger.document.change_properties({EPOCH: text})
    await room.broker.service.topics.unload(room.topic)
    assert (await room.broker.topic(NAME)).producer_registry.epoch is None


async def test_a_client_s_next_attempt_takes_the_place_of_its_first_one(room: Room) -> None:
    first = await room.enter(EXCLUSIVE, "leader")
    waiting = await room.enter(WAIT)
    second = await room.enter(EXCLUSIVE, "leader", peer=first.peer, epoch=1, former_epoch=0)
    assert peer_of(first).closed_producers == [first.producer_id]
    assert room.topic.producers == {"leader": second}
    assert second.topic_epoch == 0
    assert not peer_of(waiting).ready_producers


async def test_the_place_of_a_producer_that_shares_is_taken_by_its_client_s_next_attempt(room: Room) -> None:
    first = await room.enter(SHARED, "p")
    waiting = await room.enter(WAIT)
    second = await room.enter(SHARED, "p", peer=first.peer, epoch=1)
    assert room.topic.producers == {"p": second}
    assert waiting.is_waiting


async def test_a_waiting_producer_that_leaves_is_forgotten(room: Room) -> None:
    holder = await room.enter(EXCLUSIVE)
    waiting = await room.enter(WAIT)
    assert room.topic.producer_registry.waiting_count == 1
    waiting.detach()
    assert room.topic.producer_registry.waiting_count == 0
    holder.detach()
    await room.turns()
    assert room.attached == []
    assert not peer_of(waiting).ready_producers


async def test_one_that_waits_is_looked_at_again_at_its_turn(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = await room.enter(EXCLUSIVE)
    waiting = await room.enter(WAIT)
    monkeypatch.setattr(TopicContext, "is_encryption_required", True)
    holder.detach()
    await room.broker.until(lambda: bool(peer_of(waiting).refused_producers))
    assert [type(each) for each in peer_of(waiting).refused_producers] == [MetadataError]
    assert room.topic.producer_registry.waiting_count == 0


async def test_closing_the_topic_tells_those_that_hold_it_wait_for_it_or_are_just_being_given_it(room: Room) -> None:
    holder = await room.enter(EXCLUSIVE)
    next_one, waiting = await room.enter(WAIT), await room.enter(WAIT)
    room.blocked_reason.clear()
    holder.detach()
    await room.turns()  # the epoch of the next one is being stored
    await room.broker.service.topics.unload(room.topic)
    for each in (next_one, waiting):
        assert [type(error) for error in peer_of(each).refused_producers] == [ServiceNotReady]
        assert not peer_of(each).ready_producers


async def test_the_broker_s_own_messages_need_no_access(room: Room) -> None:
    await room.enter(EXCLUSIVE)
    position = await room.topic.internal_producer().publish(b"x")
    assert room.topic.ledger.ledgers.has_entry(position)


# --- clients that are dead -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"connectionLivenessCheckTimeoutMillis": str(LIVENESS_MS)}
    with BrokerProcess(tmp_path_factory.mktemp("access"), settings).running_well() as process:
        yield process


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/access-{next(_serial)}"


def opened(raw: RawClient, topic: str, producer_id: int, mode: AccessMode, **fields: Any) -> dict[str, Any]:
    return raw.open_producer(topic, producer_id, producer_access_mode=pb.ProducerAccessMode.Value(mode), **fields)


def stats(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = call(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats").json
    return found


def test_an_epoch_that_cannot_be_is_refused_and_takes_no_topic(broker: BrokerProcess, topic: str) -> None:
    with connected(broker) as client:
        refused = opened(client, topic, 1, EXCLUSIVE, topic_epoch=2**64 - 1)
        assert (refused["type"], refused["error"]) == ("ERROR", "NotAllowedError")
        assert opened(client, topic, 1, EXCLUSIVE)["topic_epoch"] == "0"


@pytest.mark.parametrize("text", ["9" * 5000, str(2**64), str(LARGEST_EPOCH + 1), "-1", "٣", ""])
def test_a_property_that_is_no_epoch_counts_for_none(text: str) -> None:
    assert stored_epoch({TOPIC_EPOCH_PROPERTY: text}) is None
    assert stored_epoch({TOPIC_EPOCH_PROPERTY: "7"}) == 7


def test_a_dead_holder_is_evicted_for_the_one_that_waits(broker: BrokerProcess, topic: str) -> None:
    with connected(broker, DeadClient) as dead, connected(broker) as waiting:
        assert opened(dead, topic, 1, EXCLUSIVE)["topic_epoch"] == "0"
        assert not opened(waiting, topic, 1, WAIT)["producer_ready"]
        ready = waiting.reply()
        assert ready["producer_ready"]
        assert ready["topic_epoch"] == "1"
        assert dead.replies()[-1] == CLOSED


def test_a_dead_holder_is_evicted_for_one_that_wants_exclusive_access(broker: BrokerProcess, topic: str) -> None:
    with connected(broker, DeadClient) as dead, connected(broker) as other:
        opened(dead, topic, 1, EXCLUSIVE)
        assert opened(other, topic, 1, EXCLUSIVE)["topic_epoch"] == "1"


def test_a_dead_holder_is_evicted_for_one_that_shares(broker: BrokerProcess, topic: str) -> None:
    with connected(broker, DeadClient) as dead, connected(broker) as other:
        opened(dead, topic, 1, EXCLUSIVE)
        assert opened(other, topic, 1, SHARED)["producer_ready"]
        assert stats(broker, topic)["topicEpoch"] == 0


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT])
def test_a_holder_that_comes_back_before_its_old_connection_is_gone_keeps_its_place(
    broker: BrokerProcess, topic: str, mode: AccessMode
) -> None:
    with connected(broker, DeadClient) as old, connected(broker) as waiting, connected(broker) as new:
        opened(old, topic, 1, mode, producer_name="leader")
        # The liveness check takes a while, in which the leader comes back.
        assert not opened(waiting, topic, 1, WAIT)["producer_ready"]
        returning = {"producer_name": "leader", "epoch": 1, "topic_epoch": 0}
        new.look_up(topic)
        new.send(
            Type.PRODUCER,
            topic=topic,
            producer_id=1,
            request_id=9,
            producer_access_mode=pb.ProducerAccessMode.Value(mode),
            **returning,
        )
        reply = new.reply()
        while not reply["producer_ready"]:
            reply = new.reply()
        assert reply["topic_epoch"] == "0"
        assert stats(broker, topic)["waitingPublishers"] == 1


def test_a_live_holder_is_not_replaced_by_one_that_says_it_is_the_same(broker: BrokerProcess, topic: str) -> None:
    with connected(broker) as holder, connected(broker) as other:
        opened(holder, topic, 1, EXCLUSIVE, producer_name="leader")
        again = opened(other, topic, 1, EXCLUSIVE, producer_name="leader", epoch=1, topic_epoch=0)
        assert again["error"] == "ProducerFenced"
        assert holder.publish(1, 1)[0]["type"] == "SEND_RECEIPT"
        assert stats(broker, topic)["waitingPublishers"] == 0


def test_what_was_published_before_the_turn_of_another_one_comes_before_its_messages(
    broker: BrokerProcess, topic: str
) -> None:
    with connected(broker) as holder, connected(broker) as waiting:
        opened(holder, topic, 1, EXCLUSIVE)
        opened(waiting, topic, 1, WAIT)
        for number in range(50):
            holder.send_message(1, number)
        holder.send(Type.CLOSE_PRODUCER, producer_id=1, request_id=7)
        last = [reply for reply in holder.replies() if reply["type"] == "SEND_RECEIPT"][-1]
        assert waiting.reply()["producer_ready"]
        first = waiting.publish(1, 1)[0]
        assert entry(last) < entry(first)


def entry(receipt: dict[str, Any]) -> int:
    return int(receipt["message_id"]["entryId"])
