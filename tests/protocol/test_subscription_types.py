"""Subscription types said byte by byte: who is told that it is active, what is refused, and what survives a change of type."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import NOTHING, RawClient, Type
from tests.support.rest import call

from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/"
SETTINGS = {"activeConsumerFailoverDelayTimeMillis": "50"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("types"), SETTINGS)
    with process.running_well():
        yield process


class Clients:
    """Connections of one test, one for each consumer."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.topic = topic
        self.standing_by: set[str] = set()  # who was told so when it came
        self._broker = broker
        self._open = ExitStack()

    def use_partition(self, index: int) -> None:
        """From now on the topic is a partition."""
        self.topic = self.topic.replace("-partition-", "-")  # No partitioned topic has that in its name.
        path = self.topic.replace("://", "/")
        assert call(f"{self._broker.http_url}/admin/v2/{path}/partitions", "PUT", body=2).status == 204
        self.topic += f"-partition-{index}"

    def connect(self, **fields: Any) -> RawClient:
        client = RawClient(self._broker.url)
        self._open.callback(client.close)
        assert client.connect(**fields)["type"] == "CONNECTED"
        return client

    def consumer(self, name: str, sub_type: str, permits: int = 100, **fields: Any) -> RawClient:
        """A connection whose consumer 1 is subscribed."""
        client = self.connect()
        answer = self.subscribe(client, name, sub_type, **fields)
        if answer["type"] == "ACTIVE_CONSUMER_CHANGE":
            assert not answer.get("is_active", False)
            self.standing_by.add(name)
            answer = client.reply()
        assert answer["type"] == "SUCCESS"
        client.send(Type.FLOW, consumer_id=1, messagePermits=permits)
        return client

    def subscribe(self, client: RawClient, name: str, sub_type: str, **fields: Any) -> dict[str, Any]:
        return client.subscribe(self.topic, 1, sub_type, consumer_name=name, **fields)

    def refused(self, name: str, sub_type: str, **fields: Any) -> str:
        """The error of a SUBSCRIBE that is refused; its connection stays open."""
        client = self.connect()
        answer = self.subscribe(client, name, sub_type, **fields)
        assert answer["type"] == "ERROR"
        client.send(Type.PING)
        assert client.reply()["type"] == "PONG"
        return str(answer["error"])

    def publish(self, keys: list[str], **metadata: Any) -> None:
        client = self.connect()
        assert client.open_producer(self.topic)["type"] == "PRODUCER_SUCCESS"
        for index, key in enumerate(keys):
            client.send_message(1, index, b"%d" % index, metadata={"partition_key": key, **metadata})
        assert {client.reply()["type"] for _ in keys} == {"SEND_RECEIPT"}

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def clients(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    opened = Clients(broker, TOPIC + name)
    yield opened
    opened.close()


def options(
    mode: str = "AUTO_SPLIT", *ranges: tuple[int, int], out_of_order: bool = False
) -> dict[str, pb.KeySharedMeta]:
    meta = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.Value(mode), allowOutOfOrderDelivery=out_of_order)  # type: ignore[arg-type]
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    return {"keySharedMeta": meta}


def ack(client: RawClient, *messages: dict[str, Any]) -> None:
    ids = [
        pb.MessageIdData(ledgerId=int(m["message_id"]["ledgerId"]), entryId=int(m["message_id"]["entryId"]))
        for m in messages
    ]
    client.send(Type.ACK, consumer_id=1, ack_type=0, message_id=ids)
    client.send(Type.PING)
    assert client.reply()["type"] == "PONG"


def activity(client: RawClient) -> bool:
    notice = client.reply()
    assert notice["type"] == "ACTIVE_CONSUMER_CHANGE"
    return bool(notice.get("is_active", False))


# --- Failover ----------------------------------------------------------------------------------------------------------


