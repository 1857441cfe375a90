"""Lists of topics by pattern, watchers of them, and the topics that brokers keep for themselves."""

from typing import Any

from tests.differential.harness import Run, scenario
from tests.support.raw_client import RawClient, Type

from pybroker.model.topic_patterns import topics_hash
from pybroker.wire import pulsar_api_pb2 as pb

V2 = "/admin/v2"
Mode = pb.CommandGetTopicsOfNamespace
SNAPSHOT = "__transaction_buffer_snapshot"


def namespace_of(run: Run, *topics: str) -> str:
    """A namespace of the run's own with these topics; its name."""
    namespace = f"public/{run.token}"
    run.http("PUT", f"{V2}/namespaces/{namespace}", ..., "application/json")
    make(run, namespace, *topics)
    return namespace


def make(run: Run, namespace: str, *topics: str) -> None:
    for topic in topics:
        run.http("PUT", f"{V2}/persistent/{namespace}/{topic}", ..., "application/json")


def drop(run: Run, namespace: str, *topics: str) -> None:
    for topic in topics:
        run.http("DELETE", f"{V2}/persistent/{namespace}/{topic}", ..., "application/json")


def compared(reply: dict[str, Any], names_field: str) -> dict[str, Any]:
    """A reply whose hash, which depends on the run's token, is replaced by whether it is that of the names beside it."""
    names = sorted(reply.get(names_field, []))
    found = {**reply, names_field: names}
    if "topics_hash" in reply:
        found["topics_hash"] = "of the names" if reply["topics_hash"] == topics_hash(names) else "another"
    return found


@scenario
def topic_list_patterns(run: Run) -> None:
    """Which names a pattern selects, and when the broker leaves that to the client."""
    namespace = namespace_of(run, "foo-a", "foo-b", "bar", "a.b", "a$b", SNAPSHOT)
    run.http("PUT", f"{V2}/persistent/{namespace}/part/partitions", 2, "application/json")
    patterns = {
        "full": f"persistent://{namespace}/foo.*",
        "without domain": f"{namespace}/foo.*",
        "other domain": f"non-persistent://{namespace}/foo.*",
        "anchored": f"^persistent://{namespace}/foo.*$",
        "anywhere": ".*foo.*",
        "local name alone": "foo.*",
        "part of a name": f"persistent://{namespace}/fo",
        "other case": f"persistent://{namespace}/FOO.*",
        "any case": f"(?i)persistent://{namespace}/FOO.*",
        "quoted": rf"persistent://{namespace}/\Qa.b\E",
        "named group": f"persistent://{namespace}/(?<x>foo).*",
        "partitioned": f"persistent://{namespace}/part",
        "one partition": f"persistent://{namespace}/part-partition-0",
        "underscores": f"persistent://{namespace}/__.*",
        "other namespace": "persistent://other/ns/.*",
        "empty": "",
        "too long": f"persistent://{namespace}/{'f' * 60}",
        "no pattern": "(",
        "no domain": f"://{namespace}/foo.*",
    }
    with run.raw() as raw:
        for label, pattern in patterns.items():
            reply = raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace, topics_pattern=pattern)
            run.step(label, compared(reply, "topics"))


@scenario
def topic_list_modes(run: Run) -> None:
    """Lists by domain and by hash; of namespaces that are missing or none."""
    namespace = namespace_of(run, "foo", "bar", SNAPSHOT)
    with run.raw() as raw:
        for name, mode in (("persistent", Mode.PERSISTENT), ("non-persistent", Mode.NON_PERSISTENT), ("all", Mode.ALL)):
            reply = raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace, mode=mode)
            run.step(name, compared(reply, "topics"))
        known = raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace)["topics_hash"]
        reply = raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace, topics_hash=known)
        run.step("known", {**reply, "topics_hash": reply["topics_hash"] == known})
        missing = raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=f"public/{run.token}-missing")
        run.step("missing namespace", missing)
        run.step("no namespace", raw.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="public"))


def watch(run: Run, raw: RawClient, label: str, watcher_id: int, **fields: Any) -> dict[str, Any]:
    reply = raw.request(Type.WATCH_TOPIC_LIST, watcher_id=watcher_id, **fields)
    run.step(label, compared(reply, "topic"))
    return reply


def record_updates(run: Run, raw: RawClient, label: str) -> None:
    """What has come and gone in the end: brokers may tell many changes at once or one by one."""
    told: dict[tuple[str, str], bool] = {}
    others = []
    for reply in raw.replies():
        if reply["type"] != "WATCH_TOPIC_UPDATE":
            others.append(reply)
        for name in reply.get("new_topics", []):
            told[reply["watcher_id"], name] = True
        for name in reply.get("deleted_topics", []):
            told[reply["watcher_id"], name] = False
    run.step(label, [sorted([*key, "new" if is_new else "deleted"] for key, is_new in told.items()), others])


