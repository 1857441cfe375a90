"""`explain` over REST on a broker in the test's own process: what is answered, to whom, and in the middle of everything."""

from __future__ import annotations

import asyncio
import itertools
import random
import shlex
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from starlette.routing import Match
from tests.support.findings import counting_pauses
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.admin.calls import http_limits
from pybroker.admin.explain import explain_routes
from pybroker.broker.explain import actions, known_keys, subscription_state
from pybroker.broker.explain.steps import LISTED, PIECE
from pybroker.broker.explain.subscriptions import explain_subscription
from pybroker.broker.inspection.hashes import hash_of_key
from pybroker.broker.topic.backlog_quota import require_within_quota
from pybroker.broker.topic.topic import Topic
from pybroker.cli.command_table import COMMANDS
from pybroker.cli.program import command_parser
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.dispatch.views import KeyOrderView
from pybroker.errors import ProducerBlockedQuotaExceededException
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.events import Ack, SendRun
from pybroker.model.findings import Code, Finding, safest_first
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId
from pybroker.runtime import time_slices
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
AT = "/persistent/public/default/t"


async def test_a_subscription_of_which_nobody_waits_has_no_finding() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await broker.consumer(topic, "s", RecordingPeer())
        found = await broker.rest("GET", f"{AT}/subscription/s/explain")
        assert found.status == 200
        assert (found.json["waiting"], found.json["findings"]) == (False, [])
        assert found.json["subject"] == {"kind": "subscription", "type": "Shared", "consumers": 1, "backlogEntries": 0}


async def test_messages_without_a_consumer_are_found_in_the_subscription_and_in_its_topic() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await broker.publish(topic, 3)
        found = (await broker.rest("GET", f"{AT}/subscription/s/explain")).json
        assert found["waiting"]
        assert [each["code"] for each in found["findings"]] == ["no-consumers"]
        assert found["findings"][0]["evidence"]["waitingEntries"] == 3
        of_topic = (await broker.rest("GET", f"{AT}/explain")).json
        assert of_topic["waiting"]
        assert [(each["subscription"], each["findings"][0]["code"]) for each in of_topic["subscriptions"]] == [
            ("s", "no-consumers")
        ]


async def test_what_does_not_exist_is_answered_404() -> None:
    async with memory_broker() as broker:
        assert (await broker.rest("GET", f"{AT}/explain")).status == 404
        assert (await broker.rest("GET", f"{AT}/subscription/s/explain")).status == 404
        await broker.topic(TOPIC)
        assert (await broker.rest("GET", f"{AT}/subscription/s/explain")).status == 404


async def explained(broker: MemoryBroker, query: str = "") -> dict[str, Any]:
    answer = await broker.rest("GET", f"{AT}/subscription/s/explain{query}")
    assert answer.status == 200, answer
    return dict(answer.json)


async def codes(broker: MemoryBroker, query: str = "") -> list[str]:
    return [each["code"] for each in (await explained(broker, query))["findings"]]


async def publish_chunk(broker: MemoryBroker, topic: Topic, chunk_id: int, chunk_count: int) -> Position:
    peer = RecordingPeer()
    producer = broker.producer(topic, peer, "chunked")
    meta = pb.MessageMetadata(
        producer_name="chunked",
        sequence_id=0,
        publish_time=broker.clock.now_ms,
        uuid="large-0",
        chunk_id=chunk_id,
        num_chunks_from_msg=chunk_count,
        total_chunk_msg_size=3,
    ).SerializeToString()
    run = SendRun(1)
    run.sequence_ids.append(0)
    run.highest_sequence_ids.append(0)
    run.message_counts.append(1)
    run.payloads.append(len(meta).to_bytes(4, "big") + meta + b"x")
    run.size_bytes = len(run.payloads[0])
    run.chunk_count = 1
    topic.publish(producer, run)
    await producer.drained()
    producer.detach()
    return peer.receipts[0]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
