"""Limits that policies set: who is refused, with which error, what is left behind, and what a change does to who is there."""

import time
from typing import Any

from tests.differential.harness import Run, scenario
from tests.support.raw_client import RawClient, Type

from pybroker.wire import pulsar_api_pb2 as pb

KEYS = [pb.EncryptionKeys(key="k", value=b"v")]
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


def outcome(reply: dict[str, Any]) -> str:
    """How a request ended; texts are each broker's own."""
    return str(reply.get("error") or reply["type"])


def outcomes(replies: list[dict[str, Any]]) -> list[str]:
    return sorted(
        f"{reply.get('producer_id', '')} {reply.get('sequence_id', '')} {outcome(reply)}" for reply in replies
    )


class Place:
    """A namespace of the run's own, with a topic."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.namespace = f"public/{run.token}"
        self.path = f"/admin/v2/persistent/{self.namespace}/topic"
        self.topic = f"persistent://{self.namespace}/topic"
        self._policies_set = 0
        run.rest_status("make the namespace", "PUT", f"/admin/v2/namespaces/{self.namespace}")
        run.rest_status("make the topic", "PUT", self.path)

    def set(self, policy: str, body: object) -> None:
        self._run.rest_status(f"set {policy} to {body}", "POST", f"{self.path}/{policy}", body)
        self._await_policies(self.path, "destination_storage", "Size")

    def set_namespace(self, policy: str, body: object) -> None:
        path = f"/admin/v2/namespaces/{self.namespace}/{policy}"
        self._run.rest_status(f"set {policy} of the namespace to {body}", "POST", path, body)
        self._await_policies(f"/admin/v2/namespaces/{self.namespace}", "message_age", "Time")

    def _await_policies(self, path: str, quota: str, limit: str) -> None:
        """Wait until what was set is in force at the topic, which takes the reference a while.

        A topic takes changes in the order in which they were made: behind this one is a backlog quota, far too large to
        be reached, that the topic's stats show once it is in force.
        """
        self._policies_set += 1
        far_s_or_bytes = 2_000_000_000 + self._policies_set
        quota_path = f"{path}/backlogQuota?backlogQuotaType={quota}"
        policy = {f"limit{limit}": far_s_or_bytes, "policy": "producer_request_hold"}
        assert self._run.http("POST", quota_path, policy, "application/json")[0] == 204
        shown = f'"backlogQuotaLimit{limit}":{far_s_or_bytes}'.encode()
        stats = f"{self.path}/stats"
        assert self._run.wait_until(lambda: shown in self._run.http("GET", stats, ..., "application/json")[2])


@scenario
def limits_of_counts(run: Run) -> None:
    """Most producers, consumers and subscriptions: at the topic, over the namespace's, lowered with clients there."""
    place = Place(run)
    place.set_namespace("maxProducersPerTopic", 1)
    with run.raw() as raw:
        run.step("first producer", outcome(raw.open_producer(place.topic, 1)))
        run.step("second producer", outcome(raw.open_producer(place.topic, 2)))
        place.set("maxProducers", 0)
        run.step("no limit at the topic", outcome(raw.open_producer(place.topic, 3)))
        for policy in ("maxProducers", "maxConsumersPerSubscription"):
            place.set(policy, 1)
        run.step("lowered", outcomes(raw.replies()))
        run.step("another producer", outcome(raw.open_producer(place.topic, 4)))
        for consumer_id, kind in enumerate(TYPES):
            for each in (0, 1):
                reply = raw.subscribe(place.topic, 10 * consumer_id + each, kind, subscription=kind)
                run.step(f"consumer {each} of {kind}", outcome(reply))
        with run.raw() as other:  # the first one is told which of its consumers are active
            place.set("maxConsumers", 4)
            run.step("one more consumer", outcome(other.subscribe(place.topic, 1, "Shared", subscription="more")))
            record_subscriptions(run, place)
            place.set("maxConsumers", 10)
            place.set("maxSubscriptionsPerTopic", 4)
            run.step("one more subscription", outcome(other.subscribe(place.topic, 2, "Shared", subscription="more")))
            reader = other.subscribe(place.topic, 3, "Exclusive", subscription="reader", durable=False)
            run.step("a reader", outcome(reader))
            run.rest_status("one more by REST", "PUT", f"{place.path}/subscription/more")


