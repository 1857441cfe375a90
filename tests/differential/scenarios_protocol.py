"""The binary protocol frame by frame: what a broker answers, ignores, and closes the connection for."""

from functools import partial
from typing import Any

from tests.differential.harness import Run, scenario
from tests.differential.scenarios_topics import with_namespace
from tests.support.raw_client import RawClient, Type, encode, frame

from pybroker.wire import pulsar_api_pb2 as pb

MAX_MESSAGE_BYTES = 5_242_880
FRAME_ALLOWANCE_BYTES = 10_240  # what a frame may have above the message itself


def message_ids(replies: list[dict[str, Any]]) -> list[pb.MessageIdData]:
    """The ids of MESSAGE or SEND_RECEIPT replies, to be sent back."""
    ids = (reply["message_id"] for reply in replies)
    return [pb.MessageIdData(ledgerId=int(each["ledgerId"]), entryId=int(each["entryId"])) for each in ids]


@scenario
def protocol_connect(run: Run) -> None:
    """CONNECTED by protocol version and feature flags of the client."""
    for version in (21, 19, 12, 0, 99):
        with run.raw(connected=False) as raw:
            run.step(f"version {version}", without_version(raw.connect(protocol_version=version)))
    with run.raw(connected=False) as raw:
        flags = pb.FeatureFlags(supports_auth_refresh=True, supports_broker_entry_metadata=True)
        run.step("with flags", without_version(raw.connect(feature_flags=flags)))
    with run.raw(connected=False) as raw:
        run.step("unknown authentication method", without_version(raw.connect(auth_method_name="nothing")))


def without_version(reply: dict[str, Any]) -> dict[str, Any]:
    """The server's name and version is its own affair; that it has one is not."""
    if reply.get("server_version"):
        reply["server_version"] = "<version>"
    return reply


@scenario
def protocol_violations(run: Run) -> None:
    """What closes a connection."""
    early = {
        "PING": encode(Type.PING),
        "LOOKUP": encode(Type.LOOKUP, topic=run.topic(), request_id=1),
        "PRODUCER": encode(Type.PRODUCER, topic=run.topic(), producer_id=1, request_id=1),
        "FLOW": encode(Type.FLOW, consumer_id=1, messagePermits=1),
    }
    for name, command in early.items():
        with run.raw(connected=False) as raw:
            raw.send_bytes(frame(command))
            run.step(f"{name} before CONNECT", raw.replies())
    wrong = {
        "a second CONNECT": frame(encode(Type.CONNECT, client_version="raw")),
        "CONNECTED": frame(encode(Type.CONNECTED, server_version="x")),
        "SUCCESS": frame(encode(Type.SUCCESS, request_id=1)),
        "SEND_RECEIPT": frame(encode(Type.SEND_RECEIPT, producer_id=1, sequence_id=1)),
        "MESSAGE": frame(encode(Type.MESSAGE, consumer_id=1, message_id=pb.MessageIdData(ledgerId=1, entryId=1))),
        "an unknown type": frame(b"\x08\x7f"),
        "a command without its message": frame(b"\x08\x05"),
        "no protobuf": frame(b"\xff\xff\xff\xff"),
        "an empty command": frame(b""),
        "a command longer than its frame": b"\x00\x00\x00\x08\x00\x00\x00\x40abcd",
        "a frame too large": (MAX_MESSAGE_BYTES + FRAME_ALLOWANCE_BYTES + 1).to_bytes(4, "big")
        + b"\x00\x00\x00\x04abcd",
        "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "SEND of an unknown producer": None,
    }
    for name, data in wrong.items():
        with run.raw() as raw:
            if data is None:
                raw.send_message(7, 0)
            else:
                raw.send_bytes(data)
            run.step(name, raw.replies())


