"""The life of a subscription: moved, read from anywhere, acknowledged in every way, deleted, limited."""

from functools import partial
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.differential.scenarios_protocol import by_payload, filled, message_ids, part
from tests.differential.scenarios_topics import with_namespace
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

EARLIEST = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
LATEST = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
POLICIES: tuple[tuple[str, Any, Any], ...] = (
    (
        "dispatchRate",
        {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 2},
        {"dispatchThrottlingRateInByte": 99},
    ),
    ("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": 10}, {"relativeToPublishRate": True}),
    ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}, {}),
)


def again(raw: RawClient, topic: str, **fields: Any) -> list[dict[str, Any]]:
    """What a consumer of the run's subscription gets after it has subscribed again."""
    raw.subscribe(topic, **fields)
    raw.send(Type.FLOW, consumer_id=fields.get("consumer_id", 1), messagePermits=1000)
    return [{key: each.get(key) for key in ("type", "message_id", "ack_set", "payload")} for each in raw.replies()]


def seek(raw: RawClient, request_id: int = 500, consumer_id: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """A SEEK and everything that comes of it."""
    raw.send(Type.SEEK, consumer_id=consumer_id, request_id=request_id, **fields)
    return raw.replies()


@scenario
def seek_by_id(run: Run) -> None:
    """SEEK to messages, to both ends, to ids that do not exist, and what is delivered then."""
    topic = run.topic()
    with run.raw() as raw:
        filled(run, raw, messages=6)
        raw.subscribe(topic)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        ids = message_ids(raw.replies())
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=ids[4:5])
        ledger_id = ids[0].ledgerId
        targets = {
            "the third": ids[2],
            "the first": ids[0],
            "the last": ids[5],
            "earliest": EARLIEST,
            "latest": LATEST,
            "behind the last": pb.MessageIdData(ledgerId=ledger_id, entryId=6),
            "far behind the last": pb.MessageIdData(ledgerId=ledger_id, entryId=99),
            "in a later ledger": pb.MessageIdData(ledgerId=ledger_id + 1000, entryId=1),
            "in an older ledger": pb.MessageIdData(ledgerId=0, entryId=3),
            "before the first": pb.MessageIdData(ledgerId=ledger_id, entryId=2**64 - 1),
        }
        for name, target in targets.items():
            run.step(f"{name}: replies", seek(raw, message_id=target))
            run.step(f"{name}: delivered", again(raw, topic))
        run.step("neither id nor time", seek(raw))
        run.step("unknown consumer", seek(raw, consumer_id=9, message_id=ids[0]))


@scenario
def seek_by_time(run: Run) -> None:
    """SEEK by publish time: between messages, before and behind all of them."""
    topic = run.topic()
    with run.raw() as raw:
        raw.open_producer(topic, 90)
        for index in range(5):
            raw.send_message(90, index, b"m%d" % index, metadata={"publish_time": 1_700_000_000_000 + index * 1000})
            raw.reply()
        raw.subscribe(topic)
        for offset_ms in (2000, 2001, 1999, -5, 4000, 4001, 0):
            reply = seek(raw, message_publish_time=1_700_000_000_000 + offset_ms)
            run.step(f"{offset_ms}: replies", [each["type"] for each in reply])
            run.step(f"{offset_ms}: delivered", again(raw, topic))
        run.step("time 0", [each["type"] for each in seek(raw, message_publish_time=0)])
        run.step("time 0: delivered", again(raw, topic))


