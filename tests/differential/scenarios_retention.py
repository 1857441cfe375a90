"""Retention, expiry and backlog quotas: their REST calls, and what becomes of clients."""

import json
from collections.abc import Callable
from typing import Any

import pulsar
from tests.differential.harness import QUIET_MS, Run, scenario
from tests.differential.scenarios_rest import V2, with_tenant
from tests.support.raw_client import NOTHING, RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

HOLD, FAIL, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
MB = 1024 * 1024
QUOTA_CHECK = f"{V2}/brokers/backlog-quota-check"


class Topic:
    """A topic in a namespace of the run's own, with the paths that lead to both."""

    def __init__(self, run: Run, name: str = "topic") -> None:
        tenant = with_tenant(run)
        self.run = run
        self.name = f"persistent://{tenant}/ns/{name}"
        self.namespace = f"{V2}/namespaces/{tenant}/ns"
        self.path = f"{V2}/persistent/{tenant}/ns/{name}"
        self.missing = f"{V2}/persistent/{tenant}/ns/missing"
        run.http("PUT", self.namespace, ..., "application/json")
        self.client = run.client()

    def publish(self, count: int) -> list[Any]:
        """As a producer whose name, and so the size of whose messages, is the same on every broker."""
        producer = self.client.create_producer(self.name, producer_name="p", batching_enabled=False)
        sent = [producer.send(f"{index:099d}".encode()) for index in range(count)]
        producer.close()
        return sent

    def until(self, label: str, path: str, holds: Callable[[bytes], bool]) -> None:
        """Policies of topics are applied after the call that sets them was answered."""
        self.run.step(label, self.run.wait_until(lambda: holds(self.run.http("GET", path, ..., "")[2])))


def id_of(message_id: Any, **more: Any) -> dict[str, object]:
    return {"ledgerId": message_id.ledger_id(), "entryId": message_id.entry_id(), **more}


@scenario
def rest_retention(run: Run) -> None:
    """Retention of a namespace and of a topic, and every way to get it wrong."""
    topic = Topic(run)
    topic.publish(0)

    def limits(minutes: int, megabytes: int) -> dict[str, int]:
        return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}

    for level, path in (("namespace", f"{topic.namespace}/retention"), ("topic", f"{topic.path}/retention")):
        run.rest(f"{level} unset", "GET", path)
        for minutes, megabytes in ((0, 10), (10, 0), (0, -1), (-1, 0), (-2, 10), (10, -2)):
            run.rest(f"{level} {minutes} {megabytes}", "POST", path, limits(minutes, megabytes))
        run.rest_status(f"{level} no JSON", "POST", path, b"{bad")
        run.rest(f"{level} for ever", "POST", path, limits(-1, -1))
        topic.until(f"{level} for ever is set", path, lambda data: b"-1" in data)
        run.rest(f"{level} by size", "POST", path, limits(-1, 7))
        topic.until(f"{level} by size is set", path, lambda data: b":7" in data)
        run.rest(f"{level} shown", "GET", path)
        run.rest("applied", "GET", f"{topic.path}/retention?applied=true")
    run.rest("topic unset again", "DELETE", f"{topic.path}/retention")
    topic.until("topic is unset", f"{topic.path}/retention", lambda data: not data)
    run.rest("applied to the topic", "GET", f"{topic.path}/retention?applied=true")
    run.rest("namespace unset again", "DELETE", f"{topic.namespace}/retention")
    run.rest("namespace after", "GET", f"{topic.namespace}/retention")
    run.rest("applied by default", "GET", f"{topic.path}/retention?applied=true")
    for method, body in (("GET", ...), ("POST", limits(5, 5)), ("DELETE", ...)):
        run.rest(f"{method} of a missing namespace", method, f"{topic.namespace}-no/retention", body)
        run.rest(f"{method} of a missing topic", method, f"{topic.missing}/retention", body)


