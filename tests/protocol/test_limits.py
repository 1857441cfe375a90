"""What is bounded stays bounded: connections, producers, consumers, subscriptions, what is not answered yet, what is not read."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.conftest import running
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, RawClient, Type, connected

TOPIC = "persistent://public/default/"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def counting_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that takes few producers, consumers and subscriptions."""
    limits = {
        "maxProducersPerTopic": 2,
        "maxConsumersPerTopic": 3,
        "maxConsumersPerSubscription": 2,
        "maxSubscriptionsPerTopic": 2,
    }
    with running(tmp_path_factory.mktemp("counting"), **limits) as process:
        yield process


@pytest.fixture(scope="module")
def narrow_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose buffers are small."""
    limits = {
        "maxPendingPublishRequestsPerConnection": 2,
        "maxMessagePublishBufferSizeInMB": 1,
        "maxOutboundBytesPerConnection": 65536,
        "managedLedgerCacheSizeMB": 4,
    }
    with running(tmp_path_factory.mktemp("narrow"), **limits) as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return TOPIC + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


# --- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["brokerMaxConnections", "brokerMaxConnectionsPerIp"])
def test_a_connection_over_the_limit_is_refused_until_another_ends(tmp_path: Path, key: str) -> None:
    with running(tmp_path, **{key: 2}) as broker, connected(broker) as first:
        with connected(broker):
            third = RawClient(broker.url)
            refused = third.connect()
            assert (refused["type"], refused["error"]) == ("ERROR", "NotAllowedError")
            assert int(refused["request_id"]) == 2**64 - 1
            assert key in refused["message"]
            assert third.reply() == CLOSED
            third.close()
        first.send(Type.PING)
        assert first.reply()["type"] == "PONG"
        assert connects_in_the_end(broker)


def connects_in_the_end(broker: BrokerProcess) -> bool:
    """Whether there is room for one more: the broker need not have seen yet that others have gone."""
    for _ in range(1000):
        client = RawClient(broker.url)
        reply = client.connect()
        client.close()
        if reply["type"] == "CONNECTED":
            return True
    return False


def test_a_topic_takes_so_many_producers_only(counting_broker: BrokerProcess, topic: str) -> None:
    with connected(counting_broker) as client:
        assert client.open_producer(topic, 1)["type"] == "PRODUCER_SUCCESS"
        assert client.open_producer(topic, 2)["type"] == "PRODUCER_SUCCESS"
        assert client.open_producer(topic, 3)["error"] == "ProducerBusy"
        assert client.request(Type.CLOSE_PRODUCER, producer_id=1)["type"] == "SUCCESS"
        assert client.open_producer(topic, 3)["type"] == "PRODUCER_SUCCESS"


def test_a_subscription_takes_so_many_consumers_only(counting_broker: BrokerProcess, topic: str) -> None:
    with connected(counting_broker) as client:
        assert client.subscribe(topic, 1, "Shared")["type"] == "SUCCESS"
        assert client.subscribe(topic, 2, "Shared")["type"] == "SUCCESS"
        assert client.subscribe(topic, 3, "Shared")["error"] == "ConsumerBusy"
        assert client.request(Type.CLOSE_CONSUMER, consumer_id=1)["type"] == "SUCCESS"
        assert client.subscribe(topic, 3, "Shared")["type"] == "SUCCESS"


def test_a_topic_takes_so_many_consumers_only(counting_broker: BrokerProcess, topic: str) -> None:
    with connected(counting_broker) as client:
        for consumer_id, name in enumerate(("a", "a", "b"), 1):
            assert client.subscribe(topic, consumer_id, "Shared", subscription=name)["type"] == "SUCCESS"
        assert client.subscribe(topic, 4, "Shared", subscription="b")["error"] == "ConsumerBusy"


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "reader"])
def test_a_topic_takes_so_many_subscriptions_only(counting_broker: BrokerProcess, topic: str, is_durable: bool) -> None:
    with connected(counting_broker) as client:
        assert client.subscribe(topic, 1, subscription="a")["type"] == "SUCCESS"
        assert client.subscribe(topic, 2, subscription="b")["type"] == "SUCCESS"
        refused = client.subscribe(topic, 3, subscription="c", durable=is_durable)
        assert (refused["type"], refused["error"]) == ("ERROR", "NotAllowedError")
        assert client.request(Type.UNSUBSCRIBE, consumer_id=1)["type"] == "SUCCESS"
        assert client.subscribe(topic, 3, subscription="c", durable=is_durable)["type"] == "SUCCESS"


# --- how much is under way ---------------------------------------------------------------------------------------------


def test_everything_is_receipted_however_little_may_be_unanswered(narrow_broker: BrokerProcess, topic: str) -> None:
    count, payload = 400, bytes(20_000)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(narrow_broker)) for _ in range(3)]
        for client in clients:
            client.open_producer(topic)
        for sequence_id in range(count):
            for client in clients:
                client.send_message(1, sequence_id, payload)
        for client in clients:
            receipts = [client.reply() for _ in range(count)]
            assert {receipt["type"] for receipt in receipts} == {"SEND_RECEIPT"}
            assert [int(receipt["sequence_id"]) for receipt in receipts] == list(range(count))


def test_a_refused_message_gives_its_room_back(narrow_broker: BrokerProcess, topic: str) -> None:
    with connected(narrow_broker) as client:
        client.open_producer(topic)
        for sequence_id in range(20):
            client.send_message(1, sequence_id, checksum="good" if sequence_id % 2 else "bad")
        replies = sorted((client.reply() for _ in range(20)), key=lambda reply: int(reply["sequence_id"]))
        assert [reply["type"] for reply in replies] == ["SEND_ERROR", "SEND_RECEIPT"] * 10


# --- who does not read -------------------------------------------------------------------------------------------------

MESSAGES = 2000
MESSAGE_BYTES = 8 * 1024  # below what is written without being copied: what waits to be written is memory of its own
SUBSCRIPTIONS = 8
PUBLISHED_BYTES = MESSAGES * MESSAGE_BYTES


def take_messages(client: RawClient, count: int) -> list[dict[str, Any]]:
    messages = [client.reply() for _ in range(count)]
    assert {message["type"] for message in messages} == {"MESSAGE"}
    return messages


def subscribe_and_flow(client: RawClient, topic: str, consumer_id: int, subscription: str, kind: str) -> None:
    reply = client.subscribe(topic, consumer_id, kind, subscription=subscription)
    while reply["type"] == "MESSAGE":  # for an earlier consumer of this connection
        reply = client.reply()
    assert reply["type"] == "SUCCESS"
    client.send(Type.FLOW, consumer_id=consumer_id, messagePermits=10 * MESSAGES)


@contextmanager
def with_a_deaf_client(broker: BrokerProcess, topic: str) -> Iterator[tuple[RawClient, RawClient]]:
    """A client that has stopped reading with much on its way to it, and one that shares its subscription."""
    with connected(broker) as producer, connected(broker) as deaf, connected(broker) as reader:
        producer.open_producer(topic)
        subscribe_and_flow(deaf, topic, 1, "shared", "Shared")
        subscribe_and_flow(reader, topic, 1, "shared", "Shared")
        deaf.stop_reading()
        for sequence_id in range(MESSAGES):
            producer.send_message(1, sequence_id, bytes(MESSAGE_BYTES))
        assert {producer.reply()["type"] for _ in range(MESSAGES)} == {"SEND_RECEIPT"}
        yield deaf, reader


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_a_client_that_does_not_read_costs_little_memory_and_gets_everything_later(
    narrow_broker: BrokerProcess, topic: str
) -> None:
    with ExitStack() as stack:
        producer = stack.enter_context(connected(narrow_broker))
        deaf = stack.enter_context(connected(narrow_broker))
        reader = stack.enter_context(connected(narrow_broker))
        producer.open_producer(topic)
        subscribe_and_flow(reader, topic, 1, "reader", "Exclusive")
        for number in range(SUBSCRIPTIONS):
            subscribe_and_flow(deaf, topic, number, f"deaf-{number}", "Exclusive")
        deaf.stop_reading()
        before = narrow_broker.resident_bytes()
        for sequence_id in range(MESSAGES):
            producer.send_message(1, sequence_id, bytes(MESSAGE_BYTES))
        assert {producer.reply()["type"] for _ in range(MESSAGES)} == {"SEND_RECEIPT"}
        take_messages(reader, MESSAGES)
        grown = narrow_broker.resident_bytes() - before
        # The store's own buffer may hold everything once until its checkpoint; the deaf client's 8 copies must not be there.
        assert grown < 3 * PUBLISHED_BYTES, f"{grown / MIB:.0f} MiB for {PUBLISHED_BYTES / MIB:.0f} MiB"
        deaf.read_again()
        messages = take_messages(deaf, SUBSCRIPTIONS * MESSAGES)
        by_consumer: dict[str, list[tuple[int, int]]] = {}
        for message in messages:
            position = message["message_id"]
            by_consumer.setdefault(message["consumer_id"], []).append(
                (int(position["ledgerId"]), int(position["entryId"]))
            )
        assert len(by_consumer) == SUBSCRIPTIONS
        assert all(positions == sorted(set(positions)) for positions in by_consumer.values())


def test_a_client_that_does_not_read_for_long_is_dropped_and_its_share_goes_to_others(
    tmp_path: Path, topic: str
) -> None:
    with (
        running(tmp_path, keepAliveIntervalSeconds=1, maxOutboundBytesPerConnection=65536) as broker,
        with_a_deaf_client(broker, topic) as (_, reader),
    ):
        messages = take_messages(reader, MESSAGES)
        again = [message for message in messages if message.get("redelivery_count")]
        assert 0 < len(again) < MESSAGES // 2, "what the deaf client had was sent again"
        assert len({message["message_id"]["entryId"] for message in messages}) == MESSAGES


def test_a_client_that_does_not_read_is_seen_leaving_at_once(narrow_broker: BrokerProcess, topic: str) -> None:
    with with_a_deaf_client(narrow_broker, topic) as (deaf, reader):
        deaf.close()
        messages = take_messages(reader, MESSAGES)
        assert len({message["message_id"]["entryId"] for message in messages}) == MESSAGES


def test_a_client_that_does_not_read_does_not_hold_up_a_stop(tmp_path: Path, topic: str) -> None:
    with running(tmp_path, maxOutboundBytesPerConnection=65536) as broker, with_a_deaf_client(broker, topic):
        assert broker.stop() == 0