@scenario
def seek_in_a_batch(run: Run) -> None:
    """SEEK into a batch, with the rest of it as an ack set, and with a batch index alone."""
    for sub_type in ("Exclusive", "Shared"):
        topic = run.topic(sub_type)
        with run.raw() as raw:
            raw.open_producer(topic, 90)
            raw.publish_batches(90, 3, 10)
            raw.subscribe(topic, sub_type=sub_type)
            raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
            ids = message_ids(raw.replies())
            position = pb.MessageIdData(ledgerId=ids[1].ledgerId, entryId=ids[1].entryId)
            run.step(
                f"{sub_type}, ack set: replies",
                [each["type"] for each in seek(raw, message_id=part(ids[1], [0b1111111000]))],
            )
            run.step(f"{sub_type}, ack set: delivered", again(raw, topic, sub_type=sub_type))
            position.batch_index = 5
            position.batch_size = 10
            run.step(f"{sub_type}, batch index: replies", [each["type"] for each in seek(raw, message_id=position)])
            run.step(f"{sub_type}, batch index: delivered", again(raw, topic, sub_type=sub_type))
            run.step(
                f"{sub_type}, all of it: replies", [each["type"] for each in seek(raw, message_id=part(ids[1], [0]))]
            )
            run.step(f"{sub_type}, all of it: delivered", again(raw, topic, sub_type=sub_type))


@scenario
def seek_with_others(run: Run) -> None:
    """SEEK of one Shared consumer moves all of them; while nobody is connected by then, nobody is told."""
    topic = run.topic()
    with run.raw() as raw, run.raw() as other:
        filled(run, raw, messages=4)
        raw.subscribe(topic, sub_type="Shared")
        other.subscribe(topic, 7, sub_type="Shared")
        other.subscribe(topic, 8, sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        ids = message_ids(raw.replies())
        run.step("to the asker", seek(raw, message_id=ids[1]))
        run.step("to the others", by_payload(other.replies()))
        run.step("after", by_payload(again(raw, topic, sub_type="Shared")))
        raw.send(Type.SEEK, consumer_id=1, request_id=600, message_id=ids[0])
        raw.send(Type.SEEK, consumer_id=1, request_id=601, message_id=ids[2])
        run.step("two at once", sorted(({"type": each["type"]} for each in raw.replies()), key=str))


@scenario
def seek_of_a_reader(run: Run) -> None:
    """SEEK on a subscription that is not durable, and where it stands when it subscribes again."""
    topic = run.topic()
    with run.raw() as raw:
        filled(run, raw, messages=6)
        fields: dict[str, Any] = {"subscription": "reader", "durable": False}
        raw.subscribe(topic, start_message_id=EARLIEST, **fields)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        ids = message_ids(raw.replies())
        run.step("seek", seek(raw, message_id=ids[3]))
        run.step("same start as before", again(raw, topic, start_message_id=EARLIEST, **fields))
        run.step("seek once more", seek(raw, message_id=ids[1]))
        run.step("start at the fifth", again(raw, topic, start_message_id=ids[4], **fields))
        run.step("seek to the latest", seek(raw, message_id=LATEST))
        run.step("no start", again(raw, topic, **fields))
        run.step("seek by time", [each["type"] for each in seek(raw, message_publish_time=1)])
        run.step("start at the latest", again(raw, topic, start_message_id=LATEST, **fields))


@scenario
def seek_with_the_client(run: Run) -> None:
    """The official client's seek on consumers and readers, and what it says of more messages."""
    client = run.client()
    topic = run.topic()
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"m%d" % index) for index in range(5)]
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    run.record_messages("first", run.receive(consumer, 5))
    for name, target in (
        ("third", ids[2]),
        ("earliest", pulsar.MessageId.earliest),
        ("latest", pulsar.MessageId.latest),
    ):
        run.attempt(f"seek to {name}", lambda: consumer.seek(target))  # noqa: B023
        run.record_messages(f"after {name}", run.receive_rest(consumer))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    run.step("reader has more", reader.has_message_available())
    for name, target in (("last", ids[4]), ("latest", pulsar.MessageId.latest), ("time", 1), ("second", ids[1])):
        run.attempt(f"reader seeks {name}", lambda: reader.seek(target))  # noqa: B023
        run.step(f"reader has more after {name}", reader.has_message_available())
    run.step("reader reads", run.describe(reader.read_next(5000)))