@scenario
def rest_message_ttl(run: Run) -> None:
    """The time to live of a namespace and of a topic."""
    topic = Topic(run)
    topic.publish(0)
    namespace, path = f"{topic.namespace}/messageTTL", f"{topic.path}/messageTTL"
    run.rest("unset", "GET", namespace)
    run.rest("unset for the topic", "GET", path)
    run.rest("applied by default", "GET", f"{path}?applied=true")
    run.rest("set", "POST", namespace, 60)
    run.rest("shown", "GET", namespace)
    run.rest("applied from the namespace", "GET", f"{path}?applied=true")
    run.rest("negative", "POST", namespace, -1)
    run.rest_status("no number", "POST", namespace, b'"x"')
    run.rest_status("no body", "POST", namespace)
    run.rest("set for the topic", "POST", f"{path}?messageTTL=30")
    topic.until("is set", path, lambda data: data == b"30")
    run.rest("applied from the topic", "GET", f"{path}?applied=true")
    run.rest("negative for the topic", "POST", f"{path}?messageTTL=-1")
    run.rest_status("no number for the topic", "POST", f"{path}?messageTTL=x")
    run.rest("never for the topic", "POST", f"{path}?messageTTL=0")
    topic.until("is never", path, lambda data: data == b"0")
    run.rest("applied never", "GET", f"{path}?applied=true")
    run.rest("unset the topic's", "DELETE", path)
    topic.until("is unset", path, lambda data: not data)
    run.rest("unset the namespace's", "DELETE", namespace)
    run.rest("after", "GET", namespace)


@scenario
def rest_backlog_quota(run: Run) -> None:
    """Backlog quotas of both types, their defaults, and how they must fit retention."""
    topic = Topic(run)
    topic.publish(0)
    quota: dict[str, object] = {"limitSize": 1000, "limitTime": 60, "policy": HOLD}
    for level, path in (("namespace", topic.namespace), ("topic", topic.path)):
        shown = f"{path}/backlogQuotaMap"
        run.rest(f"{level} unset", "GET", shown)
        run.rest(f"{level} without a policy", "POST", f"{path}/backlogQuota", {"limitSize": 5})
        run.rest(f"{level} with a bad policy", "POST", f"{path}/backlogQuota", {**quota, "policy": "nonsense"})
        bad_type = f"{path}/backlogQuota?backlogQuotaType=nonsense"
        run.rest_status(f"{level} of a bad type", "POST", bad_type, quota)
        run.rest(f"{level} set by size", "POST", f"{path}/backlogQuota", quota)
        topic.until(f"{level} by size is set", shown, lambda data: b"1000" in data)
        by_age = f"{path}/backlogQuota?backlogQuotaType=message_age"
        run.rest(f"{level} set by age", "POST", by_age, {"limitTime": 30, "policy": FAIL})
        topic.until(f"{level} by age is set", shown, lambda data: b"message_age" in data)
        run.rest(f"{level} shown", "GET", shown)
        run.rest(f"{level} by its old name", "POST", f"{path}/backlogQuota", {"limit": 77, "policy": EVICT})
        topic.until(f"{level} by its old name is set", shown, lambda data: b"77" in data)
        run.rest(f"{level} shown again", "GET", shown)
        run.rest("applied", "GET", f"{topic.path}/backlogQuotaMap?applied=true")
    for level, path in (("topic", topic.path), ("namespace", topic.namespace)):
        for kind in ("destination_storage", "message_age"):
            run.rest(f"{level} {kind} unset", "DELETE", f"{path}/backlogQuota?backlogQuotaType={kind}")
            topic.until(f"{level} {kind} is unset", f"{path}/backlogQuotaMap", lambda data: kind.encode() not in data)  # noqa: B023
        run.rest("applied after", "GET", f"{topic.path}/backlogQuotaMap?applied=true")
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    for level, path in (("namespace", topic.namespace), ("topic", topic.path)):
        run.rest(f"{level} retention", "POST", f"{path}/retention", retention)
        topic.until(f"{level} retention is set", f"{path}/retention", bool)
        for size_bytes, seconds in ((10 * MB, 0), (MB, 600), (-1, 601), (10 * MB - 1, 599)):
            body = {"limitSize": size_bytes, "limitTime": seconds, "policy": HOLD}
            run.rest(f"{level} {size_bytes} {seconds}", "POST", f"{path}/backlogQuota", body)
        topic.until(f"{level} quota is set", f"{path}/backlogQuotaMap", lambda data: b"599" in data)
        smaller = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 9}
        run.rest(f"{level} smaller retention", "POST", f"{path}/retention", smaller)
    run.rest("missing namespace", "GET", f"{topic.namespace}-no/backlogQuotaMap")
    run.rest("missing topic", "GET", f"{topic.missing}/backlogQuotaMap")


