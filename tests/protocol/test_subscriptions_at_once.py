"""Several clients make, take, move and delete one subscription at once: who can be served by waiting waits, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.async_client import AsyncClient, HeldSaves, Type, binary_port, waiting
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.topic.topic import Topic
from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.position import EARLIEST
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "/persistent/public/default/t/subscription/s"


@pytest.fixture
def held(broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSaves]:
    """The topic is there; what changes its cursors is held from now on."""
    saves = HeldSaves(broker, topic, monkeypatch)
    yield saves
    saves.release()


# --- SUBSCRIBE and SUBSCRIBE -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared"])
async def test_all_who_subscribe_first_at_once_get_in(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient], kind: str
) -> None:
    asked = [client.subscribe(TOPIC, sub_type=kind) for client in clients]
    await waiting(broker, 4)
    held.release()
    for client, request_id in zip(clients, asked, strict=True):
        assert (await client.answer(request_id))["type"] == "SUCCESS"
    assert len(topic.subscriptions["s"].consumers) == 5
    assert held.total == 1  # one cursor for all of them


async def test_of_all_who_subscribe_first_one_is_exclusive_and_the_others_are_told_so(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    asked = [client.subscribe(TOPIC, sub_type="Exclusive") for client in clients]
    await waiting(broker, 4)
    held.release()
    answers = await asyncio.gather(*map(AsyncClient.answer, clients, asked))
    assert sorted(str(each.get("error")) for each in answers) == ["ConsumerBusy"] * 4 + ["None"]
    assert len(topic.subscriptions["s"].consumers) == 1


async def test_another_type_is_told_that_it_is_another_and_not_to_try_again(
    broker: MemoryBroker, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    first = clients[0].subscribe(TOPIC)
    await broker.until(lambda: held.waiting == 1)
    second = clients[1].subscribe(TOPIC, sub_type="Failover")
    await waiting(broker, 1)
    held.release()
    assert (await clients[0].answer(first))["type"] == "SUCCESS"
    assert (await clients[1].answer(second))["error"] == "ConsumerBusy"


async def test_subscriptions_of_different_names_do_not_wait_for_each_other(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    asked = [client.subscribe(TOPIC, subscription=f"s{index}") for index, client in enumerate(clients)]
    await broker.until(lambda: held.waiting == 5)
    held.release()
    for client, request_id in zip(clients, asked, strict=True):
        assert (await client.answer(request_id))["type"] == "SUCCESS"
    assert len(topic.subscriptions) == 5


async def test_whoever_is_first_may_fail_and_the_next_one_makes_it(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    asked = [client.subscribe(TOPIC) for client in clients]
    await waiting(broker, 4)
    held.release(StoreError("the disk is gone for a moment"))
    answers = await asyncio.gather(*map(AsyncClient.answer, clients, asked))
    assert sorted(str(each.get("error")) for each in answers) == ["None"] * 4 + ["PersistenceError"]
    assert len(topic.subscriptions["s"].consumers) == 4


async def test_subscriptions_that_are_being_made_count_for_the_limit(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    assert (await broker.rest("POST", "/persistent/public/default/t/maxSubscriptionsPerTopic", 2)).status == 204
    asked = [client.subscribe(TOPIC, subscription=f"s{index}") for index, client in enumerate(clients)]
    await broker.until(lambda: held.waiting == 2)
    held.release()
    answers = await asyncio.gather(*map(AsyncClient.answer, clients, asked))
    assert sorted(str(each.get("error")) for each in answers) == ["None"] * 2 + ["NotAllowedError"] * 3
    assert len(topic.subscriptions) == 2


# --- who waits, and who is gone --------------------------------------------------------------------------------------------


async def test_whoever_leaves_while_the_subscription_is_made_leaves_one_that_is_whole(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    clients[0].subscribe(TOPIC)
    await broker.until(lambda: held.waiting == 1)
    clients[1].subscribe(TOPIC)
    third = clients[2].subscribe(TOPIC)
    await waiting(broker, 2)
    await clients[0].close()
    await clients[1].close()
    await waiting(broker, 1)
    held.release()
    assert (await clients[2].answer(third))["type"] == "SUCCESS"
    assert held.total == 1
    assert [each.peer.address for each in topic.subscriptions["s"].consumers]
    assert set(topic.ledger.cursors) == set(topic.ledger.document.cursors) == set(topic.subscriptions) == {"s"}


async def test_a_consumer_id_that_is_closed_and_used_again_while_it_is_set_up_has_one_consumer(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    client = clients[0]
    client.subscribe(TOPIC)
    await broker.until(lambda: held.waiting == 1)
    assert (await client.request(Type.CLOSE_CONSUMER, consumer_id=1))["type"] == "SUCCESS"
    again = client.subscribe(TOPIC)
    assert (await client.request(Type.LOOKUP, topic=TOPIC))["type"] == "LOOKUP_RESPONSE"  # It has read that.
    held.release()
    assert (await client.answer(again))["type"] == "SUCCESS"
    assert len(topic.subscriptions["s"].consumers) == 1
    await client.request(Type.CLOSE_CONSUMER, consumer_id=1)
    assert not topic.subscriptions["s"].consumers


async def test_a_consumer_that_is_closed_right_behind_its_subscribe_is_gone(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    """Both commands come with one read of the socket: the first has not begun when the second is there."""
    client, other = clients[:2]
    client.subscribe(TOPIC)
    assert (await client.request(Type.CLOSE_CONSUMER, consumer_id=1))["type"] == "SUCCESS"
    assert (await other.answer(other.subscribe(TOPIC, sub_type="Exclusive")))["type"] == "SUCCESS"
    assert len(topic.subscriptions["s"].consumers) == 1


async def test_a_subscribe_that_is_repeated_while_it_is_set_up_is_answered_once_it_is(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    first = clients[0].subscribe(TOPIC)
    await broker.until(lambda: held.waiting == 1)
    second = clients[0].subscribe(TOPIC)
    held.release()
    assert (await clients[0].answer(first))["type"] == "SUCCESS"
    assert (await clients[0].answer(second))["type"] == "SUCCESS"
    assert len(topic.subscriptions["s"].consumers) == 1


async def test_whoever_has_waited_too_long_is_told_so_at_once_and_the_others_go_on(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    object.__setattr__(broker.service.runtime.config, "subscription_turn_timeout_seconds", 0.05)
    first = clients[0].subscribe(TOPIC)
    await broker.until(lambda: held.waiting == 1)
    late = await clients[1].answer(clients[1].subscribe(TOPIC))
    assert late["error"] == "TooManyRequests"
    assert "being created" in late["message"]
    assert broker.service.broker_context.waiting.subscriptions.late_total == 1
    held.release()
    assert (await clients[0].answer(first))["type"] == "SUCCESS"
    assert broker.service.broker_context.waiting.subscriptions.count == 0


async def test_the_row_has_an_end(broker: MemoryBroker, held: HeldSaves, clients: list[AsyncClient]) -> None:
    object.__setattr__(broker.service.runtime.config, "max_waiting_subscription_requests", 2)
    asked = [clients[0].subscribe(TOPIC)]
    await broker.until(lambda: held.waiting == 1)
    asked += [clients[1].subscribe(TOPIC), clients[2].subscribe(TOPIC)]
    await waiting(broker, 2)
    refused = await clients[3].answer(clients[3].subscribe(TOPIC))
    assert refused["error"] == "TooManyRequests"
    assert "maxWaitingSubscriptionRequests" in refused["message"]
    held.release()
    for client, request_id in zip(clients, asked, strict=False):
        assert (await client.answer(request_id))["type"] == "SUCCESS"


# --- a durable subscription and a reader of one name -----------------------------------------------------------------------


@pytest.mark.parametrize("is_reader_first", [False, True])
async def test_a_durable_subscription_and_a_reader_of_one_name_at_once_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, is_reader_first: bool
) -> None:
    limits = LedgerLimits(max_entries_per_ledger=10, min_rollover_ms=0)
    async with memory_broker(limits) as broker, binary_port(broker) as port:
        topic = await broker.topic(TOPIC)
        durable, reader = await port.connect(), await port.connect()
        held = HeldSaves(broker, topic, monkeypatch)
        asked = durable.subscribe(TOPIC)
        await broker.until(lambda: held.waiting == 1)
        read = reader.subscribe(TOPIC, durable=False)
        await waiting(broker, 1)
        held.release()
        assert (await durable.answer(asked))["type"] == "SUCCESS"
        assert (await reader.answer(read))["error"] == "NotAllowedError"
        if is_reader_first:
            assert (await durable.request(Type.UNSUBSCRIBE, consumer_id=1))["type"] == "SUCCESS"
            assert (await reader.answer(reader.subscribe(TOPIC, durable=False)))["type"] == "SUCCESS"
            assert (await durable.answer(durable.subscribe(TOPIC)))["error"] == "NotAllowedError"
            await reader.request(Type.CLOSE_CONSUMER, consumer_id=1)
            assert (await durable.answer(durable.subscribe(TOPIC)))["type"] == "SUCCESS"
        await reader.close()
        await broker.publish(topic, 60)
        await topic.ledger.trim()
        assert topic.subscriptions["s"].backlog_entries == 60
        assert topic.ledger.cursors["s"] is topic.subscriptions["s"].cursor
        after: list[int] = []
        await broker.service.topics.unload(topic)
        topic = await broker.topic(TOPIC)
        after.append(topic.subscriptions["s"].backlog_entries)
        assert after == [60]


# --- SUBSCRIBE and moves ---------------------------------------------------------------------------------------------------


async def subscribed(client: AsyncClient, **fields: Any) -> None:
    assert (await client.answer(client.subscribe(TOPIC, **fields)))["type"] == "SUCCESS"


class HeldMoves:
    """Holds moves of cursors until it is told to let them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.begun = 0
        reset = ManagedCursor.reset

        async def held(cursor: ManagedCursor, *arguments: Any) -> None:
            self.begun += 1
            await self.open.wait()
            await reset(cursor, *arguments)

        monkeypatch.setattr(ManagedCursor, "reset", held)