@scenario
def reader_starts(run: Run) -> None:
    """Where a reader starts: by id and batch index, by age, on a subscription that is there already."""
    topic = run.topic()
    with run.raw() as raw:
        filled(run, raw, messages=2, batches=2)
        raw.subscribe(topic, 1)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = message_ids(raw.replies())
        inside = pb.MessageIdData(ledgerId=ids[2].ledgerId, entryId=ids[2].entryId, batch_index=4)
        starts: dict[str, dict[str, Any]] = {
            "in a batch": {"start_message_id": inside},
            "an hour ago": {"start_message_rollback_duration_sec": 3600},
            "an hour ago and latest": {"start_message_rollback_duration_sec": 3600, "start_message_id": LATEST},
            "in an older ledger": {"start_message_id": pb.MessageIdData(ledgerId=0, entryId=3)},
            "in a later ledger": {"start_message_id": pb.MessageIdData(ledgerId=ids[0].ledgerId + 1000, entryId=3)},
            "no id, earliest": {"initialPosition": pb.CommandSubscribe.Earliest},
            "no id, latest": {"initialPosition": pb.CommandSubscribe.Latest},
            "latest id, earliest": {"start_message_id": LATEST, "initialPosition": pb.CommandSubscribe.Earliest},
        }
        for consumer_id, (name, fields) in enumerate(starts.items(), 10):
            defaults = {"subscription": f"reader-{consumer_id}", "initialPosition": pb.CommandSubscribe.Latest}
            run.step(name, again(raw, topic, consumer_id=consumer_id, durable=False, **{**defaults, **fields}))
            run.step(f"{name}: last", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=consumer_id))
        shared: dict[str, Any] = {"subscription": "one", "durable": False, "sub_type": "Shared"}
        run.step("the first of two", again(raw, topic, consumer_id=40, start_message_id=ids[1], **shared))
        run.step("the second of two", again(raw, topic, consumer_id=41, start_message_id=EARLIEST, **shared))


@scenario
def last_message_of_a_trimmed_topic(run: Run) -> None:
    """GET_LAST_MESSAGE_ID after everything was acknowledged, trimmed and terminated."""
    topic = run.topic()
    path = "/admin/v2/" + topic.replace("://", "/")
    with run.raw() as raw:
        raw.subscribe(topic)
        filled(run, raw, messages=3)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = message_ids(raw.replies())
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids[1:2], request_id=70)
        raw.replies()
        run.step("with a hole", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=ids[2:], request_id=71)
        raw.replies()
        run.step("all acknowledged", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        run.rest("terminate", "POST", f"{path}/terminate")
        raw.replies()
        run.step("terminated", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1)["last_message_id"])
        raw.subscribe(topic, 5, subscription="reader", durable=False, start_message_id=EARLIEST)
        raw.send(Type.FLOW, consumer_id=5, messagePermits=100)
        run.step("a reader of a terminated topic", [each["type"] for each in raw.replies()])
        raw.subscribe(topic, 6, subscription="late", durable=False, start_message_id=LATEST)
        raw.send(Type.FLOW, consumer_id=6, messagePermits=100)
        run.step("a late reader of it", [each["type"] for each in raw.replies()])


@scenario
def end_of_topic(run: Run) -> None:
    """REACHED_END_OF_TOPIC on Shared: to all consumers, once everything is acknowledged."""
    topic = run.topic()
    path = "/admin/v2/" + topic.replace("://", "/")
    with run.raw() as raw, run.raw() as other:
        filled(run, raw, messages=2)
        raw.subscribe(topic, sub_type="Shared")
        other.subscribe(topic, 7, sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        ids = message_ids(raw.replies())
        run.http("POST", f"{path}/terminate", ..., "application/json")
        other.send(Type.FLOW, consumer_id=7, messagePermits=100)
        run.step("nothing is acknowledged", [[each["type"] for each in one.replies()] for one in (raw, other)])
        for each in ids:
            raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[each])
        run.step("all is acknowledged", [[each["type"] for each in one.replies()][:1] for one in (raw, other)])