async def test_chunks_that_were_never_published_are_found(kind: str) -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        peer = RecordingPeer()
        consumer = await broker.consumer(topic, "s", peer, kind)
        first = await publish_chunk(broker, topic, 0, 3)
        await broker.until(lambda: len(peer.delivered) == 1)
        (finding,) = (await explained(broker))["findings"]
        assert (finding["code"], finding["waits"]) == ("chunks-missing", False)
        assert finding["sentence"].startswith("Consumer c has had 1 of the 3 chunks of message large-0")
        (message,) = finding["evidence"]["messages"]
        assert (message["consumer"]["name"], message["messageIds"]) == ("c", [str(first)])
        others = [await publish_chunk(broker, topic, each, 3) for each in (1, 2)]
        await broker.until(lambda: len(peer.delivered) == 3)
        assert await codes(broker) == []
        acknowledge(consumer, [first, *others])
        assert await codes(broker) == []


def have_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManagedCursor, "read_cached", lambda *_: None)


async def test_who_waits_for_memory_is_found_with_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    have_nothing_in_memory(monkeypatch)
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await broker.publish(topic, 3)
        memory = broker.service.runtime.memory
        others_bytes = memory.reads.most_bytes
        memory.follow(memory.reads.count(others_bytes))
        peer = RecordingPeer()
        await broker.consumer(topic, "s", peer)
        await broker.until(lambda: memory.reads.waiting > 0)
        (finding,) = (await explained(broker))["findings"]
        assert finding["code"] == "memory-budget"
        assert finding["evidence"]["parts"]["reads"] >= others_bytes
        assert finding["evidence"]["limitBytes"] == memory.budget.limit_bytes
        assert finding["evidence"]["waitingEntries"] == 3
        memory.follow(memory.reads.give_back(others_bytes))
        await broker.until(lambda: len(peer.delivered) == 3)
        assert await codes(broker) == []


async def test_a_read_that_takes_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_state, "SLOW_READ_MS", 0)
    have_nothing_in_memory(monkeypatch)
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        positions = await broker.publish(topic, 3)
        store = broker.service.ledgers.store
        may_read, read = asyncio.Event(), store.read

        async def slow_read(*arguments: Any) -> Any:
            await may_read.wait()
            return await read(*arguments)

        monkeypatch.setattr(store, "read", slow_read)
        peer = RecordingPeer()
        await broker.consumer(topic, "s", peer)
        subscription = topic.subscriptions["s"]
        await broker.until(lambda: subscription.is_reading)
        (finding,) = (await explained(broker))["findings"]
        assert finding["code"] == "reading"
        assert finding["evidence"] == {"readPosition": str(positions[0]), "waitingEntries": 3}
        may_read.set()
        await broker.until(lambda: len(peer.delivered) == 3)
        assert await codes(broker) == []


async def test_messages_that_nobody_may_see_wait_for_nobody() -> None:
    """Acknowledged one by one, or held back for their time: without a consumer, too."""
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        consumer = await broker.consumer(topic, "s", RecordingPeer())
        positions = await broker.publish(topic, 5)
        await broker.until(lambda: consumer.state.unacked_messages == 5)
        acknowledge(consumer, positions[1:])
        consumer.detach()
        (finding,) = (await explained(broker))["findings"]
        assert (finding["code"], finding["evidence"]["waitingEntries"]) == ("no-consumers", 1)
        other = await broker.consumer(topic, "s", RecordingPeer())
        await broker.until(lambda: other.state.unacked_messages == 1)
        acknowledge(other, positions[:1])
        other.detach()
        assert await codes(broker) == []