@scenario
def protocol_ignored(run: Run) -> None:
    """What is answered by nothing, or by SUCCESS for want of anything to do; the connection lives on."""
    with run.raw() as raw:
        raw.send(Type.FLOW, consumer_id=9, messagePermits=10)
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=9)
        ids = [pb.MessageIdData(ledgerId=1, entryId=1)]
        raw.send(Type.ACK, consumer_id=9, ack_type=pb.CommandAck.Individual, message_id=ids)
        run.step("unknown consumer", raw.replies())
        raw.send(Type.ACK, consumer_id=9, ack_type=pb.CommandAck.Individual, message_id=ids, request_id=77)
        run.step("ACK with a request id, unknown consumer", raw.replies())
        run.step("CLOSE_PRODUCER, unknown", raw.request(Type.CLOSE_PRODUCER, producer_id=9))
        run.step("CLOSE_CONSUMER, unknown", raw.request(Type.CLOSE_CONSUMER, consumer_id=9))
        run.step("UNSUBSCRIBE, unknown", raw.request(Type.UNSUBSCRIBE, consumer_id=9))
        run.step("GET_LAST_MESSAGE_ID, unknown", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=9))
        raw.send(Type.PONG)
        raw.send(Type.PING)
        run.step("PING", raw.replies())


@scenario
def protocol_lookup(run: Run) -> None:
    """LOOKUP and PARTITIONED_METADATA: new topics, missing namespaces, names that do not parse."""
    names = {
        "new": run.topic(),
        "short": f"{run.token}-short",
        "three parts": f"public/default/{run.token}-three",
        "non-persistent": f"non-persistent://public/default/{run.token}-np",
        "missing namespace": f"persistent://public/{run.token}/t",
        "missing tenant": f"persistent://{run.token}/ns/t",
        "bad domain": "sometimes://public/default/t",
        "two parts": "persistent://public/t",
        "four parts": "persistent://public/standalone/default/t",
        "slash in the name": f"persistent://public/default/{run.token}/t",
        "empty": "",
        "partition of nothing": f"{run.topic()}-partition-3",
        "odd characters": f"persistent://public/default/{run.token} ä+ü%2F",
    }
    with run.raw() as raw:
        for kind, name in names.items():
            run.step(f"lookup, {kind}", raw.request(Type.LOOKUP, topic=name))
        for kind, name in names.items():
            if raw.closed:
                break
            run.step(f"metadata, {kind}", raw.request(Type.PARTITIONED_METADATA, topic=name))
        named = {"topic": run.topic("none"), "metadata_auto_creation_enabled": False}
        run.step("metadata, nothing to be made", raw.request(Type.PARTITIONED_METADATA, **named))
        named = {"topic": run.topic(), "advertised_listener_name": "none"}
        run.step("lookup, unknown listener", raw.request(Type.LOOKUP, **named))


@scenario
def protocol_producer(run: Run) -> None:
    """PRODUCER: names, ids, epochs, and its errors."""
    with run.raw() as raw, run.raw() as other:
        run.step("generated name", raw.open_producer(run.topic()))
        run.step("same id again", raw.request(Type.PRODUCER, topic=run.topic(), producer_id=1))
        run.step("own name", raw.request(Type.PRODUCER, topic=run.topic(), producer_id=2, producer_name="p"))
        run.step(
            "taken name, same connection",
            raw.request(Type.PRODUCER, topic=run.topic(), producer_id=3, producer_name="p"),
        )
        run.step("taken name, other connection", other.open_producer(run.topic(), 1, producer_name="p", epoch=5))
        named = {"topic": run.topic(), "producer_id": 4, "producer_name": "p", "epoch": 5}
        named["user_provided_producer_name"] = False
        run.step("taken name, higher epoch, generated", raw.request(Type.PRODUCER, **named))
        run.step(
            "missing namespace", raw.request(Type.PRODUCER, topic=f"persistent://public/{run.token}/t", producer_id=5)
        )
        run.step("bad name", raw.request(Type.PRODUCER, topic="persistent://public/t", producer_id=6))
        run.step("close", raw.request(Type.CLOSE_PRODUCER, producer_id=2))
        run.step("name free again", other.open_producer(run.topic(), 2, producer_name="p"))
        run.step("close twice", raw.request(Type.CLOSE_PRODUCER, producer_id=2))