@scenario
def acknowledgements_of_others(run: Run) -> None:
    """Acknowledgements of entries that the consumer does not hold, of nothing, with errors, and by nobody."""
    topic = run.topic()
    individual = pb.CommandAck.Individual
    with run.raw() as raw:
        filled(run, raw, messages=5)
        raw.subscribe(topic, sub_type="Shared")
        raw.subscribe(topic, 2, sub_type="Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=3)
        ids = message_ids(raw.replies())
        not_sent = pb.MessageIdData(ledgerId=ids[0].ledgerId, entryId=4)
        raw.send(Type.ACK, consumer_id=2, ack_type=individual, message_id=ids[:1], request_id=100)
        run.step("held by another", raw.reply())
        raw.send(Type.ACK, consumer_id=2, ack_type=individual, message_id=[not_sent], request_id=101)
        run.step("not delivered yet", raw.reply())
        error = pb.CommandAck.ChecksumMismatch
        fields: dict[str, Any] = {"validation_error": error, "message_id": ids[1:2], "request_id": 102}
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, **fields)
        run.step("with a validation error", raw.reply())
        properties = [pb.KeyLongValue(key="k", value=5)]
        raw.send(
            Type.ACK, consumer_id=1, ack_type=individual, message_id=ids[2:], properties=properties, request_id=103
        )
        run.step("with properties", raw.reply())
        raw.send(Type.ACK, consumer_id=9, ack_type=individual, message_id=ids[2:], request_id=104)
        run.step("by nobody", raw.replies())
        raw.send(Type.FLOW, consumer_id=2, messagePermits=100)
        run.step("left", by_payload(raw.replies()))
        missing = pb.MessageIdData(ledgerId=ids[0].ledgerId + 1000, entryId=0)
        raw.send(Type.ACK, consumer_id=1, ack_type=individual, message_id=[missing], request_id=105)
        run.step("in a ledger that does not exist", raw.reply())


@scenario
def consumer_epochs(run: Run) -> None:
    """REDELIVER and SUBSCRIBE with epochs: what the messages carry, and which requests are too old."""
    topic = run.topic()
    with run.raw() as raw:
        filled(run, raw, messages=2)
        raw.subscribe(topic, consumer_epoch=3)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("subscribed with 3", raw.replies())
        for epoch in (5, 4, 5, 6):
            raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=epoch)
            run.step(f"again with {epoch}", raw.replies())
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        run.step("again without", raw.replies())
    shared = run.topic("shared")
    with run.raw() as raw:
        raw.subscribe(shared, sub_type="Shared", consumer_epoch=3)
        raw.open_producer(shared)
        raw.publish(1, 1)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("Shared", raw.replies())


@scenario
def unsubscribing(run: Run) -> None:
    """UNSUBSCRIBE of each type with and without others, by force, and of readers."""
    for sub_type in ("Exclusive", "Shared"):
        topic = run.topic(sub_type)
        with run.raw() as raw, run.raw() as other:
            raw.subscribe(topic, sub_type=sub_type)
            if sub_type == "Shared":
                other.subscribe(topic, 7, sub_type=sub_type)
                run.step("with another", raw.request(Type.UNSUBSCRIBE, consumer_id=1))
                run.step("by force", raw.request(Type.UNSUBSCRIBE, consumer_id=1, force=True))
                run.step("to the asker", raw.replies())
                run.step("to the other", other.replies())
            else:
                run.step("alone", raw.request(Type.UNSUBSCRIBE, consumer_id=1))
                run.step("again", raw.request(Type.UNSUBSCRIBE, consumer_id=1))
                run.step("closing it", raw.request(Type.CLOSE_CONSUMER, consumer_id=1))
            run.rest(f"{sub_type}: the list", "GET", f"/admin/v2/{topic.replace('://', '/')}/subscriptions")
            raw.subscribe(topic, 3, subscription="reader", durable=False, start_message_id=EARLIEST)
            run.step("a reader", raw.request(Type.UNSUBSCRIBE, consumer_id=3))