async def test_a_quota_of_nothing_keeps_producers_out_of_a_topic_that_nobody_has_subscribed_to() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        quota = {"limitSize": 0, "limitTime": -1, "policy": "producer_exception"}
        assert (await broker.rest("POST", f"{AT}/backlogQuota", quota)).status == 204
        with pytest.raises(ProducerBlockedQuotaExceededException):
            await require_within_quota(topic)
        (finding, _) = (await broker.rest("GET", f"{AT}/explain?producer=p")).json["findings"]
        assert (finding["code"], finding["evidence"]) == (
            "backlog-quota",
            {"policy": "producer_exception", "backlogBytes": 0, "limitBytes": 0},
        )
        assert finding["sentence"].startswith(f"The backlog of topic {TOPIC} is 0 bytes, with a limit of 0:")


async def test_who_asks_for_two_subjects_at_once_is_refused() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await broker.consumer(topic, "s", RecordingPeer())
        for query in ("key=a&consumer=c", "key=a&keyBase64=YQ==", "keyBase64=%21"):
            assert (await broker.rest("GET", f"{AT}/subscription/s/explain?{query}")).status == 412


async def test_asking_while_everything_comes_and_goes_is_never_a_fault() -> None:
    """Consumers of all types, unloads and deletions, and several who ask for everything meanwhile."""
    async with memory_broker() as broker:
        await broker.topic(TOPIC)
        is_over = False
        seen: Counter[int] = Counter()

        async def ask(query: str) -> None:
            while not is_over:
                answer = await broker.rest("GET", f"{AT}{query}")
                seen[answer.status] += 1
                assert answer.status in {200, 404, 503}, answer

        async def come_and_go() -> None:
            kinds = ["Shared", "Key_Shared", "Exclusive", "Failover"]
            for turn in range(40):
                kind = kinds[turn % 4]
                topic = await broker.topic(TOPIC)
                subscription = await topic.subscription("s", True, True, {})
                consumers = [
                    broker.consumer_on(subscription, RecordingPeer(), kind, f"c{index}")
                    for index in range(1 if kind == "Exclusive" else 3)
                ]
                await broker.publish(topic, 6, [f"k{index}" for index in range(6)])
                consumers.pop().close_from_broker()
                if turn % 5 == 4:
                    await broker.rest("PUT", f"{AT}/unload")
                elif turn % 7 == 6:
                    await broker.rest("DELETE", f"{AT}?force=true")
                for consumer in consumers:
                    consumer.close_from_broker()

        asking = [
            asyncio.ensure_future(ask(query))
            for query in ("/explain", "/subscription/s/explain", "/subscription/s/explain?key=k1")
        ]
        asking.append(asyncio.ensure_future(ask("/subscription/s/explain?consumer=c0")))
        try:
            await come_and_go()
        finally:
            is_over = True
            await asyncio.gather(*asking)
        assert seen[200] > 0