@scenario
def rest_move_cursor(run: Run) -> None:
    """Skip, expire and reset: what is delivered afterwards, and the bytes that are left."""
    topic = Topic(run)
    topic.client.subscribe(topic.name, "s").close()
    ids = topic.publish(10)
    subscription = f"{topic.path}/subscription/s"

    def delivered(label: str, limit: int) -> None:
        consumer = topic.client.subscribe(topic.name, "s")
        received: list[int] = []
        while len(received) < limit:
            try:
                received.append(int(consumer.receive(QUIET_MS).data()))
            except pulsar.Timeout:
                break
        consumer.close()
        run.step(label, received)

    run.rest("skip none", "POST", f"{subscription}/skip/0")
    run.rest("skip some", "POST", f"{subscription}/skip/3")
    delivered("after the skip", 1)
    run.rest("back to one", "POST", f"{subscription}/resetcursor", id_of(ids[1]))
    delivered("after going back", 2)
    run.rest("excluded", "POST", f"{subscription}/resetcursor", id_of(ids[4], isExcluded=True))
    delivered("after going to one that is excluded", 1)
    run.rest("behind the end", "POST", f"{subscription}/resetcursor", id_of(ids[9]) | {"entryId": 500})
    delivered("behind the end", 1)
    run.rest("to the beginning of time", "POST", f"{subscription}/resetcursor/0")
    delivered("from the beginning", 1)
    run.rest("to the future", "POST", f"{subscription}/resetcursor/9999999999999")
    delivered("from the future", 1)
    run.rest("to the earliest", "POST", f"{subscription}/resetcursor", {"ledgerId": -1, "entryId": -1})
    run.rest("expire up to one", "POST", f"{subscription}/expireMessages", id_of(ids[6]))
    run.wait_until_expired(topic.path, "s", 7)
    delivered("after expiry", 1)
    run.rest("expire what does not exist", "POST", f"{subscription}/expireMessages", {"ledgerId": 1 << 40})
    run.rest("expire what is old", "POST", f"{subscription}/expireMessages/1000")
    run.rest("skip all", "POST", f"{subscription}/skip_all")
    delivered("after skipping all", 1)
    run.rest("expire the read", "POST", f"{subscription}/expireMessages/1")
    run.rest("expire in all", "POST", f"{topic.path}/all_subscription/expireMessages/1")
    for name, message in (("first", ids[0]), ("middle", ids[5]), ("last", ids[9])):
        run.rest(f"bytes behind the {name}", "PUT", f"{topic.path}/backlogSize", id_of(message))
    run.rest("bytes behind the earliest", "PUT", f"{topic.path}/backlogSize", {"ledgerId": -1, "entryId": -1})
    calls = ("skip/1", "skip_all", "expireMessages/1", "resetcursor/1", "skip/x", "resetcursor/x", "expireMessages/x")
    for call in calls:
        run.rest_status(f"{call} of a missing subscription", "POST", f"{topic.path}/subscription/no/{call}")
        run.rest_status(f"{call} of a missing topic", "POST", f"{topic.missing}/subscription/s/{call}")
    run.rest("truncate", "DELETE", f"{topic.path}/truncate")
    run.rest("truncate a missing topic", "DELETE", f"{topic.missing}/truncate")
    run.rest("expire in all of a missing topic", "POST", f"{topic.missing}/all_subscription/expireMessages/1")


@scenario
def rest_clear_backlog(run: Run) -> None:
    """The backlog of all topics of a namespace."""
    topic = Topic(run)
    consumer = topic.client.subscribe(topic.name, "s", receiver_queue_size=1)
    topic.publish(5)
    run.step("before", int(consumer.receive(QUIET_MS).data()))
    consumer.close()
    run.rest("clear", "POST", f"{topic.namespace}/clearBacklog")
    run.rest("clear a missing namespace", "POST", f"{topic.namespace}-no/clearBacklog")
    run.rest("clear a bundle", "POST", f"{topic.namespace}/0x00000000_0x40000000/clearBacklog")
    run.rest("clear no bundle", "POST", f"{topic.namespace}/0x00000000_0x40000001/clearBacklog")
    run.record_messages("after", run.receive_rest(topic.client.subscribe(topic.name, "s")))