@scenario
def protocol_send(run: Run) -> None:
    """SEND: receipts, checksums, sequence ids, batches."""
    with run.raw() as raw:
        raw.open_producer(run.topic())
        for sequence_id in (0, 1, 1, 0, 7):
            raw.send_message(1, sequence_id)
            run.step(f"sequence id {sequence_id}", raw.reply())
        raw.send_message(1, 8, checksum="none")
        run.step("no checksum", raw.reply())
        raw.send_message(1, 9, batch=[b"a", b"b", b"c"], highest_sequence_id=11)
        run.step("a batch", raw.reply())
        raw.send_message(1, 12, b"")
        run.step("empty payload", raw.reply())
        raw.send_message(1, 20, highest_sequence_id=19)
        run.step("highest below first", raw.replies())
        raw.send_message(1, 30, batch=[b"a", b"b"], highest_sequence_id=29)
        run.step("a batch, highest below first", raw.replies())
        raw.send_message(1, 21, checksum="bad")
        raw.send_message(1, 22)
        run.step("bad checksum, then a good one", raw.replies())
        if not raw.closed:
            run.step("close", raw.request(Type.CLOSE_PRODUCER, producer_id=1))
            raw.send_message(1, 23)
            run.step("SEND after the close", raw.replies())
    with run.raw() as raw:
        raw.subscribe(run.topic())
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("stored", raw.replies())


@scenario
def protocol_frame_limit(run: Run) -> None:
    """A payload of the announced size is stored, one byte more too; a frame above the allowance ends the connection.

    Nothing between the two is tried: a frame just under its own limit wedges the reference broker's storage for a
    while, for every topic.
    """
    limit = MAX_MESSAGE_BYTES + FRAME_ALLOWANCE_BYTES
    published_ms = 1_700_000_000_000
    sent = pb.MessageMetadata(producer_name="raw", sequence_id=1, publish_time=published_ms)
    # A frame has this much beside its payload; the limit counts the four bytes of its length as well.
    overhead = 8 + len(encode(Type.SEND, producer_id=1, sequence_id=1)) + 6 + 4 + len(sent.SerializeToString())
    for name, size in (
        ("max", MAX_MESSAGE_BYTES),
        ("max + 1", MAX_MESSAGE_BYTES + 1),
        ("limit + 1", limit + 1 - overhead),
    ):
        with run.raw() as raw:
            raw.open_producer(run.topic())
            raw.publish(1, 1)
            raw.send_message(1, 1, bytes(size), metadata={"publish_time": published_ms})
            run.step(name, raw.reply())


@scenario
def protocol_subscribe(run: Run) -> None:
    """SUBSCRIBE: ids, types, and its errors."""
    topic = run.topic()
    with run.raw() as raw, run.raw() as other:
        run.step("exclusive", raw.subscribe(topic))
        run.step("same id again", raw.subscribe(topic))
        run.step("a second one, same connection", raw.subscribe(topic, 2))
        run.step("a second one, other connection", other.subscribe(topic))
        run.step("other type", other.subscribe(topic, 2, "Shared"))
        run.step("empty subscription", raw.subscribe(topic, 4, subscription=""))
        run.step("missing namespace", raw.subscribe(f"persistent://public/{run.token}/t", 5))
        run.step("bad topic", raw.subscribe("persistent://public/t", 6))
        run.step("no topic to be made", raw.subscribe(run.topic("none"), 7, force_topic_creation=False))
        run.step("shared", raw.subscribe(topic, 8, "Shared", subscription="shared"))
        run.step("shared too", other.subscribe(topic, 8, "Shared", subscription="shared"))
        run.step("exclusive on a shared one", other.subscribe(topic, 9, subscription="shared"))
        run.step("close", raw.request(Type.CLOSE_CONSUMER, consumer_id=1))
        run.step("close again", raw.request(Type.CLOSE_CONSUMER, consumer_id=1))
        run.step("free again", other.subscribe(topic, 10))
        run.step("unsubscribe", other.request(Type.UNSUBSCRIBE, consumer_id=10))
        run.step("unsubscribe with another consumer", other.request(Type.UNSUBSCRIBE, consumer_id=8))
        run.step("nothing else came", [raw.replies(), other.replies()])


def filled(run: Run, raw: RawClient, *, messages: int = 0, batches: int = 0, batch_size: int = 10) -> None:
    """Leave messages in the run's topic."""
    raw.open_producer(run.topic(), 90)
    receipts = raw.publish(90, messages) + raw.publish_batches(90, batches, batch_size)
    run.step("filled", [receipt["type"] for receipt in receipts])


