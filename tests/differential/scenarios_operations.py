"""Operations on topics and subscriptions by REST: statuses, headers and bodies, on single and on partitioned topics."""

import json
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario

from pybroker.wire import pulsar_api_pb2 as pb

V2 = "/admin/v2"
EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
BEYOND = {"ledgerId": 2**40, "entryId": 0}
TIMES = ("X-Pulsar-publish-time",)


def path_of(topic: str) -> str:
    return f"{V2}/{topic.replace('://', '/')}"


def pair(key: str, value: str) -> pb.KeyValue:
    return pb.KeyValue(key=key, value=value)


def show(run: Run, label: str, path: str) -> str:
    """Record a message that REST shows: its headers and its body; the id."""
    status, headers, body = run.http("GET", path, ..., "application/json")
    shown: dict[str, Any] = {"status": status}
    found = ""
    if status == 200:
        found = headers["X-Pulsar-Message-ID"]
        ledger_id, entry_id = map(int, found.split(":"))
        shown["id"] = {"ledgerId": ledger_id, "entryId": entry_id}
        shown["body"] = body.hex()
        shown["properties"] = json.loads(headers["X-Pulsar-PROPERTY"])
        for name in sorted({name for name in headers if name.startswith("X-Pulsar-")} - {"X-Pulsar-Message-ID"}):
            if name not in ("X-Pulsar-PROPERTY", *TIMES):
                shown[name] = sorted(headers.get_all(name))
    run.step(label, shown)
    return found


def published(run: Run, topic: str, count: int, **options: Any) -> list[pulsar.MessageId]:
    producer = run.client().create_producer(topic, batching_enabled=False, **options)
    return [producer.send(b"m%d" % number, properties={"n": str(number)}) for number in range(count)]


def id_of(message_id: pulsar.MessageId) -> dict[str, int]:
    return {"ledgerId": message_id.ledger_id(), "entryId": message_id.entry_id()}


def next_one(run: Run, label: str, path: str) -> None:
    show(run, f"next after {label}", f"{path}/position/1")


@scenario
def rest_message_headers(run: Run) -> None:
    """Every field of a message's metadata in the headers of a peek, payloads opened."""
    topic = run.topic()
    run.rest("subscribe", "PUT", f"{path_of(topic)}/subscription/s", EARLIEST)
    keys = [
        pb.EncryptionKeys(key="k", value=b"\1\2", metadata=[pair("m", "n")]),
        pb.EncryptionKeys(key="k2", value=b""),
    ]
    fields: list[dict[str, Any]] = [
        {},
        {
            "properties": [pair("a", "1"), pair("a", "2"), pair('q"\\', "v\r\nX: 1")],
            "event_time": 5,
            "null_value": True,
        },
        {"partition_key": "kü\r\nX: 2", "partition_key_b64_encoded": True, "ordering_key": b"\xff\0"},
        {"replicated_from": "c0", "schema_version": b"\0\0\0\1", "highest_sequence_id": 7, "null_partition_key": True},
        {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 9, "chunk_id": 1, "uncompressed_size": 7},
        {"compression": pb.NONE, "uncompressed_size": 7, "event_time": 2**63 + 5, "deliver_at_time": 253402300800000},
        {"encryption_keys": keys, "encryption_algo": "AES", "encryption_param": b"\x09\x08", "compression": pb.ZLIB},
    ]
    with run.raw() as raw:
        raw.open_producer(topic)
        for number, each in enumerate(fields):
            raw.send_message(1, number, metadata=each)
            raw.reply()
        raw.send_message(1, 100, batch=[b"one", b"two"], num_messages=2)
        raw.reply()
    for number in range(1, len(fields) + 3):
        show(run, f"message {number}", f"{path_of(topic)}/subscription/s/position/{number}")