def record_subscriptions(run: Run, place: Place) -> None:
    found = run.rest_status("ask for subscriptions", "GET", f"{place.path}/subscriptions")
    assert isinstance(found, list)
    run.step("subscriptions", sorted(str(each) for each in found))


@scenario
def limits_of_types(run: Run) -> None:
    """Subscription types that are not enabled: newcomers are refused, consumers that are there stay."""
    place = Place(run)
    with run.raw() as raw:
        run.step("before", outcome(raw.subscribe(place.topic, 1, "Shared", subscription="before")))
        place.set_namespace("subscriptionTypesEnabled", ["Exclusive"])
        run.step("who is there", outcomes(raw.replies()))
        run.step("another of the kind", outcome(raw.subscribe(place.topic, 2, "Shared", subscription="before")))
        place.set("subscriptionTypesEnabled", ["Failover", "Key_Shared"])
        for index, kind in enumerate(TYPES):
            run.step(kind, outcome(raw.subscribe(place.topic, 3 + index, kind, subscription=kind)))
        record_subscriptions(run, place)


@scenario
def limits_of_encryption(run: Run) -> None:
    """A namespace where everybody must encrypt: producers that do not, messages that are not."""
    place = Place(run)
    with run.raw() as raw:
        run.step("plain", outcome(raw.open_producer(place.topic, 1)))
        run.step("encrypting", outcome(raw.open_producer(place.topic, 2, encrypted=True)))
        place.set_namespace("encryptionRequired", True)
        run.step("who is there", outcomes(raw.replies()))
        run.step("plain again", outcome(raw.open_producer(place.topic, 3)))
        publish_plain_and_encrypted(run, raw, 2)
        place.set_namespace("encryptionRequired", False)
        publish_plain_and_encrypted(run, raw, 2, first=2)
        run.step("plain at last", outcome(raw.open_producer(place.topic, 4)))


def publish_plain_and_encrypted(run: Run, raw: RawClient, producer_id: int, first: int = 0) -> None:
    raw.send_message(producer_id, first)
    raw.send_message(producer_id, first + 1, metadata={"encryption_keys": KEYS})
    run.step(f"messages from {first} on", outcomes(raw.replies()))


@scenario
def limits_of_message_size(run: Run) -> None:
    """Messages over the topic's size, parts of larger ones, and what the topic's size may be."""
    place = Place(run)
    with run.raw() as raw:
        raw.open_producer(place.topic, 1)
        place.set("maxMessageSize", 100)
        for index, size_bytes in enumerate((10, 70, 200, 10)):
            raw.send_message(1, index, bytes(size_bytes))
        run.step("by size", outcomes(raw.replies()))
        chunk = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 1000}
        for index in range(2):
            raw.send_message(1, 10, bytes(500), metadata={**chunk, "chunk_id": index}, is_chunk=True)
        run.step("parts", outcomes(raw.replies()))
        place.set("maxMessageSize", 0)
        raw.send_message(1, 20, bytes(500))
        run.step("without a limit", outcomes(raw.replies()))
        place.set("maxMessageSize", -1)
        place.set("maxMessageSize", 2**30)


@scenario
def limits_of_unacknowledged(run: Run) -> None:
    """How many messages a consumer may hold, and that a limit of the topic counts at once for who comes."""
    place = Place(run)
    place.set("maxUnackedMessagesOnConsumer", 3)
    with run.raw() as raw:
        raw.open_producer(place.topic, 1)
        receipts = raw.publish(1, 10)
        run.step("published", len(receipts))
        raw.subscribe(place.topic, 1, "Shared")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("one consumer", [reply["payload"] for reply in raw.replies()])
        raw.subscribe(place.topic, 2, "Shared")
        raw.send(Type.FLOW, consumer_id=2, messagePermits=100)
        run.step("another one", [reply["payload"] for reply in raw.replies()])
    with run.raw() as raw:
        raw.subscribe(place.topic, 1, "Exclusive", subscription="exclusive")
        raw.send(Type.FLOW, consumer_id=1, messagePermits=100)
        run.step("of a type without the limit", len(raw.replies()))