@scenario
def protocol_flow_exclusive(run: Run) -> None:
    """Permits on Exclusive count messages; a FLOW of none is a violation."""
    with run.raw() as raw:
        filled(run, raw, messages=10)
        raw.subscribe(run.topic())
        run.step("no permits", raw.replies())
        for permits in (3, 1, 2, 100, 0):
            raw.send(Type.FLOW, consumer_id=1, messagePermits=permits)
            run.step(f"{permits} permits", raw.replies())


@scenario
def protocol_flow_exclusive_batches(run: Run) -> None:
    """Exclusive with fewer permits than a batch has messages."""
    with run.raw() as raw:
        filled(run, raw, batches=4)
        raw.subscribe(run.topic())
        for permits in (5, 6, 1, 40):
            raw.send(Type.FLOW, consumer_id=1, messagePermits=permits)
            run.step(f"{permits} permits", raw.replies())


@scenario
def protocol_flow_shared(run: Run) -> None:
    """Permits on Shared: an entry goes while any permit is left, and uses as many as it has messages."""
    with run.raw() as raw:
        filled(run, raw, batches=8)
        raw.subscribe(run.topic(), sub_type="Shared")
        for permits in (5, 6, 1, 20, 100):
            raw.send(Type.FLOW, consumer_id=1, messagePermits=permits)
            run.step(f"{permits} permits", raw.replies())


@scenario
def protocol_flow_shared_two(run: Run) -> None:
    """Two Shared consumers get what their permits allow."""
    with run.raw() as raw:
        filled(run, raw, messages=10)
        for consumer_id in (1, 2):
            raw.subscribe(run.topic(), consumer_id, "Shared", consumer_name=f"c{consumer_id}")
        for consumer_id, permits in ((1, 3), (2, 2), (1, 1), (2, 100)):
            raw.send(Type.FLOW, consumer_id=consumer_id, messagePermits=permits)
            run.step(f"consumer {consumer_id}, {permits} permits", raw.replies())
        run.step("close", raw.request(Type.CLOSE_CONSUMER, consumer_id=1))
        run.step("what the closed one had", sorted(raw.replies(), key=lambda reply: str(reply.get("payload"))))


@scenario
def protocol_ack(run: Run) -> None:
    """ACK with and without a request id; what is left afterwards."""
    with run.raw() as raw:
        filled(run, raw, messages=8)
        raw.subscribe(run.topic())
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = message_ids(raw.replies())
        individual, cumulative = pb.CommandAck.Individual, pb.CommandAck.Cumulative
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=ids[4:5])
        run.step("individual without a request id", raw.replies())
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=ids[5:7], request_id=100)
        run.step("two ids", raw.reply())
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=ids[5:7], request_id=101)
        run.step("the same again", raw.reply())
        raw.send(Type.ACK, consumer_id=1, ack_type=cumulative, message_id=ids[1:2], request_id=102)
        run.step("cumulative", raw.reply())
        unknown = [pb.MessageIdData(ledgerId=ids[0].ledgerId, entryId=99)]
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=unknown, request_id=103)
        run.step("beyond the end", raw.reply())
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=[], request_id=104)
        run.step("no ids", raw.replies())
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        run.step("left", raw.replies())


@scenario
def protocol_ack_shared(run: Run) -> None:
    """Cumulative acknowledgement on Shared has no effect; acks by id do."""
    with run.raw() as raw:
        filled(run, raw, messages=4)
        raw.subscribe(run.topic(), sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = message_ids(raw.replies())
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=ids[3:])
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids[:1], request_id=100)
        run.step("by id", raw.replies())
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        run.step("left", sorted(raw.replies(), key=lambda reply: str(reply.get("payload"))))