@scenario
def subscription_properties(run: Run) -> None:
    """Properties of a subscription: from SUBSCRIBE, over REST, and which of several consumers decides."""
    topic = run.topic()
    path = f"/admin/v2/{topic.replace('://', '/')}/subscription"
    pair = pb.KeyValue(key="k", value="v")
    other_pair = pb.KeyValue(key="other", value="w")
    with run.raw() as raw:
        run.step("subscribe", raw.subscribe(topic, sub_type="Shared", subscription_properties=[pair]))
        run.rest("of SUBSCRIBE", "GET", f"{path}/sub/properties")
        raw.subscribe(topic, 2, sub_type="Shared", subscription_properties=[other_pair])
        run.rest("of the second", "GET", f"{path}/sub/properties")
        raw.request(Type.CLOSE_CONSUMER, consumer_id=1)
        raw.request(Type.CLOSE_CONSUMER, consumer_id=2)
        raw.subscribe(topic, 3, sub_type="Shared", subscription_properties=[other_pair])
        run.rest("of the next one alone", "GET", f"{path}/sub/properties")
        raw.request(Type.CLOSE_CONSUMER, consumer_id=3)
        run.rest("replaced", "PUT", f"{path}/sub/properties", {"a": "1"})
        run.rest("after", "GET", f"{path}/sub/properties")
        run.rest("added", "PUT", f"{path}/sub/properties", {"b": "2"})
        run.rest("after that", "GET", f"{path}/sub/properties")
        run.rest_status("no body", "PUT", f"{path}/sub/properties")
        run.rest("emptied", "PUT", f"{path}/sub/properties", {})
        run.rest("after emptying", "GET", f"{path}/sub/properties")
        raw.subscribe(topic, 4, subscription="plain")
        run.rest("of one without", "GET", f"{path}/plain/properties")
        run.rest_status("of a missing one", "GET", f"{path}/no/properties")
        run.rest_status("to a missing one", "PUT", f"{path}/no/properties", {"a": "1"})
        run.step("replicated", raw.subscribe(topic, 5, subscription="r", replicate_subscription_state=True))


@scenario
def consumer_statistics(run: Run) -> None:
    """CONSUMER_STATS of a consumer that holds messages."""
    topic = run.topic()
    with run.raw() as raw:
        filled(run, raw, messages=5)
        raw.subscribe(topic, sub_type="Shared", consumer_name="c")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=3)
        raw.replies()
        shown = raw.request(Type.CONSUMER_STATS, consumer_id=1)
        shown["address"] = shown.get("address", "").rpartition(":")[0]
        run.step("stats", shown)


@scenario
def initial_subscriptions(run: Run) -> None:
    """What a producer's initial subscription gets, and that one that is there is left alone."""
    topic = run.topic()
    with run.raw() as raw:
        raw.open_producer(topic, 1, initial_subscription_name="dlq")
        raw.publish(1, 2)
        run.step("from the beginning", again(raw, topic, subscription="dlq", consumer_id=5))
        raw.open_producer(topic, 2, initial_subscription_name="late")
        run.step("made later", again(raw, topic, subscription="late", consumer_id=6))
        run.step("again", raw.open_producer(topic, 3, initial_subscription_name="dlq")["type"])


def with_topic(run: Run) -> tuple[str, str]:
    """A namespace of the run's own with a topic that is loaded; their names."""
    namespace = with_namespace(run)
    topic = run.topic(namespace=namespace)
    run.client().create_producer(topic).close()
    return namespace, topic


def change_at_topic(run: Run, label: str, method: str, path: str, body: Any = ...) -> None:
    """Record a call that changes a policy of a topic, and wait until a GET shows it, which it does a while later."""

    def shown() -> bytes:
        return run.http("GET", path.partition("?")[0], ..., "")[2]

    before = shown()
    run.rest(label, method, path, body)
    assert run.wait_until(lambda: shown() != before), f"{label} changes nothing"


