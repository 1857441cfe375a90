"""What `GET .../stats` shows of a topic, for each type of subscription: every field, and the numbers behind it."""

import json
from collections.abc import Callable
from typing import Any

import pulsar
from tests.differential.harness import QUIET_MS, Run, scenario
from tests.differential.normalise import Json
from tests.differential.scenarios_retention import Topic, id_of

# How much room an implementation's own bookkeeping takes, and when it happened to look.
_OWN_AFFAIR = {
    "connectedSince",
    "clientVersion",
    "address",
    "ownerBroker",
    "topicCreationTimeStamp",
    "averageMsgSize",
    "lastAckedTime",
    "lastConsumedTime",
    "earliestMsgPublishTimeInBacklog",
    "earliestMsgPublishTimeInBacklogs",
    "lastPublishTimeStamp",
    "firstMessagesSentTimestamp",
    "firstConsumedFlowTimestamp",
}
_RATES = ("Rate", "Throughput")


def shape(value: Any, field: str = "") -> Json:
    """A statistic without what depends on when it was asked: times and rates are told as never or some time."""
    if isinstance(value, dict):
        return {key: shape(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each, field) for each in value]
    if field == "nonContiguousDeletedMessagesRangesSerializedSize":
        return "bytes"  # the reference knows it after it has stored them
    if field in _OWN_AFFAIR or field.startswith("last") or any(part in field for part in _RATES):
        return "none" if value in (0, -1, "", "1970-01-01T00:00:00Z") else "some"
    return value  # type: ignore[no-any-return]


class Shown:
    """The statistics of one topic, recorded without rates' values."""

    def __init__(self, run: Run, topic: Topic) -> None:
        self.run = run
        self.topic = topic

    def get(self, query: str = "") -> Any:
        return json.loads(self.run.http("GET", f"{self.topic.path}/stats{query}", ..., "")[2])

    def until(self, holds: Callable[[Any], bool], query: str = "") -> Any:
        self.run.wait_until(lambda: holds(self.get(query)))
        return self.get(query)

    def record(self, label: str, holds: Callable[[Any], bool] = lambda _: True, query: str = "") -> None:
        """Record them as soon as `holds`: brokers count a moment after they have answered."""
        found = self.until(holds, query)
        for subscription in found["subscriptions"].values():
            _name_by_role(subscription)
            subscription["consumers"].sort(key=lambda consumer: consumer["consumerName"])
        self.run.step(label, shape(found))


def subscription_of(stats: Any, name: str = "s") -> Any:
    return stats["subscriptions"][name]


def _name_by_role(subscription: Any) -> None:
    """Which of several consumers is active depends on the hash of the topic's name."""
    active = subscription.get("activeConsumerName")
    if active is None:
        return
    subscription["activeConsumerName"] = "active"
    for consumer in subscription["consumers"]:
        name = consumer["consumerName"]
        consumer["metadata"] = {"of itself": consumer["metadata"]["of"] == name}
        consumer["consumerName"] = "active" if name == active else "standby"


def _active_first(consumers: list[Any], stats: Any) -> list[Any]:
    active = subscription_of(stats).get("activeConsumerName")
    return sorted(consumers, key=lambda consumer: consumer.consumer_name() != active)


@scenario
def stats_without_clients(run: Run) -> None:
    """A topic without clients, one that is missing, and every query."""
    topic = Topic(run)
    shown = Shown(run, topic)
    run.rest("missing", "GET", f"{topic.missing}/stats")
    topic.publish(0)
    shown.record("empty")
    topic.client.subscribe(topic.name, "s", properties={"a": "b"}).close()
    shown.record("a subscription", lambda stats: not subscription_of(stats)["consumers"])
    topic.publish(7)
    for query in (
        "",
        "?getPreciseBacklog=true",
        "?subscriptionBacklogSize=false",
        "?subscriptionBacklogSize=true",
        "?getEarliestTimeInBacklog=true",
        "?excludePublishers=true&excludeConsumers=true",
    ):
        shown.record(f"seven messages {query}", lambda stats: stats["msgInCounter"] == 7, query)