def test_the_active_consumer_of_a_partition_changes_and_all_are_told(clients: Clients) -> None:
    clients.use_partition(0)
    b = clients.consumer("b", "Failover")
    assert activity(b)
    a = clients.consumer("a", "Failover")
    assert activity(a), "the first by name serves partition 0"
    assert not activity(b)
    c = clients.consumer("c", "Failover")
    assert clients.standing_by == {"c"}
    clients.publish(["k"])
    assert a.reply()["type"] == "MESSAGE"
    assert b.reply(0.2) == NOTHING
    a.close()
    assert activity(b)
    assert not activity(c)
    assert b.reply()["type"] == "MESSAGE", "what the one before did not acknowledge comes again"


def test_a_better_priority_level_takes_over(clients: Clients) -> None:
    clients.use_partition(1)
    low = clients.consumer("low", "Failover", priority_level=3)
    assert activity(low)
    high = clients.consumer("high", "Failover", priority_level=1)
    assert activity(high)
    assert not activity(low)


def test_an_exclusive_or_shared_consumer_is_not_told_that_it_is_active(clients: Clients) -> None:
    for kind in ("Exclusive", "Shared", "Key_Shared"):
        client = clients.consumer("c", kind, subscription=kind)
        assert client.reply(0.15) == NOTHING


def test_a_client_of_an_older_protocol_is_not_told_either(clients: Clients) -> None:
    client = clients.connect(protocol_version=11)
    assert clients.subscribe(client, "c", "Failover")["type"] == "SUCCESS"
    assert client.reply(0.15) == NOTHING


def test_a_cumulative_acknowledgement_is_good_on_failover(clients: Clients) -> None:
    first = clients.consumer("a", "Failover")
    assert activity(first)
    clients.publish(["k"] * 4)
    messages = [first.reply() for _ in range(4)]
    position = messages[2]["message_id"]
    last = pb.MessageIdData(ledgerId=int(position["ledgerId"]), entryId=int(position["entryId"]))
    answer = first.request(Type.ACK, consumer_id=1, ack_type=1, message_id=[last])
    assert (answer["type"], "error" in answer) == ("ACK_RESPONSE", False)
    first.close()
    second = clients.consumer("b", "Failover")
    assert activity(second)
    assert second.reply()["payload"] == "3"


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connected", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_another_type_than_the_connected_ones_is_busy(clients: Clients, connected: str) -> None:
    clients.consumer("a", connected)
    for kind in {"Exclusive", "Failover", "Shared", "Key_Shared"} - {connected}:
        assert clients.refused("b", kind) == "ConsumerBusy"


def test_another_key_shared_mode_or_flag_than_the_connected_ones_is_busy(clients: Clients) -> None:
    clients.consumer("a", "Key_Shared", **options())  # type: ignore[arg-type]
    assert clients.refused("b", "Key_Shared", **options("STICKY", (0, 100))) == "ConsumerBusy"
    assert clients.refused("b", "Key_Shared", **options(out_of_order=True)) == "ConsumerBusy"
    clients.consumer("b", "Key_Shared")  # who says nothing asks for AUTO_SPLIT


RANGES = [[], [(5, 4)], [(0, 10), (10, 20)], [(90, 110)], [(0, 100)], [(50, 60), (150, 160)]]


@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_ranges_that_cannot_be_are_refused_and_nothing_of_them_remains(
    clients: Clients, ranges: list[tuple[int, int]]
) -> None:
    clients.consumer("a", "Key_Shared", **options("STICKY", (100, 200), (300, 65535)))  # type: ignore[arg-type]
    assert clients.refused("b", "Key_Shared", **options("STICKY", *ranges)) == "ConsumerAssignError"
    clients.consumer("c", "Key_Shared", **options("STICKY", (0, 99), (201, 299)))  # type: ignore[arg-type]


def test_a_refused_first_consumer_leaves_no_type_behind(clients: Clients) -> None:
    assert clients.refused("a", "Key_Shared", **options("STICKY")) == "ConsumerAssignError"
    clients.consumer("b", "Shared")