@pytest.mark.parametrize("query", ["/subscription/s/explain?messageId=0:0", "/explain?producer=p", "/explain"])
async def test_what_was_found_of_a_topic_that_is_unloaded_meanwhile_is_not_told(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await broker.publish(topic, 1)
        found = asyncio.Event()

        async def unloaded_before(*_: object) -> None:
            found.set()
            await broker.service.topics.unload(topic)

        if "messageId" in query:
            reasons = explain_routes.message_reasons  # type: ignore[attr-defined]

            async def reasons_late(*arguments: Any) -> Any:
                await unloaded_before()
                return await reasons(*arguments)

            monkeypatch.setattr(explain_routes, "message_reasons", reasons_late)
        else:
            monkeypatch.setattr(explain_routes, "exceeded_if_known", unloaded_before)
        answer = await broker.rest("GET", f"{AT}{query}")
        assert found.is_set()
        assert (answer.status, "being unloaded" in answer.text) == (503, True)


async def test_thousands_of_keys_that_drain_and_what_is_held_of_them_are_looked_at_in_small_pieces() -> None:
    async with memory_broker(max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0) as broker:
        topic = await broker.topic(TOPIC)
        subscription = await topic.subscription("s", True, True, {})
        first = broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", "first")
        first.flow(1_000_000)
        keys = [str(number) for number in range(4_000)]
        for _ in range(3):
            await broker.publish(topic, 4_000, keys)
        await broker.until(lambda: first.state.unacked_messages == 12_000)
        for number in range(9):
            broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", f"c{number}").flow(100_000)
        await broker.publish(topic, 4_000, keys)
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        waiting, parked = dispatcher.waiting.waiting, dispatcher.parked
        await broker.until(lambda: not subscription.is_queued and len({*waiting, *parked.hashes}) > 3_000)
        pauses, findings = counting_pauses(explain_subscription(topic, subscription))
        assert pauses >= 3_000 // PIECE
        assert [each.code for each in findings] == [Code.KEY_DRAINS]
        (finding,) = (await explained(broker))["findings"]
        assert len(finding["evidence"]["hashes"]) == LISTED
        assert finding["evidence"]["moreHashes"] > 2_000
        assert all(len(each["messageIds"]) >= 3 for each in finding["evidence"]["hashes"])
        assert all(each["keys"] for each in finding["evidence"]["hashes"])
        assert finding["table"]["more"] == finding["evidence"]["moreHashes"]
        assert finding["moreCommand"] == f"pybroker draining {TOPIC} s"
        assert await codes(broker, "?consumer=first") == ["key-drains", "held-by-consumer"]


async def test_consumer_that_waits_for_a_draining_key_is_explained_as_stuck() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        subscription = await topic.subscription("s", True, True, {})
        first = broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", "first")
        first.flow(100)
        keys = [str(number) for number in range(100)]
        await broker.publish(topic, 100, keys)
        await broker.until(lambda: first.state.unacked_messages == 100)
        broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", "second").flow(100)
        await broker.publish(topic, 100, keys)
        key_order = subscription.key_order
        assert key_order is not None
        await broker.until(lambda: len(key_order.draining.hashes()) > 0 and bool(key_order.waiting.waiting))
        answer = await explained(broker, "?consumer=second")
        assert answer["findings"][0]["code"] == "key-drains"
        assert answer["findings"][0]["waits"]
        assert answer["findings"][0]["evidence"]["hashes"][0]["to"]["name"] == "second"


async def test_blocked_hash_shows_all_keys_in_memory_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        subscription = await topic.subscription("s", True, True, {})
        first = broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", "first")
        first.flow(1000)
        key_order = subscription.key_order
        assert key_order is not None
        keys = _keys_of_one_hash(key_order, 24)
        await broker.publish(topic, 24, keys)
        await broker.until(lambda: first.state.unacked_messages == 24)
        for number in range(5):
            broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", f"c{number}").flow(100)
        assert len(key_order.draining) == 1
        await broker.publish(topic, 24, keys)
        await broker.until(lambda: subscription.replay_entry_count == 24)
        (finding,) = (await explained(broker))["findings"]
        (row,) = finding["evidence"]["hashes"]
        assert [each["key"] for each in row["keys"]] == keys[: known_keys.MAX_KEYS]
        assert row["moreKeys"] == 24 - known_keys.MAX_KEYS
        assert finding["sentence"].startswith(f"Key {keys[0]} and 23 other keys with the same hash are blocked: ")
        monkeypatch.setattr(known_keys, "MAX_ENTRIES", 3)
        (finding,) = (await explained(broker))["findings"]
        assert [each["key"] for each in finding["evidence"]["hashes"][0]["keys"]] == keys[:3]
        monkeypatch.setattr(type(topic.ledger), "read_cached", lambda *_: None)
        (finding,) = (await explained(broker))["findings"]
        assert "keys" not in finding["evidence"]["hashes"][0]
        assert finding["sentence"].startswith(f"The key with hash {row['hash']} is blocked: ")


def _keys_of_one_hash(key_order: KeyOrderView, count: int) -> list[str]:
    by_hash: dict[int, list[str]] = {}
    for number in itertools.count():
        keys = by_hash.setdefault(hash_of_key(key_order, b"%d" % number), [])
        keys.append(str(number))
        if len(keys) == count:
            return keys
    raise AssertionError("the numbers do not end")


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"customer-7", {"key": "customer-7"}),
        (b"\xff\x00", {"keyBase64": "/wA="}),
        ("é".encode() * 200, {"key": "é" * 128, "sizeBytes": 400}),
        (b"x" + "é".encode() * 200, {"key": "x" + "é" * 127, "sizeBytes": 401}),
    ],
)
def test_key_is_shown_as_text_or_base64_and_cut(key: bytes, shown: dict[str, Any]) -> None:
    assert known_keys.key_evidence(key) == shown