@scenario
def rest_compressed_messages(run: Run) -> None:
    """Payloads that the client compressed are shown as they were, batches whole."""
    topic = run.topic()
    client = run.client()
    kinds = pulsar.CompressionType
    run.rest("subscribe", "PUT", f"{path_of(topic)}/subscription/s", EARLIEST)
    for kind in (kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY):
        single = client.create_producer(topic, compression_type=kind, batching_enabled=False)
        single.send(b"payload " * 20, partition_key="k", properties={"a": "b"})
        batched = client.create_producer(topic, compression_type=kind, batching_enabled=True)
        for number in range(3):
            batched.send_async(b"payload %d " % number * 9, None, properties={"n": str(number)})
        batched.flush()
    for number in range(1, 9):
        status, headers, body = run.http(
            "GET", f"{path_of(topic)}/subscription/s/position/{number}", ..., "application/json"
        )
        kept = ("X-Pulsar-compression", "X-Pulsar-num-batch-message", "X-Pulsar-uncompressed-size", "X-Pulsar-PROPERTY")
        shown = {name: headers[name] for name in kept}
        # The time of sending is in the metadata of each message of a batch: of these only the size is compared.
        run.step(f"message {number}", [status, shown, len(body), body.count(b"payload")])


@scenario
def rest_peek(run: Run) -> None:
    """Messages by their place in a backlog, with holes."""
    topic = run.topic()
    consumer = run.client().subscribe(topic, "s", pulsar.ConsumerType.Shared)
    published(run, topic, 5)
    for message in run.receive(consumer, 5):
        if message.data() in (b"m1", b"m3"):
            consumer.acknowledge(message)
    path = f"{path_of(topic)}/subscription"
    run.wait_until(lambda: b"m2" in run.http("GET", f"{path}/s/position/2", ..., "application/json")[2])
    for number in (1, 2, 3, 4, "x"):
        show(run, f"peek {number}", f"{path}/s/position/{number}")
    show(run, "by a subscription that is not there", f"{path}/other/position/2")
    show(run, "of a missing topic", f"{path_of(topic)}-no/subscription/s/position/1")


@scenario
def rest_examine(run: Run) -> None:
    """Messages by their place in a topic, and by id."""
    topic = run.topic()
    path = path_of(topic)
    run.rest("create", "PUT", path)
    run.rest("subscribe", "PUT", f"{path}/subscription/s", EARLIEST)
    show(run, "an empty topic", f"{path}/examinemessage")
    ids = published(run, topic, 4)
    for query in (
        "",
        "?initialPosition=earliest",
        "?initialPosition=earliest&messagePosition=3",
        "?initialPosition=earliest&messagePosition=9",
        "?initialPosition=latest&messagePosition=2",
        "?initialPosition=latest&messagePosition=4",
        "?messagePosition=0",
        "?messagePosition=-1",
        "?initialPosition=EARLIEST",
    ):
        show(run, f"examine {query}", f"{path}/examinemessage{query}")
    show(run, "a missing topic", f"{path}-no/examinemessage")
    for message_id in ids:
        show(run, "by id", f"{path}/ledger/{message_id.ledger_id()}/entry/{message_id.entry_id()}")
    show(run, "of a missing ledger", f"{path}/ledger/{2**40}/entry/0")
    show(run, "no number", f"{path}/ledger/x/entry/0")