@scenario
def protocol_ack_batch_indexes(run: Run) -> None:
    """Of a batch acknowledged in part the rest comes again with its ack set, and uses as many permits as are left."""
    individual = pb.CommandAck.Individual
    for sub_type in ("Exclusive", "Shared"):
        topic = run.topic(sub_type)
        with run.raw() as raw:
            raw.subscribe(topic, sub_type=sub_type)
            raw.open_producer(topic)
            raw.publish_batches(1, 2, 10)
            raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
            ids = message_ids(raw.replies())
            for label, words in (("two", [0b1111111100]), ("two others", [0b1111001111]), ("the same", [0b1111001111])):
                raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=[part(ids[0], words)], request_id=100)
                run.step(f"{sub_type}, ack of {label}", raw.reply())
            raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
            run.step(f"{sub_type}, again", by_payload(raw.replies()))
        with run.raw() as raw:
            run.wait_until(partial(subscribed, raw, topic, sub_type))
            raw.send(Type.FLOW, consumer_id=1, messagePermits=6)
            run.step(f"{sub_type}, after reconnect, six permits", acks_of(raw.replies()))
            raw.send(Type.FLOW, consumer_id=1, messagePermits=1)
            run.step(f"{sub_type}, one permit", acks_of(raw.replies()))
            rest = [part(ids[0], [0]), ids[1]]
            raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=rest, request_id=101)
            run.step(f"{sub_type}, ack of the rest", raw.reply())
            raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
            raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
            run.step(f"{sub_type}, nothing left", raw.replies())


def part(whole: pb.MessageIdData, left: list[int]) -> pb.MessageIdData:
    """A batch of which the bits of `left` are not acknowledged."""
    return pb.MessageIdData(ledgerId=whole.ledgerId, entryId=whole.entryId, ack_set=left)


def acks_of(replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Which entries, and how much of them: how often they were sent before is another scenario's matter."""
    return [{key: reply.get(key) for key in ("type", "message_id", "ack_set")} for reply in by_payload(replies)]


@scenario
def protocol_ack_cumulative_in_a_batch(run: Run) -> None:
    """A cumulative acknowledgement that ends within a batch leaves the rest of the batch."""
    with run.raw() as raw:
        filled(run, raw, batches=3)
        raw.subscribe(run.topic())
        raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        second = message_ids(raw.replies())[1]
        second.ack_set.append(0b1110000000)
        cumulative = pb.CommandAck.Cumulative
        raw.send(Type.ACK, consumer_id=1, ack_type=cumulative, message_id=[second], request_id=100)
        run.step("ack", raw.reply())
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        run.step("left", raw.replies())


@scenario
def protocol_reader(run: Run) -> None:
    """A subscription that is not durable: where it starts, and that it leaves nothing behind."""
    topic = run.topic()
    with run.raw() as raw:
        filled(run, raw, messages=4)
        raw.subscribe(topic, 1)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = message_ids(raw.replies())
        latest = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
        earliest = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        beyond = pb.MessageIdData(ledgerId=ids[3].ledgerId, entryId=99)
        starts = {"none": None, "earliest": earliest, "latest": latest, "the third": ids[2], "beyond": beyond}
        for consumer_id, (name, start) in enumerate(starts.items(), 10):
            fields: dict[str, Any] = {} if start is None else {"start_message_id": start}
            reply = raw.subscribe(topic, consumer_id, subscription=f"reader-{consumer_id}", durable=False, **fields)
            run.step(f"{name}: subscribe", reply)
            raw.send(Type.FLOW, consumer_id=consumer_id, messagePermits=100)
            run.step(name, raw.replies())
            run.step(f"{name}: last message id", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=consumer_id))
        named: dict[str, Any] = {"subscription": "sub", "durable": False, "start_message_id": earliest}
        run.step("by the name of a durable one", raw.subscribe(topic, 30, **named))
        run.step("close", raw.request(Type.CLOSE_CONSUMER, consumer_id=10))
        run.step("a durable one by its name", raw.subscribe(topic, 31, subscription="reader-10"))


@scenario
def protocol_redeliver(run: Run) -> None:
    """REDELIVER on Exclusive and Shared: which messages, which counts, whose permits."""
    for sub_type in ("Exclusive", "Shared"):
        with run.raw() as raw:
            raw.subscribe(run.topic(sub_type), sub_type=sub_type)
            raw.open_producer(run.topic(sub_type))
            raw.publish(1, 5)
            raw.send(Type.FLOW, consumer_id=1, messagePermits=7)
            ids = message_ids(raw.replies())
            raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids[:1])
            raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids[2:3])
            run.step(f"{sub_type}, one id", raw.replies())
            raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
            run.step(f"{sub_type}, more permits", raw.replies())
            raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
            run.step(f"{sub_type}, all", by_payload(raw.replies()))
            raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
            run.step(f"{sub_type}, all again", by_payload(raw.replies()))


