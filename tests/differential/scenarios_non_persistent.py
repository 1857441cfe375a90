"""Non-persistent topics: what is sent to whom, what is dropped, and what of a topic's life goes without a store."""

import json
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

NAMESPACE = "public/default"


def volatile(run: Run, name: str = "topic", namespace: str = NAMESPACE) -> str:
    return f"non-persistent://{namespace}/{run.token}-{name}"


def path(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def opened(raw: RawClient, topic: str, sub_type: str = "Exclusive", permits: int = 10, **fields: Any) -> Any:
    """A consumer with permits, which the broker knows of; the reply to SUBSCRIBE."""
    reply = raw.subscribe(topic, sub_type=sub_type, **fields)
    if permits and reply["type"] == "SUCCESS":
        add_permits(raw, permits, fields.get("consumer_id", 1))
    return reply


def add_permits(raw: RawClient, permits: int, consumer_id: int = 1) -> None:
    """Nothing waits for them, so they have to be there before a message is sent on another connection."""
    raw.send(Type.FLOW, consumer_id=consumer_id, messagePermits=permits)
    raw.request(Type.CONSUMER_STATS, consumer_id=consumer_id)


def payloads(replies: list[dict[str, Any]]) -> list[str]:
    return [each["payload"] for each in replies if each["type"] == "MESSAGE"]


@scenario
def non_persistent_receipts(run: Run) -> None:
    """Receipts and messages have the id 0:0; without a subscription all is lost and still answered."""
    topic = volatile(run)
    with run.raw() as producer, run.raw() as consumer:
        run.step("PRODUCER", producer.open_producer(topic))
        run.step("receipts without a subscription", producer.publish(1, 3))
        run.step("receipts of batches", producer.publish_batches(1, 2, 5))
        run.step("SUBSCRIBE", opened(consumer, topic, permits=0))
        run.step("receipts without permits", producer.publish(1, 2, first=20))
        add_permits(consumer, 10)
        run.step("what was sent before", consumer.replies())
        producer.publish(1, 3, first=30)
        run.step("messages", consumer.replies())
        producer.publish_batches(1, 1, 5)
        run.step("a batch", consumer.replies())


@scenario
def non_persistent_permits(run: Run) -> None:
    """An entry is sent whole while there is a permit; what finds none is dropped."""
    topic = volatile(run)
    for sub_type in ("Exclusive", "Failover", "Shared", "Key_Shared"):
        with run.raw() as producer, run.raw() as consumer:
            opened(consumer, topic + sub_type, sub_type, permits=5)
            consumer.replies()
            producer.open_producer(topic + sub_type)
            producer.publish(1, 4)
            run.step(f"{sub_type}: four of five permits", payloads(consumer.replies()))
            producer.publish_batches(1, 1, 10)
            run.step(f"{sub_type}: a batch for the last one", payloads(consumer.replies()))
            producer.publish(1, 2, first=20)
            run.step(f"{sub_type}: none left", payloads(consumer.replies()))
            add_permits(consumer, 9)
            producer.publish(1, 2, first=30)
            run.step(f"{sub_type}: nine more pay the debt", payloads(consumer.replies()))
            add_permits(consumer, 1)
            producer.publish(1, 2, first=40)
            run.step(f"{sub_type}: one more", payloads(consumer.replies()))


@scenario
def non_persistent_commands(run: Run) -> None:
    """What a consumer may ask for that needs a store."""
    topic = volatile(run)
    with run.raw() as producer, run.raw() as raw:
        producer.open_producer(topic)
        opened(raw, topic, "Shared")
        producer.publish(1, 3)
        messages = raw.replies()
        run.step("messages", messages)
        ids = [pb.MessageIdData(ledgerId=0, entryId=0)]
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids, request_id=71)
        run.step("ACK with a request id", raw.replies())
        raw.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=ids, request_id=72)
        run.step("cumulative ACK with a request id", raw.replies())
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        raw.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids)
        run.step("REDELIVER", raw.replies())
        run.step("GET_LAST_MESSAGE_ID", raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1))
        stats = raw.request(Type.CONSUMER_STATS, consumer_id=1)
        kept = ("type", "availablePermits", "unackedMessages", "msgBacklog", "blockedConsumerOnUnackedMsgs")
        run.step("CONSUMER_STATS", {key: stats.get(key) for key in kept})
        run.step("UNSUBSCRIBE", raw.request(Type.UNSUBSCRIBE, consumer_id=1))
        run.rest("subscriptions", "GET", path(topic) + "/subscriptions")
    for label, target in (("message", {"message_id": ids[0]}), ("time", {"message_publish_time": 1000})):
        with run.raw() as producer, run.raw() as raw:
            producer.open_producer(topic + label)
            opened(raw, topic + label)
            producer.publish(1, 1)
            run.step(f"a message before SEEK by {label}", payloads(raw.replies()))
            raw.send(Type.SEEK, consumer_id=1, request_id=90, **target)
            run.step(f"SEEK by {label}", raw.replies())