async def test_subscribers_wait_for_a_seek_and_go_on_where_it_went(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribed(clients[0])
    await broker.publish(topic, 5)
    moves = HeldMoves(monkeypatch)
    seek = clients[0].ask(Type.SEEK, consumer_id=1, message_publish_time=1)
    await broker.until(lambda: moves.begun == 1)
    asked = [client.subscribe(TOPIC) for client in clients[1:]]
    await waiting(broker, 4)
    moves.open.set()
    assert (await clients[0].answer(seek))["type"] == "SUCCESS"
    for client, request_id in zip(clients[1:], asked, strict=True):
        assert (await client.answer(request_id))["type"] == "SUCCESS"
    assert len(topic.subscriptions["s"].consumers) == 4


async def test_moves_by_clients_and_administrators_come_one_after_the_other(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    await subscribed(clients[0])
    await subscribed(clients[1])
    positions = await broker.publish(topic, 5)
    async with topic.subscription_lock("s", "being held by this test"):
        first = clients[0].ask(Type.SEEK, consumer_id=1, message_publish_time=1)
        await waiting(broker, 1)
        to = pb.MessageIdData(ledgerId=positions[1].ledger_id, entryId=positions[1].entry_id)
        second = clients[1].ask(Type.SEEK, consumer_id=1, message_id=to)
        await waiting(broker, 2)
        body = {"ledgerId": positions[3].ledger_id, "entryId": positions[3].entry_id}
        by_rest = asyncio.ensure_future(broker.rest("POST", f"{SUBSCRIPTION}/resetcursor", body))
        await waiting(broker, 3)
    assert (await clients[0].answer(first))["type"] == "SUCCESS"
    assert (await clients[1].answer(second))["type"] == "SUCCESS"
    assert (await by_rest).status == 204
    assert topic.subscriptions["s"].backlog_entries == 2


async def test_a_seek_waits_until_the_topic_is_closed_and_is_done_on_the_next_one(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    await subscribed(clients[0])
    await broker.publish(topic, 5)
    await topic.subscriptions["s"].cursor.skip_all()
    async with topic.subscription_lock("s", "being held by this test"):
        seek = clients[0].ask(Type.SEEK, consumer_id=1, message_publish_time=1)
        await waiting(broker, 1)
        unloading = asyncio.ensure_future(broker.service.topics.unload(topic))
        await broker.until(lambda: topic.is_fenced)
    await unloading
    assert (await clients[0].answer(seek))["type"] == "SUCCESS"
    assert (await broker.topic(TOPIC)).subscriptions["s"].backlog_entries == 5


# --- SUBSCRIBE and the end of a subscription or topic ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unsubscribe", "rest"])
async def test_whoever_subscribes_while_it_is_deleted_gets_a_new_one(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient], how: str
) -> None:
    held.release()
    await subscribed(clients[0])
    before = topic.subscriptions["s"]
    held.hold()
    ending: asyncio.Future[Any]
    if how == "rest":
        ending = asyncio.ensure_future(broker.rest("DELETE", f"{SUBSCRIPTION}?force=true"))
    else:
        ending = asyncio.ensure_future(clients[0].request(Type.UNSUBSCRIBE, consumer_id=1))
    await broker.until(lambda: held.waiting == 1)
    asked = [client.subscribe(TOPIC) for client in clients[1:]]
    await waiting(broker, 4)
    held.release()
    await ending
    for client, request_id in zip(clients[1:], asked, strict=True):
        assert (await client.answer(request_id))["type"] == "SUCCESS"
    now = topic.subscriptions["s"]
    assert now is not before
    assert len(now.consumers) == 4
    assert topic.ledger.cursors == {"s": now.cursor}
    assert topic.ledger.document.cursors["s"].id == now.cursor.cursor_id


async def test_a_deletion_that_fails_leaves_the_subscription_as_it_was(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    held.release()
    await subscribed(clients[0])
    await broker.publish(topic, 3)
    held.hold()
    ending = clients[0].ask(Type.UNSUBSCRIBE, consumer_id=1)
    await broker.until(lambda: held.waiting == 1)
    second = clients[1].subscribe(TOPIC)
    await waiting(broker, 1)
    held.release(StoreError("not now"))
    assert (await clients[0].answer(ending))["error"] == "PersistenceError"
    assert (await clients[1].answer(second))["type"] == "SUCCESS"
    assert topic.subscriptions["s"].backlog_entries == 3
    assert topic.ledger.cursors == {"s": topic.subscriptions["s"].cursor}


async def test_a_deletion_looks_for_consumers_once_its_turn_has_come(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    asked = clients[0].subscribe(TOPIC)
    await broker.until(lambda: held.waiting == 1)
    deleting = asyncio.ensure_future(broker.rest("DELETE", SUBSCRIPTION))
    await waiting(broker, 1)
    held.release()
    assert (await clients[0].answer(asked))["type"] == "SUCCESS"
    assert (await deleting).status == 412
    assert topic.subscriptions["s"].consumers


async def test_an_unused_subscription_that_somebody_takes_before_it_is_deleted_stays(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.rest("POST", "/namespaces/public/default/subscriptionExpirationTime", 10)
    await topic.subscription("s", True, True, {})
    broker.clock.now_ms += 60 * 60_000
    async with topic.subscription_lock("s", "being held by this test"):
        asked = clients[0].subscribe(TOPIC)
        await waiting(broker, 1)
        checking = asyncio.ensure_future(broker.service.maintenance.check_unused_subscriptions())
        await waiting(broker, 2)
    await checking
    assert (await clients[0].answer(asked))["type"] == "SUCCESS"
    assert topic.subscriptions["s"].consumers


async def test_whoever_subscribes_while_the_topic_is_unloaded_gets_in_on_the_next_one(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    asked = [client.subscribe(TOPIC) for client in clients[:3]]
    await waiting(broker, 2)
    unloading = asyncio.ensure_future(broker.service.topics.unload(topic))
    await broker.until(lambda: topic.is_fenced)
    asked += [client.subscribe(TOPIC) for client in clients[3:]]
    held.release()
    await unloading
    for client, request_id in zip(clients, asked, strict=True):
        assert (await client.answer(request_id))["type"] == "SUCCESS"
    now = await broker.topic(TOPIC)
    assert now is not topic
    assert len(now.subscriptions["s"].consumers) == 5
    assert not topic.subscriptions["s"].consumers


async def test_whoever_subscribes_while_the_topic_is_deleted_gets_in_on_the_next_one(
    broker: MemoryBroker, topic: Topic, held: HeldSaves, clients: list[AsyncClient]
) -> None:
    asked = [client.subscribe(TOPIC) for client in clients[:3]]
    await waiting(broker, 2)
    deleting = asyncio.ensure_future(broker.rest("DELETE", "/persistent/public/default/t?force=true"))
    await broker.until(lambda: topic.is_fenced)
    held.release()
    assert (await deleting).status == 204
    for client, request_id in zip(clients, asked, strict=False):
        assert (await client.answer(request_id))["type"] == "SUCCESS"
    now = await broker.topic(TOPIC)
    assert now is not topic
    assert len(now.subscriptions["s"].consumers) == 3


async def test_a_non_persistent_topic_that_is_deleted_is_waited_for(
    broker: MemoryBroker, clients: list[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "non-persistent://public/default/n"
    assert (await clients[0].answer(clients[0].subscribe(name)))["type"] == "SUCCESS"
    go_on, begun = asyncio.Event(), asyncio.Event()
    forget = broker.service.resources.forget_topic

    async def held_forget(*arguments: Any) -> None:
        begun.set()
        await go_on.wait()
        await forget(*arguments)

    monkeypatch.setattr(broker.service.resources, "forget_topic", held_forget)
    deleting = asyncio.ensure_future(broker.rest("DELETE", "/non-persistent/public/default/n?force=true"))
    await begun.wait()
    asked = clients[1].subscribe(name)
    assert (await clients[1].request(Type.LOOKUP, topic=name))["type"] == "LOOKUP_RESPONSE"
    go_on.set()
    assert (await deleting).status == 204
    assert (await clients[1].answer(asked))["type"] == "SUCCESS"


# --- the dead --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_durable", [True, False])
async def test_whoever_takes_the_place_of_a_dead_consumer_is_on_the_subscription_of_now(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient], monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    await subscribed(clients[0], sub_type="Exclusive", durable=is_durable)
    before = topic.subscriptions["s"]
    [dead] = before.consumers

    async def is_alive() -> bool:
        """It is dead, and meanwhile the subscription is deleted."""
        async with topic.subscription_lock("s", "being deleted"):
            await topic.delete_subscription(before)
        return False

    monkeypatch.setattr(dead.peer, "is_alive", is_alive)
    assert (await clients[1].answer(clients[1].subscribe(TOPIC, sub_type="Exclusive", durable=is_durable)))[
        "type"
    ] == "SUCCESS"
    [consumer] = topic.subscriptions["s"].consumers
    assert consumer.subscription is topic.subscriptions["s"]
    assert consumer.subscription is not before
    peer = RecordingPeer()
    consumer.peer = peer
    consumer.flow(10)
    await broker.publish(topic, 1)
    await broker.until(lambda: len(peer.delivered) == 1)


# --- REST ------------------------------------------------------------------------------------------------------------------


async def test_of_administrators_who_make_one_subscription_at_once_one_does_and_the_others_find_it_made(
    broker: MemoryBroker, topic: Topic, held: HeldSaves
) -> None:
    making = [asyncio.ensure_future(broker.rest("PUT", SUBSCRIPTION)) for _ in range(4)]
    await waiting(broker, 3)
    held.release()
    assert sorted([(await each).status for each in making]) == [204, 409, 409, 409]
    assert set(topic.ledger.cursors) == {"s"}


async def test_a_subscription_by_rest_waits_until_the_topic_is_closed(
    broker: MemoryBroker, topic: Topic, held: HeldSaves
) -> None:
    making = [asyncio.ensure_future(broker.rest("PUT", SUBSCRIPTION)) for _ in range(2)]
    await waiting(broker, 1)
    unloading = asyncio.ensure_future(broker.service.topics.unload(topic))
    await broker.until(lambda: topic.is_fenced)
    held.release()
    await unloading
    assert sorted([(await each).status for each in making]) == [204, 409]
    assert set((await broker.topic(TOPIC)).subscriptions) == {"s"}


async def test_what_administrators_do_to_a_subscription_at_once_is_done_in_order(
    broker: MemoryBroker, topic: Topic, held: HeldSaves
) -> None:
    held.release()
    await topic.subscription("s", True, True, {})
    await broker.publish(topic, 10)
    calls: list[asyncio.Future[Any]] = []
    async with topic.subscription_lock("s", "being held by this test"):
        for method, path in (
            ("POST", "/skip/3"),
            ("POST", "/skip_all"),
            ("POST", "/resetcursor/1"),
            ("DELETE", ""),
            ("POST", "/skip/1"),
        ):
            calls.append(asyncio.ensure_future(broker.rest(method, SUBSCRIPTION + path)))
            await waiting(broker, len(calls))
    assert [(await each).status for each in calls] == [204, 204, 204, 204, 404]
    assert not topic.subscriptions


async def test_an_expired_wait_is_answered_429_by_rest(broker: MemoryBroker, topic: Topic) -> None:
    object.__setattr__(broker.service.runtime.config, "subscription_turn_timeout_seconds", 0.05)
    async with topic.subscription_lock("s", "being held by this test"):
        assert (await broker.rest("PUT", SUBSCRIPTION)).status == 429
    assert (await broker.rest("PUT", SUBSCRIPTION)).status == 204


async def test_a_subscription_deleted_while_the_topic_is_truncated_fails_neither(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await topic.subscription(name, True, True, {})
    await broker.publish(topic, 3)
    cursor = topic.ledger.cursors["b"]
    skip_all = cursor.skip_all

    async def deleted_meanwhile() -> int:
        await topic.delete_subscription(topic.subscriptions["b"])
        return await skip_all()

    monkeypatch.setattr(cursor, "skip_all", deleted_meanwhile)
    await topic.truncate()
    assert set(topic.subscriptions) == {"a"}
    assert topic.subscriptions["a"].backlog_entries == 0


async def test_readers_of_one_name_come_and_go_without_taking_the_next_one_along(
    broker: MemoryBroker, topic: Topic
) -> None:
    first = topic.registry.non_durable("r", EARLIEST)
    topic.registry.drop(first)
    second = topic.registry.non_durable("r", EARLIEST)
    topic.registry.drop(first)
    await topic.registry.delete(first)
    assert topic.subscriptions["r"] is second
    assert topic.ledger.cursors["r"] is second.cursor