@scenario
def topic_list_watchers(run: Run) -> None:
    """The life of watchers: first list, changes, an id that is used again, closing, a namespace that goes and comes."""
    namespace = namespace_of(run, "foo-a", "bar")
    pattern = f"persistent://{namespace}/foo.*"
    with run.raw() as raw:
        first = watch(run, raw, "first", 1, namespace=namespace, topics_pattern=pattern)
        known = raw.request(
            Type.WATCH_TOPIC_LIST,
            watcher_id=2,
            namespace=namespace,
            topics_pattern=pattern,
            topics_hash=first["topics_hash"],
        )
        run.step("known", {**known, "topics_hash": known["topics_hash"] == first["topics_hash"]})
        run.step("close the second", raw.request(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=2))
        make(run, namespace, "foo-b", "baz", SNAPSHOT)
        record_updates(run, raw, "made")
        run.http("PUT", f"{V2}/persistent/{namespace}/foo-part/partitions", 2, "application/json")
        record_updates(run, raw, "made in partitions")
        run.http("POST", f"{V2}/persistent/{namespace}/foo-part/partitions", 3, "application/json")
        record_updates(run, raw, "more partitions")
        run.http("DELETE", f"{V2}/persistent/{namespace}/foo-part/partitions", ..., "application/json")
        drop(run, namespace, "foo-b")
        record_updates(run, raw, "deleted")
        watch(run, raw, "id in use", 1, namespace=namespace, topics_pattern=f"persistent://{namespace}/ba.*")
        make(run, namespace, "foo-c", "bax")
        record_updates(run, raw, "made after that")
        drop(run, namespace, "foo-a", "foo-c", "bar", "baz", "bax", SNAPSHOT)
        run.rest_status("delete the namespace", "DELETE", f"{V2}/namespaces/{namespace}")
        record_updates(run, raw, "namespace deleted")
        run.rest_status("make it again", "PUT", f"{V2}/namespaces/{namespace}")
        make(run, namespace, "foo-z")
        record_updates(run, raw, "namespace made again")
        for label in ("close", "close again"):
            run.step(label, raw.request(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=1))
        make(run, namespace, "foo-y")
        record_updates(run, raw, "closed")


@scenario
def topic_list_watchers_refused(run: Run) -> None:
    """What cannot be watched."""
    namespace = namespace_of(run, "foo-a")
    with run.raw() as raw:
        watch(run, raw, "too long", 1, namespace=namespace, topics_pattern="f" * 60)
        watch(run, raw, "no pattern", 2, namespace=namespace, topics_pattern="(")
        watch(run, raw, "missing namespace", 3, namespace=f"public/{run.token}-missing", topics_pattern=".*")
        watch(run, raw, "no namespace", 4, namespace="nonsense", topics_pattern=".*")


@scenario
def system_topic_names(run: Run) -> None:
    """What cannot be made by REST or by clients, and what is hidden."""
    namespace = namespace_of(run)
    internal = f"{namespace}/t-sub__transaction_pending_ack"
    for label, path in {
        "pending acks": f"persistent/{internal}",
        "pending acks, non-persistent": f"non-persistent/{internal}",
        "transaction log": f"persistent/pulsar/system/__transaction_log_{run.token}",
        "coordinators": "persistent/pulsar/system/transaction_coordinator_assign",
        "snapshots": f"persistent/{namespace}/{SNAPSHOT}",
        "like snapshots": f"persistent/{namespace}/{SNAPSHOT}_x",
        "health check elsewhere": f"persistent/{namespace}/healthcheck",
    }.items():
        run.rest(label, "PUT", f"{V2}/{path}")
    run.rest("pending acks in partitions", "PUT", f"{V2}/persistent/{internal}/partitions", 2)
    run.rest("list", "GET", f"{V2}/persistent/{namespace}")
    run.rest("list of the namespace", "GET", f"{V2}/namespaces/{namespace}/topics")
    with run.raw() as raw:
        run.step("produce", raw.open_producer(f"persistent://{internal}"))
        run.step("subscribe", raw.subscribe(f"persistent://{internal}"))


@scenario
def system_topic_change_events(run: Run) -> None:
    """What a change of a topic's policies leaves behind for those who look on."""
    namespace = namespace_of(run, "t", "u")
    path = f"{V2}/persistent/{namespace}/t"
    run.rest_status("retention", "POST", f"{path}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7})
    run.rest_status("time to live", "POST", f"{path}/messageTTL?messageTTL=77")
    rate = {
        "dispatchThrottlingRateInMsg": 10,
        "dispatchThrottlingRateInByte": 20,
        "relativeToPublishRate": True,
        "ratePeriodInSecond": 2,
    }
    run.rest_status("dispatch rate", "POST", f"{path}/dispatchRate", rate)
    quota = {"limitSize": 100, "limitTime": -1, "policy": "producer_exception"}
    run.rest_status("quota", "POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota)
    run.rest_status("no retention", "DELETE", f"{path}/retention")
    run.rest_status("delete", "DELETE", path)
    run.rest_status("delete one without policies", "DELETE", f"{V2}/persistent/{namespace}/u")
    with run.raw() as raw:
        raw.subscribe(f"persistent://{namespace}/__change_events")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("events", raw.replies())