@scenario
def limits_of_publishing(run: Run) -> None:
    """A message over the publish rate is not refused: it waits, and the order stays."""
    place = Place(run)
    with run.raw() as raw:
        raw.open_producer(place.topic, 1)
        place.set("publishRate", {"publishThrottlingRateInMsg": 5})
        started_s = time.monotonic()
        replies = raw.publish(1, 12)
        elapsed_s = time.monotonic() - started_s
        run.step("in order", [int(reply.get("sequence_id", 0)) for reply in replies])
        run.step("12 messages at 5 a second take longer than a second", elapsed_s > 1.0)
        run.step("and less than three", elapsed_s < 3.0)
    stats = run.http("GET", f"{place.path}/stats", ..., "application/json")[2]
    run.step("the counter rises", b'"publishRateLimitedTimes":0,' not in stats)


@scenario
def limits_resource_groups(run: Run) -> None:
    """Resource groups by REST: partial updates, what is refused, a group in use."""
    group = f"/admin/v2/resourcegroups/{run.token}"
    namespace = f"/admin/v2/namespaces/public/{run.token}"
    run.rest_status("make the namespace", "PUT", namespace)
    run.rest_status("missing", "GET", group)
    run.rest_status("make", "PUT", group, {})
    run.rest("as made", "GET", group)
    run.rest_status("change one", "PUT", group, {"publishRateInMsgs": 10})
    run.rest_status("change another", "PUT", group, {"dispatchRateInBytes": 1000, "unknown": 1})
    run.rest("both", "GET", group)
    run.rest_status("no numbers", "PUT", group, {"publishRateInMsgs": "x"})
    run.rest_status("no object", "PUT", group, [1])
    run.rest_status("by POST", "POST", group, {})
    run.rest_status("a namespace joins", "POST", f"{namespace}/resourcegroup/{run.token}")
    run.rest("its group", "GET", f"{namespace}/resourcegroup")
    run.rest_status("a group that is none", "POST", f"{namespace}/resourcegroup/{run.token}-none")
    run.rest_status("delete while in use", "DELETE", group)
    run.rest_status("it leaves", "DELETE", f"{namespace}/resourcegroup")
    left = run.wait_until(lambda: run.http("DELETE", group, ..., "application/json")[0] == 204)
    run.step("delete once it has left", left)
    run.rest_status("gone", "GET", group)


@scenario
def limits_replicated_subscription(run: Run) -> None:
    """The flag of a subscription that is to be replicated: once set it stays, whatever later consumers say."""
    place = Place(run)
    properties = [pb.KeyValue(key="k", value="v")]
    with run.raw() as raw:
        raw.subscribe(place.topic, 1, "Shared", replicate_subscription_state=True, subscription_properties=properties)
        record_replicated(run, place, "with the flag")
        raw.subscribe(place.topic, 2, "Shared", replicate_subscription_state=False)
        record_replicated(run, place, "another consumer without it")
        raw.subscribe(place.topic, 3, "Shared", subscription="plain")
        raw.subscribe(place.topic, 4, "Shared", subscription="plain", replicate_subscription_state=True)
        record_replicated(run, place, "set later", "plain")
        raw.subscribe(place.topic, 5, subscription="reader", durable=False, replicate_subscription_state=True)
        record_replicated(run, place, "a reader", "reader")


def record_replicated(run: Run, place: Place, label: str, subscription: str = "sub") -> None:
    stats = run.rest_status(f"stats, {label}", "GET", f"{place.path}/stats")
    assert isinstance(stats, dict)
    found: Any = stats["subscriptions"]
    shown = found[subscription]
    run.step(label, {key: shown[key] for key in ("isReplicated", "subscriptionProperties")})