def _with_consumers(run: Run, kind: pulsar.ConsumerType, count: int) -> None:
    topic = Topic(run)
    shown = Shown(run, topic)
    consumers = [
        topic.client.subscribe(
            topic.name,
            "s",
            kind,
            consumer_name=f"c{index}",
            properties={"of": f"c{index}"},
            receiver_queue_size=10,
        )
        for index in range(count)
    ]
    shown.record("consumers", lambda stats: len(subscription_of(stats)["consumers"]) == count)
    producer = topic.client.create_producer(
        topic.name, producer_name="p", batching_enabled=False, properties={"of": "p"}
    )
    shown.record("a producer")
    for index in range(6):
        producer.send(f"{index:099d}".encode(), partition_key=f"k{index}")
    shown.record("delivered", lambda stats: subscription_of(stats)["msgOutCounter"] == 6)
    received: list[Any] = []
    for consumer in consumers:
        while len(received) < 6:
            try:
                received.append((consumer, consumer.receive(QUIET_MS)))
            except pulsar.Timeout:
                break
    received.sort(key=lambda pair: int(pair[1].data()))
    for consumer, message in received[:2] + received[3:4]:
        consumer.acknowledge(message)
    shown.record("three acknowledged", lambda stats: subscription_of(stats)["msgBacklog"] == 3)
    for consumer in consumers:
        consumer.redeliver_unacknowledged_messages()
    shown.record("given back", lambda stats: subscription_of(stats)["msgOutCounter"] == 9)
    producer.close()
    consumers = _active_first(consumers, shown.get())
    consumers[0].close()
    shown.record("one closed", lambda stats: len(subscription_of(stats)["consumers"]) == count - 1)
    for consumer in consumers[1:]:
        consumer.close()
    shown.record("all closed", lambda stats: not subscription_of(stats)["consumers"])


@scenario
def stats_exclusive(run: Run) -> None:
    """An Exclusive subscription at work."""
    _with_consumers(run, pulsar.ConsumerType.Exclusive, 1)


@scenario
def stats_failover(run: Run) -> None:
    """A Failover subscription of two at work."""
    _with_consumers(run, pulsar.ConsumerType.Failover, 2)


@scenario
def stats_shared(run: Run) -> None:
    """A Shared subscription of one at work: how two share depends on who asks first."""
    _with_consumers(run, pulsar.ConsumerType.Shared, 1)


@scenario
def stats_key_shared(run: Run) -> None:
    """A Key_Shared subscription of two at work."""
    _with_consumers(run, pulsar.ConsumerType.KeyShared, 2)


@scenario
def rest_subscriptions(run: Run) -> None:
    """Subscriptions made, listed and deleted over REST, where they begin, and every way to get it wrong."""
    topic = Topic(run)
    ids = topic.publish(4)
    base = f"{topic.path}/subscription"
    latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
    bodies: dict[str, Any] = {
        "none": ...,
        "latest": latest,
        "earliest": {"ledgerId": -1, "entryId": -1},
        "third": id_of(ids[2]),
        "behind-third": id_of(ids[2], isExcluded=True),
    }
    for name, body in bodies.items():
        run.rest(f"make at {name}", "PUT", f"{base}/{name}", body)
    run.rest("make again", "PUT", f"{base}/none")
    run.rest("make on a missing topic", "PUT", f"{topic.missing}/subscription/s")
    run.rest("make in a missing namespace", "PUT", base.replace("/ns/", "/missing/") + "/s")
    run.rest("make on a non-persistent topic", "PUT", base.replace("/persistent/", "/non-persistent/") + "/s")
    listed = run.http("GET", f"{topic.path}/subscriptions", ..., "")[2]
    run.step("listed", sorted(json.loads(listed)))
    run.rest("list those of a missing topic", "GET", f"{topic.missing}x/subscriptions")
    for name in bodies:
        consumer = topic.client.subscribe(topic.name, name)
        run.record_messages(f"read from {name}", run.receive_rest(consumer))
        if name == "third":
            run.rest("delete with a consumer", "DELETE", f"{base}/{name}")
        consumer.close()
    run.rest("delete", "DELETE", f"{base}/none")
    run.rest("delete again", "DELETE", f"{base}/none")
    run.rest("delete on a missing topic", "DELETE", f"{topic.missing}x/subscription/s")
    run.rest("properties unset", "GET", f"{base}/third/properties")
    run.rest("set properties", "PUT", f"{base}/third/properties", {"a": "b"})
    run.rest("properties", "GET", f"{base}/third/properties")
    run.rest("properties of a missing one", "GET", f"{base}/none/properties")
    run.rest("last message", "GET", f"{topic.path}/lastMessageId")
    run.rest("last message of a missing topic", "GET", f"{topic.missing}x/lastMessageId")
    run.rest("last message of a non-persistent topic", "GET", f"{topic.path}/lastMessageId".replace("/per", "/non-per"))