async def test_a_thousand_consumers_without_room_are_one_finding_that_names_ten() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        subscription = await topic.subscription("s", True, True, {})
        for number in range(1000):
            broker.consumer_on(subscription, RecordingPeer(), "Shared", f"c{number}").state.permits = 0
        await broker.publish(topic, 1)
        pauses, findings = counting_pauses(explain_subscription(topic, subscription))
        assert pauses >= 1000 // PIECE
        (finding,) = findings
        assert finding.code is Code.NO_PERMITS
        assert len(finding.evidence["consumers"]) == LISTED
        assert finding.evidence["moreConsumers"] == 990
        assert finding.sentence.startswith("1,000 consumers (c0, c1, c2 and 997 more) have had a full receiver queue")


async def test_what_each_of_many_consumers_holds_is_looked_at_one_after_the_other() -> None:
    async with memory_broker(max_unacked_messages_per_subscription=30) as broker:
        topic = await broker.topic(TOPIC)
        subscription = await topic.subscription("s", True, True, {})
        for number in range(15):
            broker.consumer_on(subscription, RecordingPeer(), "Shared", f"c{number}").flow(2)
        await broker.publish(topic, 40)
        dispatcher = subscription.dispatcher
        await broker.until(lambda: dispatcher is not None and dispatcher.blocked)
        pauses, findings = counting_pauses(explain_subscription(topic, subscription))
        assert pauses >= LISTED
        (finding,) = findings
        assert (finding.code, finding.evidence["unackedMessages"]) == (Code.UNACKED_LIMIT_SUBSCRIPTION, 30)
        assert len(finding.evidence["consumers"]) == LISTED
        assert finding.evidence["moreConsumers"] == 5


async def test_the_subscriptions_of_a_topic_are_looked_at_one_after_the_other() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        for number in range(30):
            await topic.subscription(f"s{number}", True, True, {})
        await broker.publish(topic, 1)
        pauses, listed = counting_pauses(explain_routes.of_subscriptions(topic, [*topic.subscriptions, "gone"]))
        assert pauses >= 30
        assert [(each["subscription"], each["waiting"]) for each in listed] == [(f"s{n}", True) for n in range(30)]


async def test_few_look_at_the_same_time_and_the_others_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_MS", 0)
    looking, most = 0, 0

    def long_look(*_: object) -> Generator[None, None, list[Finding]]:
        nonlocal looking, most
        looking += 1
        most = max(most, looking)
        for _ in range(500):  # type: ignore[assignment]
            yield
        looking -= 1
        return []

    monkeypatch.setattr(explain_routes, "explain_subscription", long_look)
    monkeypatch.setattr(http_limits, "LOOKS_AT_ONCE", 2)
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        asking = [asyncio.ensure_future(broker.rest("GET", f"{AT}/subscription/s/explain")) for _ in range(5)]
        assert [(await each).status for each in asking] == [200] * 5
    assert (most, looking) == (2, 0)