@scenario
def non_persistent_subscription_life(run: Run) -> None:
    """Subscriptions that nobody uses stay while the topic is loaded, those of readers do not."""
    topic = volatile(run)
    with run.raw() as producer:
        producer.open_producer(topic)
        with run.raw() as raw:
            opened(raw, topic, durable=False, subscription="reader")
            run.rest("with a reader", "GET", path(topic) + "/subscriptions")
        with run.raw() as raw:
            opened(raw, topic, subscription="durable")
        run.rest("all are gone", "GET", path(topic) + "/subscriptions")
        producer.publish(1, 3)
        with run.raw() as raw:
            opened(raw, topic, subscription="durable")
            run.step("missed while away", raw.replies())
            producer.publish(1, 1, first=10)
            run.step("and what comes now", payloads(raw.replies()))
        with run.raw() as raw:
            run.step("as a reader", opened(raw, topic, durable=False, subscription="durable"))
        with run.raw() as one, run.raw() as other:
            opened(one, topic, "Shared", subscription="typed")
            run.step("another type", opened(other, topic, "Failover", subscription="typed"))
            run.step("another exclusive one", opened(other, topic, "Exclusive", subscription="typed"))
        with run.raw() as one, run.raw() as other:
            opened(one, topic, "Exclusive", subscription="sole")
            run.step("a second exclusive one", opened(other, topic, "Exclusive", subscription="sole"))


@scenario
def non_persistent_failover(run: Run) -> None:
    """Who is active, when consumers are told, and that a change costs nothing but what is under way."""
    topic = volatile(run)
    with run.raw() as producer, run.raw() as one, run.raw() as two:
        producer.open_producer(topic)
        opened(one, topic, "Failover", consumer_name="one", priority_level=1)
        run.step("the first is told", one.replies())
        opened(two, topic, "Failover", consumer_name="two", priority_level=0)
        run.step("the better one is told", two.replies(1.5))
        run.step("the former one is told", one.replies())
        producer.publish(1, 2)
        run.step("to the better one", payloads(two.replies()))
        run.step("not to the other", payloads(one.replies()))
        two.close()
        run.step("active again", one.replies(1.5))
        producer.publish(1, 2, first=10)
        run.step("to who is left", payloads(one.replies()))


@scenario
def non_persistent_shared(run: Run) -> None:
    """Round robin by entry, within the best level that has permits."""
    topic = volatile(run)
    with run.raw() as producer, run.raw() as raw:
        producer.open_producer(topic)
        opened(raw, topic, "Shared", consumer_id=1, permits=4)
        opened(raw, topic, "Shared", consumer_id=2, permits=4)
        opened(raw, topic, "Shared", consumer_id=3, permits=2, priority_level=1)
        receipts = producer.publish(1, 12)
        run.step("receipts", len(receipts))
        got = raw.replies()
        run.step("each gets", {str(number): _of(got, number) for number in (1, 2, 3)})


@scenario
def non_persistent_key_shared(run: Run) -> None:
    """A key to the owner of its hash; dropped when that has no permits, or when nobody owns it."""
    topic = volatile(run)
    keys = [f"key-{index}" for index in range(10)]
    with run.raw() as producer, run.raw() as raw:
        producer.open_producer(topic)
        opened(raw, topic, "Key_Shared", consumer_id=1, permits=100, consumer_name="a")
        opened(raw, topic, "Key_Shared", consumer_id=2, permits=3, consumer_name="b")
        _publish_keys(producer, keys)
        got = raw.replies()
        run.step("auto split", {str(number): _of(got, number) for number in (1, 2)})
    with run.raw() as producer, run.raw() as raw:
        producer.open_producer(topic + "sticky")
        half = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY, hashRanges=[pb.IntRange(start=0, end=32767)])
        run.step("sticky", opened(raw, topic + "sticky", "Key_Shared", permits=100, keySharedMeta=half))
        _publish_keys(producer, keys)
        run.step("half of the hashes", payloads(raw.replies()))
        both = opened(raw, topic + "sticky", "Key_Shared", consumer_id=2, permits=100, keySharedMeta=half)
        run.step("an overlapping range", {key: both.get(key) for key in ("type", "error")})