@scenario
def rest_rates(run: Run) -> None:
    """Dispatch and subscribe rates of a namespace and of a topic."""
    namespace, topic = with_topic(run)
    paths = {"namespace": f"/admin/v2/namespaces/{namespace}", "topic": f"/admin/v2/{topic.replace('://', '/')}"}
    change = {"namespace": run.rest, "topic": partial(change_at_topic, run)}
    for policy, first, second in POLICIES:
        for level, base in paths.items():
            path = f"{base}/{policy}"

            def shown(expected: bool, path: str = path) -> bool:
                return run.wait_until(lambda: bool(run.http("GET", path, ..., "")[2]) is expected)

            label = f"{level} {policy}"
            run.rest(f"{label} unset", "GET", path)
            run.rest(f"{label} set", "POST", path, first)
            run.step(f"{label} is set", shown(expected=True))
            run.rest(f"{label} shown", "GET", path)
            change[level](f"{label} set again", "POST", path, second)  # type: ignore[operator]
            run.rest(f"{label} shown again", "GET", path)
            run.rest(f"{label} applied to the topic", "GET", f"{paths['topic']}/{policy}?applied=true")
            run.rest_status(f"{label} no JSON", "POST", path, b"{bad")
            run.rest_status(f"{label} no body", "POST", path)
        for level, base in reversed(paths.items()):
            change[level](f"{level} {policy} removed", "DELETE", f"{base}/{policy}")  # type: ignore[operator]
            run.rest(f"{level} {policy} after", "GET", f"{base}/{policy}")
            run.rest(f"{level} {policy} applied after", "GET", f"{paths['topic']}/{policy}?applied=true")


@scenario
def rest_subscription_expiration(run: Run) -> None:
    """After how long an unused subscription goes: of a namespace, and of a topic."""
    namespace, topic = with_topic(run)
    path = f"/admin/v2/namespaces/{namespace}/subscriptionExpirationTime"
    own = f"/admin/v2/{topic.replace('://', '/')}/subscriptionExpirationTime"
    run.rest("unset", "GET", path)
    run.rest("set", "POST", path, 5)
    run.rest("shown", "GET", path)
    run.rest("negative", "POST", path, -1)
    run.rest("never", "POST", path, 0)
    run.rest("shown never", "GET", path)
    run.rest_status("no number", "POST", path, b'"x"')
    run.rest_status("no body", "POST", path)
    run.rest("of the topic, unset", "GET", own)
    change_at_topic(run, "of the topic, set", "POST", f"{own}?subscriptionExpirationTime=7")
    run.rest("of the topic", "GET", own)
    run.rest("applied to the topic", "GET", f"{own}?applied=true")
    run.rest("of the topic, negative", "POST", f"{own}?subscriptionExpirationTime=-1")
    change_at_topic(run, "of the topic, removed", "DELETE", own)
    run.rest("of the topic after", "GET", own)
    run.rest("removed", "DELETE", path)
    run.rest("after", "GET", path)
    run.rest_status("of a missing namespace", "GET", path.replace("/ns/", "/no/"))


@scenario
def rest_auto_subscription_creation(run: Run) -> None:
    """Whether subscriptions are made by those who use them: of a namespace and of a topic, and who is refused."""
    namespace, topic = with_topic(run)
    path = f"/admin/v2/namespaces/{namespace}/autoSubscriptionCreation"
    own = f"/admin/v2/{topic.replace('://', '/')}/autoSubscriptionCreation"
    run.rest("unset", "GET", path)
    run.rest("off", "POST", path, {"allowAutoSubscriptionCreation": False})
    run.rest("shown", "GET", path)
    with run.raw() as raw:
        run.wait_until(lambda: raw.subscribe(topic, 1, subscription=f"s{len(run.steps)}")["type"] == "ERROR")
        run.step("subscribe", raw.subscribe(topic, 2, subscription="new"))
        run.step("initial subscription", raw.open_producer(topic, 1, initial_subscription_name="dlq"))
        run.rest("on for the topic", "POST", own, {"allowAutoSubscriptionCreation": True})
        run.wait_until(lambda: bool(run.http("GET", own, ..., "")[2]))
        run.rest("of the topic", "GET", own)
        run.step("subscribe again", raw.subscribe(topic, 3, subscription="new"))
    run.rest("off for the topic no more", "DELETE", own)
    run.rest("removed", "DELETE", path)
    run.rest("after", "GET", path)