@scenario
def rest_message_ids(run: Run) -> None:
    """Message ids by time, by index, and the last one."""
    topic = run.topic()
    path = path_of(topic)
    for call in ("messageid/0", "lastMessageId", "getMessageIdByIndex?index=0"):
        run.rest(f"{call} of a missing topic", "GET", f"{path}/{call}")
    run.rest("create", "PUT", path)
    run.rest("subscribe", "PUT", f"{path}/subscription/s", EARLIEST)
    consumer = run.client().subscribe(topic, "s")
    run.rest("by time, empty", "GET", f"{path}/messageid/9999999999999")
    run.rest("last, empty", "GET", f"{path}/lastMessageId")
    published(run, topic, 2)
    published(run, topic, 2)
    times = [message.publish_timestamp() for message in run.receive(consumer, 4)]
    for label, time_ms in (
        ("0", 0),
        ("1", 1),
        ("of the first", times[0]),
        ("of the last", times[3]),
        ("behind", times[3] + 1),
    ):
        run.rest(f"by time {label}", "GET", f"{path}/messageid/{time_ms}")
    run.rest_status("by no time", "GET", f"{path}/messageid/x")
    run.rest("last", "GET", f"{path}/lastMessageId")
    batched = run.client().create_producer(topic, batching_enabled=True)
    for _ in range(3):
        batched.send_async(b"b", None)
    batched.flush()
    run.rest("last in a batch", "GET", f"{path}/lastMessageId")
    run.rest("by index", "GET", f"{path}/getMessageIdByIndex?index=0")


@scenario
def rest_cursor_moves(run: Run) -> None:
    """Skip, expire and reset, by count, by time, by position."""
    topic = run.topic()
    path = f"{path_of(topic)}/subscription/s"
    run.rest("subscribe", "PUT", path, EARLIEST)
    ids = published(run, topic, 6)
    for call in ("skip/2", "skip/0", "skip/-1", "skip/x", "skip/99", "resetcursor/0", "skip_all", "resetcursor/-1"):
        run.rest_status(call, "POST", f"{path}/{call}")
        next_one(run, call, path)
    for label, body in (
        ("the second", id_of(ids[1])),
        ("beyond", BEYOND),
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("before the first", {"ledgerId": ids[0].ledger_id(), "entryId": -1}),
    ):
        run.rest(f"reset to {label}", "POST", f"{path}/resetcursor", body)
        next_one(run, f"reset to {label}", path)
    for label, body in (
        ("the second", id_of(ids[1])),
        ("the first", id_of(ids[0])),
        ("beyond", BEYOND),
        ("latest", LATEST),
    ):
        run.rest(f"expire to {label}", "POST", f"{path}/expireMessages", body)
        run.wait_until_expired(path_of(topic), "s", 2)
        next_one(run, f"expire to {label}", path)
    for call in ("skip/1", "skip_all", "resetcursor/0", "expireMessages/1"):
        run.rest(f"{call} of a missing subscription", "POST", f"{path_of(topic)}/subscription/no/{call}")
        run.rest(f"{call} of a missing topic", "POST", f"{path_of(topic)}-no/subscription/s/{call}")
    run.rest("reset a missing subscription", "POST", f"{path_of(topic)}/subscription/no/resetcursor", EARLIEST)


@scenario
def rest_analyze_backlog(run: Run) -> None:
    """What a backlog is made of, with holes and a batch."""
    topic = run.topic()
    client = run.client()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    ids = published(run, topic, 5)
    batched = client.create_producer(topic, batching_enabled=True)
    for _ in range(3):
        batched.send_async(b"b", None)
    batched.flush()
    for message in run.receive(consumer, 8):
        if message.data() in (b"m0", b"m2"):
            consumer.acknowledge(message)
    path = f"{path_of(topic)}/subscription/s"
    run.wait_until(lambda: b"m3" in run.http("GET", f"{path}/position/2", ..., "application/json")[2])
    for label, body in (
        ("all", ...),
        ("null", None),
        ("from earliest", EARLIEST),
        ("from the second", id_of(ids[1])),
        ("from a hole", id_of(ids[2])),
        ("beyond", BEYOND),
    ):
        status, _, data = run.http("POST", f"{path}/analyzeBacklog", body, "application/json")
        found = json.loads(data)
        for key in ("firstMessageId", "lastMessageId"):
            if key in found:
                ledger_id, entry_id = map(int, found[key].split(":"))
                found[key] = {"ledgerId": ledger_id, "entryId": entry_id}
        run.step(label, [status, found])
    run.rest("of a missing subscription", "POST", f"{path_of(topic)}/subscription/no/analyzeBacklog")