def _publish_keys(producer: RawClient, keys: list[str]) -> None:
    for index, key in enumerate(keys):
        producer.send_message(1, index, key.encode(), metadata={"partition_key": key})
    for _ in keys:
        producer.reply()


def _of(replies: list[dict[str, Any]], consumer_id: int) -> list[str]:
    return [each["payload"] for each in replies if each.get("consumer_id") == str(consumer_id)]


@scenario
def non_persistent_client(run: Run) -> None:
    """The official client's producer, consumer, reader, and a partitioned topic."""
    client = run.client()
    topic = volatile(run)
    consumer = client.subscribe(topic, "sub")
    reader = run.attempt("reader", lambda: client.create_reader(topic, pulsar.MessageId.latest))
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(3):
        producer.send(b"m%d" % index, partition_key="k", properties={"n": str(index)})
    messages = run.receive(consumer, 3)
    run.step("payloads", [each.data().decode() for each in messages])
    for each in messages:
        consumer.acknowledge(each)
    if reader is not None:
        run.step("read", [reader.read_next(5000).data().decode() for _ in range(3)])
    run.attempt("last message id", consumer.get_last_message_id)
    consumer.negative_acknowledge(messages[0])
    run.step("nothing comes again", len(run.receive_rest(consumer)))
    namespace = f"public/{run.token}-parts"
    run.rest("namespace", "PUT", f"/admin/v2/namespaces/{namespace}", {})
    parts = volatile(run, "parts", namespace)
    run.rest("create partitions", "PUT", path(parts) + "/partitions", 3)
    consumer = client.subscribe(parts, "sub")
    producer = client.create_producer(parts)
    for index in range(6):
        producer.send(b"p%d" % index)
    run.step("from partitions", sorted(each.data().decode() for each in run.receive(consumer, 6)))
    run.rest("grow", "POST", path(parts) + "/partitions", 4)
    run.rest("partitions", "GET", path(parts) + "/partitions")
    run.rest("listed", "GET", f"/admin/v2/non-persistent/{namespace}/partitioned")
    listed = json.loads(run.http("GET", f"/admin/v2/non-persistent/{namespace}", ..., "application/json")[2])
    run.step("partitions that are loaded", sorted(listed))
    run.step("members of partitioned stats", sorted(_body(run, parts, "/partitioned-stats")))
    client.close()
    run.rest("delete partitions", "DELETE", path(parts) + "/partitions")
    run.rest("nothing is left", "GET", f"/admin/v2/non-persistent/{namespace}")


@scenario
def non_persistent_rest(run: Run) -> None:
    """Making, listing, unloading, deleting; what makes no sense is refused."""
    namespace = f"public/{run.token}"
    run.rest("namespace", "PUT", f"/admin/v2/namespaces/{namespace}", {})
    topic = volatile(run, namespace=namespace)
    run.rest("stats of nothing", "GET", path(topic) + "/stats")
    run.rest("create", "PUT", path(topic))
    run.rest("create again", "PUT", path(topic))
    run.rest("list", "GET", f"/admin/v2/non-persistent/{namespace}")
    run.rest("list persistent", "GET", f"/admin/v2/persistent/{namespace}")
    for mode in ("NON_PERSISTENT", "PERSISTENT", "ALL"):
        run.rest(f"namespace topics {mode}", "GET", f"/admin/v2/namespaces/{namespace}/topics?mode={mode}")
    run.rest("namespace topics", "GET", f"/admin/v2/namespaces/{namespace}/topics")
    run.rest("partitions", "GET", path(topic) + "/partitions")
    run.rest("lookup", "GET", "/lookup/v2/topic/" + topic.replace("://", "/"))
    with run.raw() as raw, run.raw() as producer:
        opened(raw, topic)
        producer.open_producer(topic)
        run.rest("delete with clients", "DELETE", path(topic))
        run.rest("delete a subscription with a consumer", "DELETE", path(topic) + "/subscription/sub")
        run.rest("unload", "PUT", path(topic) + "/unload")
        run.step("the consumer is told", raw.replies())
        run.step("the producer is told", producer.replies())
    run.rest("after unload", "GET", f"/admin/v2/non-persistent/{namespace}")
    run.rest("stats after unload", "GET", path(topic) + "/stats")
    with run.raw() as raw:
        opened(raw, topic)
    run.rest("delete with a subscription", "DELETE", path(topic))
    run.rest("after deletion", "GET", f"/admin/v2/non-persistent/{namespace}")
    run.rest("delete again", "DELETE", path(topic))
    with run.raw() as raw:
        opened(raw, topic)
        run.rest("delete by force", "DELETE", path(topic) + "?force=true")
        run.step("the consumer is told of the deletion", raw.replies())