def test_a_type_that_is_switched_off_is_refused_and_leaves_no_subscription(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"subscriptionTypesEnabled": "Exclusive,Key_Shared", "subscriptionKeySharedEnable": "false"}
    process = BrokerProcess(tmp_path_factory.mktemp("off"), {**settings, "allowAutoSubscriptionCreation": "true"})
    with process.running():
        clients = Clients(process, f"{TOPIC}off")
        for kind in ("Failover", "Shared", "Key_Shared"):
            assert clients.refused("a", kind) == "NotAllowedError"
        clients.publish(["k"])
        later = clients.consumer("a", "Exclusive", initialPosition=pb.CommandSubscribe.Latest)
        assert later.reply(0.2) == NOTHING, "it is made now, behind the message"
        clients.close()


# --- Key_Shared --------------------------------------------------------------------------------------------------------


def test_sticky_consumers_get_their_ranges_and_what_nobody_covers_waits(clients: Clients) -> None:
    low = clients.consumer("low", "Key_Shared", **options("STICKY", (0, 6066)))  # type: ignore[arg-type]
    clients.publish(["Order-3459134"] * 2)  # at 6067
    assert low.reply(0.2) == NOTHING
    exact = clients.consumer("exact", "Key_Shared", **options("STICKY", (6067, 6067)))  # type: ignore[arg-type]
    assert [exact.reply()["payload"] for _ in range(2)] == ["0", "1"]


def test_a_newcomer_gets_a_key_only_when_the_one_before_has_acknowledged_it(clients: Clients) -> None:
    first = clients.consumer("c1", "Key_Shared")
    keys = [f"k{index}" for index in range(20)]
    clients.publish(keys * 2)
    before = [first.reply() for _ in range(40)]
    second = clients.consumer("c2", "Key_Shared")
    clients.publish(keys)
    to_first = {message["metadata"]["partition_key"] for message in first.replies(0.3)}
    moved = set(keys) - to_first
    assert moved
    assert second.reply(0.2) == NOTHING
    one = min(moved)
    of_one = [message for message in before if message["metadata"]["partition_key"] == one]
    ack(first, of_one[0])
    assert second.reply(0.2) == NOTHING
    ack(first, of_one[1])
    assert second.reply()["metadata"]["partition_key"] == one
    first.close()
    again = [message["metadata"]["partition_key"] for message in second.replies(0.5)]
    assert sorted(again) == sorted([key for key in keys * 3 if key != one]), "all that the first one held or waited for"


def test_the_classic_way_holds_a_newcomer_until_everything_before_is_acknowledged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"subscriptionKeySharedUseClassicPersistentImplementation": "true"}
    process = BrokerProcess(tmp_path_factory.mktemp("classic"), settings)
    with process.running():
        clients = Clients(process, f"{TOPIC}classic")
        first = clients.consumer("c1", "Key_Shared")
        clients.publish(["old"] * 3)
        old = [first.reply() for _ in range(3)]
        second = clients.consumer("c2", "Key_Shared")
        keys = [f"new{index}" for index in range(20)]
        clients.publish(keys)
        first.replies(0.3)
        assert second.reply(0.2) == NOTHING, "keys that nobody holds wait as well"
        ack(first, *old[:2])
        assert second.reply(0.2) == NOTHING
        ack(first, old[2])
        assert second.reply()["metadata"]["partition_key"] in keys
        clients.close()


# --- a change of type --------------------------------------------------------------------------------------------------


def test_cursor_holes_and_redelivery_counts_survive_a_change_of_type(clients: Clients) -> None:
    shared = clients.consumer("a", "Shared")
    clients.publish([f"k{index}" for index in range(6)])
    messages = [shared.reply() for _ in range(6)]
    ack(shared, messages[0], messages[2])
    shared.close()
    for kind in ("Key_Shared", "Failover", "Exclusive", "Shared"):
        client = clients.consumer("b", kind)
        came = [reply for reply in client.replies(0.4) if reply["type"] == "MESSAGE"]
        assert [message["payload"] for message in came] == ["1", "3", "4", "5"], kind
        counts = {message.get("redelivery_count", 0) for message in came}
        if kind == "Key_Shared":
            assert counts == {1}
        elif kind == "Shared":
            assert counts == {2}, "those with one active consumer do not count, and do not forget"
        client.close()