@scenario
def rest_replicated_subscription(run: Run) -> None:
    """The mark that a subscription is replicated."""
    topic = run.topic()
    path = f"{path_of(topic)}/subscription/s/replicatedSubscriptionStatus"
    run.rest("of a missing topic", "GET", path)
    run.rest("subscribe", "PUT", f"{path_of(topic)}/subscription/s?replicated=true")
    run.rest("at first", "GET", path)
    run.rest("off", "POST", path, False)
    run.rest("then", "GET", path)
    run.rest("on", "POST", path, True)
    run.rest("unload", "PUT", f"{path_of(topic)}/unload")
    run.rest("still", "GET", path)
    run.rest("properties", "GET", f"{path_of(topic)}/subscription/s/properties")
    run.rest("of a missing subscription", "GET", path.replace("/s/", "/no/"))


@scenario
def rest_topic_life(run: Run) -> None:
    """Unload, trim, truncate, terminate, and what goes on after that."""
    topic = run.topic()
    path = path_of(topic)
    for method, call in (("PUT", "unload"), ("POST", "trim"), ("DELETE", "truncate"), ("POST", "terminate")):
        run.rest(f"{call} a missing topic", method, f"{path}/{call}")
    run.rest("subscribe", "PUT", f"{path}/subscription/s", EARLIEST)
    published(run, topic, 3)
    run.rest("unload", "PUT", f"{path}/unload")
    run.rest("unload again", "PUT", f"{path}/unload")
    next_one(run, "unload", f"{path}/subscription/s")
    run.rest("trim", "POST", f"{path}/trim")
    run.rest("terminate partitions", "POST", f"{path}/terminate/partitions")
    run.rest("terminate", "POST", f"{path}/terminate")
    run.rest("terminate again", "POST", f"{path}/terminate")
    run.attempt("produce", lambda: run.client().create_producer(topic))
    run.rest("subscribe to a terminated topic", "PUT", f"{path}/subscription/t", EARLIEST)
    next_one(run, "termination", f"{path}/subscription/t")
    run.rest("skip", "POST", f"{path}/subscription/t/skip/1")
    run.rest("reset", "POST", f"{path}/subscription/t/resetcursor/0")
    run.rest("unload a terminated topic", "PUT", f"{path}/unload")
    run.rest("last", "GET", f"{path}/lastMessageId")
    run.rest("skip all", "POST", f"{path}/subscription/t/skip_all")
    run.rest("unsubscribe", "DELETE", f"{path}/subscription/t")
    run.rest("subscriptions", "GET", f"{path}/subscriptions")


@scenario
def rest_offload(run: Run) -> None:
    """Offload without tiered storage, compaction that was never asked for."""
    topic = run.topic()
    path = path_of(topic)
    for call in ("compaction", "offload"):
        run.rest(f"{call} of a missing topic", "GET", f"{path}/{call}")
    run.rest("create", "PUT", path)
    run.rest("compaction", "GET", f"{path}/compaction")
    run.rest("offload", "GET", f"{path}/offload")
    run.rest("start without an id", "PUT", f"{path}/offload")
    run.rest("start", "PUT", f"{path}/offload", EARLIEST)

    def status() -> Any:
        return json.loads(run.http("GET", f"{path}/offload", ..., "application/json")[2])["status"]

    run.wait_until(lambda: status() == "ERROR")
    run.step("then", status())