REFUSED = (
    ("POST", "/terminate", ...),
    ("GET", "/lastMessageId", ...),
    ("GET", "/messageid/1000", ...),
    ("GET", "/examinemessage", ...),
    ("GET", "/ledger/0/entry/0", ...),
    ("GET", "/getMessageIdByIndex?index=1", ...),
    ("PUT", "/compaction", ...),
    ("GET", "/compaction", ...),
    ("PUT", "/offload", {"ledgerId": 1, "entryId": 1}),
    ("GET", "/offload", ...),
    ("DELETE", "/truncate", ...),
    ("POST", "/trim", ...),
    ("PUT", "/backlogSize", {"ledgerId": 1, "entryId": 1}),
    ("GET", "/backlog", ...),
    ("GET", "/internal-info", ...),
    ("GET", "/properties", ...),
    ("PUT", "/properties", {"a": "b"}),
    ("GET", "/subscriptions", ...),
    ("PUT", "/subscription/new", ...),
    ("POST", "/subscription/sub/skip/1", ...),
    ("POST", "/subscription/sub/skip_all", ...),
    ("POST", "/subscription/sub/expireMessages/1", ...),
    ("POST", "/all_subscription/expireMessages/1", ...),
    ("POST", "/subscription/sub/resetcursor/1000", ...),
    ("POST", "/subscription/sub/resetcursor", {"ledgerId": 1, "entryId": 1}),
    ("GET", "/subscription/sub/position/1", ...),
    ("GET", "/subscription/sub/properties", ...),
    ("PUT", "/subscription/sub/properties", {"a": "b"}),
    ("POST", "/subscription/sub/analyzeBacklog", ...),
    ("GET", "/subscription/sub/replicatedSubscriptionStatus", ...),
    ("POST", "/subscription/sub/replicatedSubscriptionStatus", True),
    ("DELETE", "/subscription/sub", ...),
    ("GET", "/partitioned-stats", ...),
    ("GET", "/permissions", ...),
    ("GET", "/retention", ...),
    ("POST", "/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    ("POST", "/maxProducers", 3),
    ("GET", "/maxProducers", ...),
)


@scenario
def non_persistent_refusals(run: Run) -> None:
    """Each operation on a topic with a subscription, and on a topic that does not exist."""
    topic = volatile(run)
    with run.raw() as raw:
        opened(raw, topic)
        for method, tail, body in REFUSED:
            run.rest_status(f"{method} {tail}", method, path(topic) + tail, body)
    for method, tail, body in REFUSED:
        run.rest_status(f"missing: {method} {tail}", method, path(volatile(run, "missing")) + tail, body)


@scenario
def non_persistent_stats(run: Run) -> None:
    """The members of stats and internal stats, and what is counted as dropped."""
    topic = volatile(run)
    with run.raw() as producer, run.raw() as raw:
        producer.open_producer(topic, producer_name="p")
        opened(raw, topic, "Shared", permits=2, consumer_name="c")
        opened(raw, topic, "Exclusive", permits=0, consumer_id=2, subscription="other", consumer_name="d")
        producer.publish(1, 5)
        producer.publish_batches(1, 1, 4)
        raw.replies()
        stats = _body(run, topic, "/stats")
        counted = ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize", "backlogSize")
        run.step("members", sorted(stats))
        run.step("counters", {key: stats.get(key) for key in counted})
        run.step("publisher", sorted(stats["publishers"][0]))
        subscription = stats["subscriptions"]["sub"]
        run.step("subscription members", sorted(subscription))
        run.step("consumer members", sorted(subscription["consumers"][0]))
        kept = ("msgOutCounter", "type", "msgBacklog", "isDurable", "msgDropRate", "unackedMessages")
        run.step("subscription", {key: subscription.get(key) for key in kept})
        run.step("the other one", {key: stats["subscriptions"]["other"].get(key) for key in kept})
        run.rest("internal stats", "GET", path(topic) + "/internalStats")


def _body(run: Run, topic: str, tail: str) -> Any:
    status, _, data = run.http("GET", path(topic) + tail, ..., "application/json")
    assert status == 200, data
    return json.loads(data)