@scenario
def terminated_topic(run: Run) -> None:
    """A terminated topic refuses producers, and tells consumers when they have acknowledged everything."""
    topic = Topic(run)
    topic.client.subscribe(topic.name, "s").close()
    ids = topic.publish(3)
    with run.raw() as producing:
        producing.open_producer(topic.name)
        answer = run.rest("terminate", "POST", f"{topic.path}/terminate")
        assert isinstance(answer, dict)
        run.step("the last message", answer["entryId"] == ids[2].entry_id())
        run.step("to the producer", producing.reply())
        run.step("again", producing.open_producer(topic.name, 2))
    run.rest("terminate again", "POST", f"{topic.path}/terminate")
    run.attempt("producer of the client", lambda: topic.client.create_producer(topic.name))
    with run.raw() as consuming:
        consuming.subscribe(topic.name, subscription="s")
        consuming.send(Type.FLOW, consumer_id=1, messagePermits=10)
        received = [consuming.reply() for _ in range(3)]
        run.step("delivered", [each["type"] for each in received])
        last = received[-1]["message_id"]
        position = pb.MessageIdData(ledgerId=int(last["ledgerId"]), entryId=int(last["entryId"]))
        consuming.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=[position])
        run.step("after the last ack", consuming.replies()[:1])  # the reference may say it twice
        consuming.subscribe(topic.name, 2, subscription="s2", initialPosition=pb.CommandSubscribe.Latest)
        consuming.send(Type.FLOW, consumer_id=2, messagePermits=10)
        run.step("a new one that has read all", consuming.replies())
    run.rest("terminate a missing topic", "POST", f"{topic.missing}/terminate")
    run.rest_status(
        "terminate a non-persistent topic", "POST", topic.path.replace("/persistent", "/non-persistent") + "/terminate"
    )
    run.rest("go back", "POST", f"{topic.path}/subscription/s/resetcursor", {"ledgerId": -1, "entryId": -1})
    run.record_messages("read again", run.receive(topic.client.subscribe(topic.name, "s"), 3))


def _blocked(run: Run, policy: str) -> None:
    topic = Topic(run)
    quota = {"limitSize": 1000, "policy": policy}
    run.rest("set", "POST", f"{topic.namespace}/backlogQuota", quota)
    topic.client.subscribe(topic.name, "s").close()
    topic.publish(20)
    with run.raw() as client:
        run.step("while it is too large", client.open_producer(topic.name))
        run.rest("allow more", "POST", f"{topic.namespace}/backlogQuota", {**quota, "limitSize": 10_000})
        run.step("while it is not", _admitted(client, topic.name))
        run.rest("allow less", "POST", f"{topic.namespace}/backlogQuota", quota)
        run.rest("check", "GET", QUOTA_CHECK)
        run.step("to the connected producer", _checked_until_told(run, client))
        run.step("again", client.open_producer(topic.name, 2)["error"])
        run.rest("read all", "POST", f"{topic.path}/subscription/s/skip_all")
        run.step("drained", client.open_producer(topic.name, 3)["type"])


def _admitted(client: RawClient, topic: str) -> bool:
    """A namespace's policies reach its topics a moment after they were set."""
    replies = (client.open_producer(topic, producer_id) for producer_id in range(10, 30))
    return any(reply["type"] == "PRODUCER_SUCCESS" for reply in replies)


def _checked_until_told(run: Run, client: RawClient) -> str:
    """What the connected producer hears of a check that knows the new limit."""
    for _ in range(10):
        if (told := client.reply(QUIET_MS / 1000)) != NOTHING:
            return str(told["type"])
        run.http("GET", QUOTA_CHECK, ..., "")
    return str(NOTHING["type"])


@scenario
def quota_holds_producers(run: Run) -> None:
    """A backlog that is too large keeps producers waiting."""
    _blocked(run, HOLD)


@scenario
def quota_fails_producers(run: Run) -> None:
    """A backlog that is too large fails producers."""
    _blocked(run, FAIL)


@scenario
def quota_evicts(run: Run) -> None:
    """A backlog that is too large loses its oldest messages; producers go on."""
    topic = Topic(run)
    run.rest("set", "POST", f"{topic.namespace}/backlogQuota", {"limitSize": 1000, "policy": EVICT})
    for name in ("s", "r"):
        topic.client.subscribe(topic.name, name).close()
    topic.publish(20)
    run.rest("check", "GET", QUOTA_CHECK)

    def is_evicted() -> bool:
        """The reference evicts after it has answered."""
        return bool(json.loads(run.http("GET", f"{topic.path}/stats", ..., "")[2])["backlogSize"] <= 1000)

    assert run.wait_until(is_evicted)
    for name in ("s", "r"):
        messages = run.receive_rest(topic.client.subscribe(topic.name, name))
        run.step(f"left of {name}", [int(each.data()) for each in messages])
    run.attempt("a producer", lambda: topic.client.create_producer(topic.name))