@scenario
def rest_partitioned_operations(run: Run) -> None:
    """Every operation on the name of a partitioned topic: on all partitions, or refused."""
    topic = run.topic()
    path = path_of(topic)
    run.rest("create", "PUT", f"{path}/partitions", 3)
    run.rest("subscribe", "PUT", f"{path}/subscription/s", {**EARLIEST, "properties": {"a": "b"}})
    run.rest("subscribe again", "PUT", f"{path}/subscription/s", EARLIEST)
    run.rest("subscriptions", "GET", f"{path}/subscriptions")
    published(run, topic, 6)
    body_calls = ("backlogSize", "offload", "subscription/s/resetcursor", "subscription/s/expireMessages")
    for method, call in (
        ("GET", "lastMessageId"),
        ("GET", "messageid/0"),
        ("GET", "getMessageIdByIndex?index=0"),
        ("GET", "compaction"),
        ("GET", "offload"),
        ("PUT", "offload"),
        ("PUT", "backlogSize"),
        ("GET", "examinemessage"),
        ("GET", "ledger/1/entry/1"),
        ("GET", "internalStats"),
        ("GET", "subscription/s/position/1"),
        ("POST", "subscription/s/analyzeBacklog"),
        ("POST", "subscription/s/skip/1"),
        ("POST", "subscription/s/resetcursor"),
        ("POST", "subscription/s/expireMessages"),
        ("POST", "terminate"),
        ("GET", "subscription/s/replicatedSubscriptionStatus"),
        ("GET", "subscription/s/properties"),
        ("POST", "subscription/s/skip_all"),
        ("POST", "subscription/s/resetcursor/0"),
        ("POST", "subscription/no/skip_all"),
        ("POST", "subscription/no/resetcursor/0"),
        ("POST", "subscription/no/expireMessages/1"),
        ("GET", "subscription/no/properties"),
        ("DELETE", "subscription/no"),
        ("POST", "trim"),
        ("PUT", "unload"),
    ):
        run.rest(f"{method} {call}", method, f"{path}/{call}", EARLIEST if call in body_calls else ...)
    run.rest("unsubscribe on one partition", "DELETE", f"{path}-partition-1/subscription/s")
    run.rest("skip all, one is missing", "POST", f"{path}/subscription/s/skip_all")
    run.rest("properties, one is missing", "GET", f"{path}/subscription/s/properties")
    run.rest("subscribe, one is missing", "PUT", f"{path}/subscription/s", EARLIEST)
    run.rest("unsubscribe", "DELETE", f"{path}/subscription/s")
    run.rest("unsubscribe again", "DELETE", f"{path}/subscription/s")
    run.rest("truncate", "DELETE", f"{path}/truncate")
    ended = run.http("POST", f"{path}/terminate/partitions", ..., "application/json")
    run.step("terminate partitions", [ended[0], sorted(json.loads(ended[2]))])


@scenario
def rest_unsubscribe_namespace(run: Run) -> None:
    """Subscriptions of one name in a whole namespace or bundle."""
    tenant = run.tenant()
    run.http("PUT", f"{V2}/tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone"]}, "application/json")
    base = f"{V2}/namespaces/{tenant}/ns"
    run.rest("in a missing namespace", "POST", f"{base}/unsubscribe/s")
    run.rest("create", "PUT", base, {"bundles": {"numBundles": 1}})
    topics = [run.topic(name, f"{tenant}/ns") for name in ("a", "b")]
    for topic in topics:
        run.rest("subscribe", "PUT", f"{path_of(topic)}/subscription/s")
        run.rest("subscribe another", "PUT", f"{path_of(topic)}/subscription/t")
    run.rest("none", "POST", f"{base}/unsubscribe/none")
    run.rest("in a bundle that is none", "POST", f"{base}/0x00000000_0x10000000/unsubscribe/s")
    run.rest("in the bundle", "POST", f"{base}/0x00000000_0xffffffff/unsubscribe/s")
    consumer = run.client().subscribe(topics[0], "t")
    run.rest("with a consumer", "POST", f"{base}/unsubscribe/t")
    consumer.close()
    run.rest("without", "POST", f"{base}/unsubscribe/t")
    for topic in topics:
        run.rest("left", "GET", f"{path_of(topic)}/subscriptions")