def by_payload(replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(replies, key=lambda reply: str(reply.get("payload")))


@scenario
def protocol_reconnect_counts(run: Run) -> None:
    """Redelivery counts after the consumer's connection has ended."""
    for sub_type in ("Exclusive", "Shared"):
        topic = run.topic(sub_type)
        with run.raw() as raw:
            raw.subscribe(topic, sub_type=sub_type)
            raw.open_producer(topic)
            raw.publish(1, 3)
            raw.send(Type.FLOW, consumer_id=1, messagePermits=2)
            run.step(f"{sub_type}, first", raw.replies())
        with run.raw() as raw:
            run.wait_until(partial(subscribed, raw, topic, sub_type))
            raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
            run.step(f"{sub_type}, second", by_payload(raw.replies()))


def subscribed(raw: RawClient, topic: str, sub_type: str) -> bool:
    return bool(raw.subscribe(topic, sub_type=sub_type)["type"] == "SUCCESS")


@scenario
def protocol_disconnect_counts(run: Run) -> None:
    """What a Shared consumer held when its connection ended, as the consumer that stays gets it."""
    with run.raw() as stays:
        stays.subscribe(run.topic(), sub_type="Shared", consumer_name="stays")
        with run.raw() as leaves:
            leaves.subscribe(run.topic(), sub_type="Shared", consumer_name="leaves")
            filled(run, leaves, messages=4)
            leaves.send(Type.FLOW, consumer_id=1, messagePermits=3)
            ids = message_ids(leaves.replies())
            redelivered = {"consumer_id": 1, "message_ids": ids[:1]}
            leaves.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, **redelivered)
            leaves.send(Type.FLOW, consumer_id=1, messagePermits=1)
            run.step("one of three again", leaves.replies())
        stays.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("the one that stays", by_payload(stays.replies()))


@scenario
def protocol_last_message_id(run: Run) -> None:
    """GET_LAST_MESSAGE_ID of an empty topic, after a message, after a batch."""
    with run.raw() as raw:
        raw.subscribe(run.topic())
        run.step("empty", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        raw.open_producer(run.topic(), 90)
        receipts = raw.publish(90, 2)
        run.step("receipts", receipts)
        run.step("after two messages", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        run.step("receipt of a batch", raw.publish_batches(90, 1, 5))
        run.step("after a batch", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))


@scenario
def protocol_topics_of_namespace(run: Run) -> None:
    """GET_TOPICS_OF_NAMESPACE and its hash."""
    namespace = with_namespace(run)
    with run.raw() as raw:
        run.step("empty", raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace))
        for index, name in enumerate(("b", "a")):
            raw.open_producer(f"persistent://{namespace}/{name}", index)
        listed = raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace)
        # The hash covers the names, which carry the token of the run.
        run.step("has a hash", len(listed.pop("topics_hash", "")))
        run.step("two", {**listed, "topics": sorted(listed.get("topics", []))})
        run.step("missing namespace", raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=f"public/{run.token}"))
        run.step("bad namespace", raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="public"))


@scenario
def protocol_pipelined(run: Run) -> None:
    """Commands that arrive in one piece, and one byte at a time, are answered the same way."""
    topic = run.topic()
    commands = [
        encode(Type.PARTITIONED_METADATA, topic=topic, request_id=1),
        encode(Type.LOOKUP, topic=topic, request_id=2),
        encode(Type.PING),
    ]
    data = b"".join(frame(command) for command in commands)
    with run.raw() as raw:
        raw.send_bytes(data)
        run.step("in one piece", sorted(raw.replies(), key=lambda reply: str(reply["type"])))
    with run.raw() as raw:
        for byte in data:
            raw.send_bytes(bytes((byte,)))
        run.step("byte by byte", sorted(raw.replies(), key=lambda reply: str(reply["type"])))