async def test_every_call_that_findings_suggest_is_served() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        consumer = await broker.consumer(topic, "s/1", RecordingPeer())
        subscription, txn = topic.subscriptions["s/1"], TxnId(1, 2)
        suggested = [
            actions.explain_subscription(subscription),
            actions.explain_consumer(consumer),
            actions.explain_producer(topic.name, "p 1"),
            actions.show_subscriptions(topic.name),
            actions.show_unacked(consumer),
            actions.show_draining_hashes(subscription),
            actions.show_waiting(subscription),
            actions.show_delayed(subscription),
            actions.show_transaction(txn),
            actions.show_resource_group("g 1"),
            actions.deliver_now(subscription, Position(1, 2)),
            actions.raise_limit(topic.name, "maxUnackedMessagesOnConsumer", 1, "more"),
            actions.raise_limit(topic.name, "backlogQuota", {"limitSize": 2}, "more", "message_age"),
            actions.raise_subscription_dispatch_rate(subscription, {"dispatchThrottlingRateInMsg": 2}, "more"),
            actions.raise_configuration("dispatchThrottlingRateInMsg", 2, "more"),
            actions.compact_again(topic.name),
            actions.disconnect(consumer),
            actions.disconnect_producer(topic.name, "p 1"),
            actions.redeliver(subscription, Position(1, 2)),
            actions.seek_to(subscription, Position(1, 2)),
            actions.acknowledge(subscription, Position(1, 2)),
            actions.skip_all(subscription),
            actions.delete_subscription(subscription),
            actions.evict_backlog(topic.name, {"policy": "consumer_backlog_eviction"}, "message_age"),
            actions.skip_damaged_everywhere(),
            actions.abort_transaction(txn),
        ]
        for action in suggested:
            scope = {"type": "http", "method": action.method, "path": action.path.partition("?")[0]}
            assert any(route.matches(scope)[0] is Match.FULL for route in broker.routes), action
            name, *arguments = shlex.split(action.command)[1:]
            command_parser(COMMANDS[name]).parse_args(arguments)
        assert [each.severity for each in safest_first(suggested)] == [each.severity for each in suggested]


async def test_what_an_open_transaction_has_acknowledged_waits_for_nobody_without_a_consumer() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        consumer = await broker.consumer(topic, "s", RecordingPeer())
        positions = await broker.publish(topic, 2)
        await broker.until(lambda: consumer.state.unacked_messages == 2)
        ack = Ack(consumer.consumer_id)
        ack.groups.append((positions[0].ledger_id, [each.entry_id for each in positions]))
        ack.txn = TxnId(0, 1)
        consumer.subscription.acknowledge(consumer, ack)
        await broker.until(lambda: len(topic.subscriptions["s"].cursor.state.held.open) == 1)
        consumer.detach()
        assert await codes(broker) == []


async def test_a_list_of_what_is_stuck_is_made_while_topics_and_consumers_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time_slices, "SLICE_MS", 0)  # to others after each piece
    chance = random.Random(25)
    async with memory_broker() as broker:
        table = broker._server.console.table
        consumers: list[Any] = []

        async def disturb() -> None:
            name = f"{TOPIC}{chance.randrange(4)}"
            topic = await broker.topic(name)
            subscription = await topic.subscription(f"s{chance.randrange(3)}", True, True, {})
            what = chance.randrange(6)
            if what == 0:
                await broker.service.topics.unload(topic)
            elif what == 1:
                consumers.append(broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", f"c{len(consumers)}"))
                consumers[-1].flow(chance.randrange(5))
            elif what == 2 and consumers:
                consumers.pop(chance.randrange(len(consumers))).detach()
            elif what == 3 and not subscription.consumers:
                await broker.rest("DELETE", f"{AT}{name[-1]}/subscription/{subscription.name}?force=true")
            else:
                await broker.publish(topic, 5, ["a", "b", "c"])

        making = [asyncio.ensure_future(table._make(None)) for _ in range(3)]
        for _ in range(150):
            await disturb()
            for index, each in enumerate(making):
                if each.done():
                    assert all(stuck.finding["waits"] for of in (await each).stuck.values() for stuck in of)
                    making[index] = asyncio.ensure_future(table._make(None))
        await asyncio.gather(*making)
