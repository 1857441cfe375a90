"""Each finding of `explain` in its situation, made with the official client: that code with the right ids, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import new_client, path_of, receive_all, until
from tests.support.explained import Asked, owner_of, send, shown, sticky, subscribe
from tests.support.rest import call

from pybroker.broker.entry_filters import EntryFilter, FilteredEntry, Verdict
from pybroker.client import connect
from pybroker.errors import TransactionNotFound
from pybroker.testing.broker import TestBroker
from pybroker.testing.choice import open_broker

PROGRAM = Path(__file__).with_name("consume_and_print.py")
KeyShared, Shared, Failover = pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover
STARTS_AFTER_MS = 600_000
SILENT_MS = 60_000
_serial = itertools.count(1)


class PutsLaterOff(EntryFilter):
    """Puts messages with the key `later` off."""

    def judge(self, entry: FilteredEntry) -> Verdict:
        return Verdict.RESCHEDULE if entry.metadata.partition_key == "later" else Verdict.ACCEPT


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    made = open_broker(
        active_consumer_failover_delay_time_millis=STARTS_AFTER_MS,
        entry_filter_names=(f"{__name__}:PutsLaterOff",),
        max_unacked_messages_per_broker=400,
        max_outbound_bytes_per_connection=1 << 20,
        transaction_coordinator_enabled=True,
        key_shared_look_ahead_msg_in_replay_threshold_per_subscription=6,
    )
    yield made
    made.close()


@contextlib.contextmanager
def another_client(broker: TestBroker) -> Iterator[pulsar.Client]:
    connected = new_client(broker.service_url)
    yield connected
    connected.close()


@pytest.fixture
def client(broker: TestBroker) -> Iterator[pulsar.Client]:
    with another_client(broker) as connected:
        yield connected


@pytest.fixture
def topic(broker: TestBroker) -> str:
    return broker.topic(f"explained-{next(_serial)}")


@pytest.fixture
def asked(broker: TestBroker, topic: str) -> Asked:
    return Asked(broker, topic)


# --- consumers -------------------------------------------------------------------------------------------------------


def test_nothing_is_found_while_all_is_well(client: pulsar.Client, topic: str, asked: Asked) -> None:
    for kind in (pulsar.ConsumerType.Exclusive, Shared, KeyShared):
        consumer = subscribe(client, topic, kind, "c")
        send(client, topic, "a", "b")
        for message in receive_all(consumer, 2):
            consumer.acknowledge(message)
        asked.until()
        asked.until(key="a")
        asked.until(consumer="c")
        consumer.close()


def test_messages_that_wait_without_a_consumer_are_found(client: pulsar.Client, topic: str, asked: Asked) -> None:
    subscribe(client, topic, Shared, "c").close()
    send(client, topic, None, None, None)
    finding = asked.until("no-consumers")
    assert finding["waits"]
    assert finding["evidence"]["waitingEntries"] == 3
    assert finding["sentence"].startswith("3 entries wait and no consumer has been connected for ")
    asked.until("no-consumers", key="a")
    assert asked.codes(consumer="c") == ["no-consumers", "consumer-not-connected"]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, Shared, KeyShared])
def test_a_full_receiver_queue_is_found_and_gone_once_the_client_goes_on(
    client: pulsar.Client, topic: str, asked: Asked, kind: pulsar.ConsumerType
) -> None:
    consumer = subscribe(client, topic, kind, "slow", receiver_queue_size=2)
    send(client, topic, *["k"] * 5)
    finding = asked.until("no-permits")
    (seen,) = finding["evidence"]["consumers"]
    assert (seen["name"], seen["permits"]) == ("slow", 0)
    assert seen["since"] == seen["lastSentAt"] == finding["since"]
    assert finding["evidence"]["waitingEntries"] == 3
    assert asked.codes(consumer="slow") == ["no-permits", "held-by-consumer"]
    for message in receive_all(consumer, 5):
        consumer.acknowledge(message)
    asked.until()


def test_who_holds_as_many_unacknowledged_messages_as_one_may_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumer = subscribe(client, topic, Shared, "holds")
    broker.admin("POST", f"{path_of(topic)}/maxUnackedMessagesOnConsumer", 3)
    ids = send(client, topic, *[None] * 5)
    messages = receive_all(consumer, 3)
    finding = asked.until("unacked-limit-consumer")
    assert finding["evidence"]["limit"] == 3
    assert finding["evidence"]["waitingEntries"] == 2
    held = asked.document(consumer="holds")["findings"][1]
    assert (held["code"], held["evidence"]["messageIds"]) == ("held-by-consumer", ids[:3])
    for message in messages[:2]:
        consumer.acknowledge(message)
    receive_all(consumer, 2)
    asked.until()


def test_a_subscription_with_as_many_unacknowledged_messages_as_it_may_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumers = [subscribe(client, topic, Shared, name, receiver_queue_size=1) for name in ("a", "b")]
    broker.admin("POST", f"{path_of(topic)}/maxUnackedMessagesOnSubscription", 2)
    send(client, topic, *[None] * 5)
    finding = asked.until("unacked-limit-subscription")
    assert (finding["evidence"]["limit"], finding["evidence"]["unackedMessages"]) == (2, 2)
    assert {each["name"] for each in finding["evidence"]["consumers"]} == {"a", "b"}
    (policy,) = [each for each in finding["actions"] if each["severity"] == "harmless"]
    broker.admin(policy["method"], policy["path"].removeprefix("/admin/v2"), policy["body"])
    for consumer in consumers:
        consumer.acknowledge(consumer.receive(30_000))
    until(lambda: "unacked-limit-subscription" not in asked.codes())


def test_the_limit_of_the_whole_broker_is_found_with_who_holds_most(
    client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumer = subscribe(client, topic, Shared, "hoards")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=450)
    for _ in range(450):
        producer.send_async(b"m", lambda result, message_id: None)
    producer.flush()
    producer.send(b"waits")
    finding = asked.until("unacked-limit-broker")
    assert (finding["evidence"]["limit"], finding["evidence"]["unackedMessages"]) == (400, 450)
    most = finding["evidence"]["most"][0]
    assert (most["topic"], most["subscription"], most["unackedMessages"]) == (topic, "s", 450)
    for message in receive_all(consumer, 450):
        consumer.acknowledge(message)
    consumer.acknowledge(consumer.receive(30_000))
    asked.until()


def test_a_consumer_that_does_not_read_from_its_connection_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    """A client in a process of its own, which is stopped."""
    command = [sys.executable, str(PROGRAM), broker.service_url, topic, "stopped", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        producer = client.create_producer(topic, batching_enabled=False)
        for _ in range(20):
            producer.send_async(bytes(1 << 20), lambda result, message_id: None, partition_key="k")
        producer.flush()
        finding = asked.until("connection-full")
        (seen,) = finding["evidence"]["consumers"]
        assert seen["name"] == "stopped"
        assert seen["unsentBytes"] > 1 << 20
        assert seen["permits"] > 0
        assert asked.codes(key="k") == ["connection-full", "held-by-consumer"]
        assert asked.codes(consumer="stopped") == ["connection-full", "held-by-consumer"]
        assert [each["severity"] for each in finding["actions"]] == ["look"]  # No other consumer could take over.
    finally:
        process.kill()
        process.communicate()


def test_a_consumer_that_holds_messages_without_a_word_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumer = subscribe(client, topic, Shared, "hung", receiver_queue_size=2)
    ids = send(client, topic, *[None] * 2)
    asked.until()
    until(lambda: asked.codes(consumer="hung") == ["held-by-consumer"])
    broker.clock.advance(milliseconds=SILENT_MS)
    finding = asked.until("consumer-silent")
    assert finding["waits"]  # No other consumer gets what it holds.
    send(client, topic, None)
    finding = asked.until("consumer-silent", "no-permits")
    assert finding["waits"]
    assert finding["evidence"]["consumers"][0]["unackedMessages"] == 2
    assert finding["sentence"].startswith("Consumer hung is connected with 2 unacknowledged messages, and has neither")
    unacked = broker.admin(finding["actions"][0]["method"], finding["actions"][0]["path"].removeprefix("/admin/v2"))
    assert [each["messageId"] for each in unacked["messages"]] == ids
    for message in receive_all(consumer, 3):
        consumer.acknowledge(message)
    asked.until()


def test_a_consumer_of_whose_connection_nothing_is_looked_at_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    throttled = broker.topic(f"throttled-{next(_serial)}")
    consumer = subscribe(client, topic, Shared, "beside", receiver_queue_size=1)
    producer = client.create_producer(throttled, batching_enabled=False)
    producer.send(b"m")
    broker.admin(
        "POST",
        f"{path_of(throttled)}/publishRate",
        {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1},
    )
    with another_client(broker) as other:
        send(other, topic, *[None] * 4)
    for _ in range(200):
        producer.send_async(b"m", lambda result, message_id: None)
    finding = asked.until("connection-held")
    assert (
        f"of topic {throttled} publishes more than the publish rate of topic {throttled} (1 message a second)"
        in (finding["sentence"])
    )
    assert finding["evidence"]["throttledBy"]["topic"] == throttled
    assert finding["evidence"]["consumers"][0]["name"] == "beside"
    broker.admin("DELETE", f"{path_of(throttled)}/publishRate")
    for message in receive_all(consumer, 4):
        consumer.acknowledge(message)
    asked.until()


def test_of_failover_consumers_who_stands_by_and_who_starts_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumers = {name: subscribe(client, topic, Failover, name) for name in ("a", "b")}
    send(client, topic, None)
    finding = asked.until("consumer-starting")
    active = finding["evidence"]["consumer"]["name"]
    standing = ({"a", "b"} - {active}).pop()
    assert asked.codes(consumer=active) == ["consumer-starting"]
    broker.clock.advance(milliseconds=STARTS_AFTER_MS)
    consumers[active].acknowledge(consumers[active].receive(30_000))
    asked.until()
    finding = asked.until("consumer-stands-by", consumer=standing)
    assert finding["evidence"]["active"]["name"] == active


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_that_drains_is_found_with_who_holds_it_and_who_waits(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    before = subscribe(client, topic, KeyShared, "before")
    keys = [f"k{number}" for number in range(8)]
    ids = dict(zip(keys, send(client, topic, *keys), strict=True))
    held = {message.partition_key(): message for message in receive_all(before, 8)}
    after = subscribe(client, topic, KeyShared, "after")
    until(lambda: any(owner_of(broker, topic, key) == "after" for key in keys))
    moved = next(key for key in keys if owner_of(broker, topic, key) == "after")
    stayed = next((key for key in keys if owner_of(broker, topic, key) == "before"), None)
    asked.until()  # Nothing of it waits.
    send(client, topic, moved)
    finding = asked.until("key-drains")
    (seen,) = finding["evidence"]["hashes"]
    assert (seen["from"]["name"], seen["to"]["name"]) == ("before", "after")
    assert (seen["waitingEntries"], seen["unackedMessages"], seen["messageIds"]) == (1, 1, [ids[moved]])
    assert seen["keys"] == [{"key": moved}]
    assert finding["sentence"].startswith(f"Key {moved} is blocked: consumer before has not acknowledged 1 message ")
    assert [column["title"] for column in finding["table"]["columns"]][:3] == ["KEYS", "HASH", "HELD BY"]
    assert finding["table"]["rows"][0][0] == moved
    assert finding["since"] >= seen["drainsSince"] > 0
    assert finding["actions"][0]["path"].endswith("/explain?consumer=before")
    of_key = asked.document(key=moved)
    assert [each["code"] for each in of_key["findings"]] == ["key-drains", "held-by-consumer"]
    assert of_key["subject"]["state"] == "draining"
    assert of_key["findings"][1]["evidence"]["messageIds"] == [ids[moved]]
    assert asked.codes(consumer="before") == ["key-drains", "held-by-consumer"]
    assert asked.codes(consumer="after") == ["key-drains"]
    if stayed is not None:
        assert asked.codes(key=stayed) == ["held-by-consumer"]
    before.acknowledge(held[moved])
    assert after.receive(30_000).partition_key() == moved
    asked.until()


def test_a_key_that_falls_into_a_range_nobody_has_asked_for_is_found(
    client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumer = subscribe(client, topic, KeyShared, "low", **sticky((0, 9)))
    send(client, topic, "a")
    finding = asked.until("hash-without-owner")
    document = asked.document(key="a")
    assert [each["code"] for each in document["findings"]] == ["hash-without-owner"]
    assert finding["evidence"]["hashes"][0]["hash"] == document["subject"]["hash"]
    assert asked.codes(consumer="low") == []
    consumer.close()


def test_when_nothing_new_is_read_because_of_what_waits_is_found_with_whose_keys(
    client: pulsar.Client, topic: str, asked: Asked
) -> None:
    subscribe(client, topic, KeyShared, "idle", **sticky((0, 9)))
    send(client, topic, *["a"] * 8)
    finding = asked.until("hash-without-owner", "look-ahead-full")
    assert finding["evidence"]["hashes"][0]["waitingEntries"] >= 6
    full = asked.document()["findings"][1]
    assert full["evidence"]["limit"] == 6
    assert full["evidence"]["hashes"][0]["hash"] == finding["evidence"]["hashes"][0]["hash"]


def test_a_newcomer_that_waits_in_the_classic_mode_is_found(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    key = "brokers/configuration/subscriptionKeySharedUseClassicPersistentImplementation"
    broker.admin("POST", f"{key}/true")
    try:
        before = subscribe(client, topic, KeyShared, "before")
        keys = [f"k{number}" for number in range(8)]
        send(client, topic, *keys)
        held = receive_all(before, 8)
        subscribe(client, topic, KeyShared, "newcomer")
        fresh = next(key for key in map(str, range(1000)) if owner_of(broker, topic, key) == "newcomer")
        send(client, topic, fresh)
        finding = asked.until("newcomer-waits")
        assert finding["evidence"]["consumers"][0]["name"] == "newcomer"
        assert finding["evidence"]["firstUnacked"] == shown(held[0].message_id())
        assert asked.codes(consumer="newcomer") == ["newcomer-waits"]
        for message in held:
            before.acknowledge(message)
        asked.until()
    finally:
        broker.admin("POST", f"{key}/false")


# --- what stops everybody --------------------------------------------------------------------------------------------


def test_a_dispatch_rate_that_is_used_up_is_found_with_whose_it_is(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    consumer = subscribe(client, topic, Shared, "c")
    rate = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600}
    broker.admin("POST", f"{path_of(topic)}/dispatchRate", rate)
    send(client, topic, *[None] * 2)
    receive_all(consumer, 2)
    send(client, topic, *[None] * 3)
    finding = asked.until("dispatch-rate")
    assert finding["evidence"]["waitingEntries"] == 3
    (used_up,) = finding["evidence"]["rates"]
    assert (used_up["of"], used_up["unit"], used_up["rate"], used_up["periodSeconds"]) == ("Topic", "messages", 2, 3600)
    (action,) = finding["actions"]
    assert action["body"]["dispatchThrottlingRateInMsg"] == 4
    broker.admin(action["method"], action["path"].removeprefix("/admin/v2"), action["body"])
    receive_all(consumer, 3)
    asked.until()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, Shared])
def test_a_message_that_an_entry_filter_puts_off_is_found(
    client: pulsar.Client, topic: str, asked: Asked, kind: pulsar.ConsumerType
) -> None:
    subscribe(client, topic, kind, "c")
    (message_id,) = send(client, topic, "later")
    finding = asked.until("entry-filter")
    assert finding["evidence"]["messageId"] == message_id
    assert finding["evidence"]["filters"] == ["PutsLaterOff"]


def test_an_open_transaction_is_found_with_its_producer_and_how_to_end_it(
    broker: TestBroker, client: pulsar.Client, topic: str, asked: Asked
) -> None:
    """The official client for Python has no transactions: who opens one is ours."""
    consumer = subscribe(client, topic, Shared, "c")

    async def open_one() -> None:
        async with connect(broker.service_url) as own:
            transaction = await own.transaction()
            producer = await own.producer(topic, name="writer")
            sent = await producer.send(b"in", transaction=transaction)
            assert not (await asyncio.to_thread(asked.until, "transaction-open"))["waits"]
            await asyncio.to_thread(send, client, topic, None)
            await asyncio.to_thread(until, lambda: asked.document()["waiting"])
            finding = await asyncio.to_thread(asked.until, "transaction-open")
            assert finding["evidence"]["firstMessage"] == f"{sent.ledger_id}:{sent.entry_id}"
            assert finding["evidence"]["producer"] == "writer"
            assert finding["evidence"]["entriesOfOthers"] == 1
            abort = finding["actions"][-1]
            answer = await asyncio.to_thread(call, broker.admin_url + abort["path"], abort["method"])
            assert answer.status == 204
            with contextlib.suppress(TransactionNotFound):
                await transaction.abort()

    asyncio.run(open_one())
    assert consumer.receive(30_000).data() == b"m"
    asked.until()


def test_messages_that_are_not_due_are_found_and_wait_for_nobodys_fault(
    client: pulsar.Client, topic: str, asked: Asked
) -> None:
    subscribe(client, topic, Shared, "c")
    producer = client.create_producer(topic)
    producer.send(b"later", deliver_after=timedelta(hours=1))
    finding = asked.until("delayed")
    assert not finding["waits"]
    assert finding["evidence"]["entries"] == 1
    assert finding["sentence"].startswith("1 entry is delayed; the next is due in ")


def test_what_a_non_persistent_topic_drops_for_want_of_permits_is_found(
    broker: TestBroker, client: pulsar.Client
) -> None:
    topic = f"non-persistent://public/default/explained-{next(_serial)}"
    subscribe(client, topic, Shared, "slow", receiver_queue_size=1)
    asked = Asked(broker, topic)
    asked.until()
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"m")
    producer.send(b"m")
    finding = asked.until("no-permits")
    assert not finding["waits"]
    assert finding["evidence"]["consumers"][0]["name"] == "slow"
