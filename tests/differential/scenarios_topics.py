"""Topics as resources: made, listed, grown, deleted; partitioned ones; what is made automatically."""

from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.differential.scenarios_rest import V2, with_tenant
from tests.support.raw_client import RawClient, Type

WITH_PROPERTIES = "application/vnd.partitioned-topic-metadata+json"


def with_namespace(run: Run) -> str:
    """A namespace of the run's own, already made; `tenant/namespace`."""
    namespace = f"{with_tenant(run)}/ns"
    run.http("PUT", f"{V2}/namespaces/{namespace}", {"bundles": {"numBundles": 1}}, "application/json")
    return namespace


def lists(run: Run, label: str, namespace: str, domain: str = "persistent") -> None:
    """What the namespace has."""
    run.rest(f"{label}: topics", "GET", f"{V2}/{domain}/{namespace}")
    run.rest(f"{label}: partitioned", "GET", f"{V2}/{domain}/{namespace}/partitioned")


@scenario
def topics_without_partitions(run: Run) -> None:
    """Make, make again, list, delete, delete again; names that are refused."""
    namespace = with_namespace(run)
    base = f"{V2}/persistent/{namespace}"
    run.rest("create", "PUT", f"{base}/t")
    run.rest("create again", "PUT", f"{base}/t")
    run.rest("as partitioned", "PUT", f"{base}/t/partitions", 2)
    run.rest("partitions", "GET", f"{base}/t/partitions")
    run.rest("more partitions", "POST", f"{base}/t/partitions", 2)
    run.rest("missed partitions", "POST", f"{base}/t/createMissedPartitions")
    run.rest("delete as partitioned", "DELETE", f"{base}/t/partitions")
    lists(run, "with one", namespace)
    run.rest("partition of nothing", "PUT", f"{base}/a-partition-0")
    run.rest("slash", "PUT", f"{base}/a%2Fb")
    run.rest("pending acks", "PUT", f"{base}/s__transaction_pending_ack")
    run.rest("transaction log", "PUT", f"{V2}/persistent/pulsar/system/__transaction_log_{run.token}")
    run.rest("no namespace", "PUT", f"{base}-no/t")
    run.rest("delete", "DELETE", f"{base}/t")
    run.rest("delete again", "DELETE", f"{base}/t")
    run.rest("partitions of a missing one", "GET", f"{base}/t/partitions")
    run.rest("the same, if it may be made", "GET", f"{base}/t/partitions?checkAllowAutoCreation=true")
    lists(run, "with none", namespace)
    lists(run, "no namespace", f"{namespace}-no")


@scenario
def topics_partitioned(run: Run) -> None:
    """A partitioned topic's life, and what is refused to it."""
    namespace = with_namespace(run)
    base = f"{V2}/persistent/{namespace}"
    run.rest("create", "PUT", f"{base}/p/partitions", 3)
    run.rest("create again", "PUT", f"{base}/p/partitions", 3)
    run.rest("as one without", "PUT", f"{base}/p")
    run.rest("get", "GET", f"{base}/p/partitions")
    run.rest("of a partition", "GET", f"{base}/p-partition-0/partitions")
    run.rest("of no partition", "GET", f"{base}/p-partition-9/partitions?checkAllowAutoCreation=true")
    lists(run, "made", namespace)
    run.rest("one partition again", "PUT", f"{base}/p-partition-1")
    run.rest("a partition too many", "PUT", f"{base}/p-partition-7")
    run.rest("delete as one without", "DELETE", f"{base}/p")
    run.rest("delete a partition", "DELETE", f"{base}/p-partition-1")
    lists(run, "one partition less", namespace)
    run.rest("missed partitions", "POST", f"{base}/p/createMissedPartitions")
    lists(run, "whole", namespace)
    for number in (2, 0, 5, 5):
        run.rest(f"update to {number}", "POST", f"{base}/p/partitions", number)
    lists(run, "grown", namespace)
    for number in (0, -1):
        run.rest(f"create with {number}", "PUT", f"{base}/q/partitions", number)
    run.rest_status("create with a text", "PUT", f"{base}/q/partitions", "x")
    run.rest("name of a partition", "PUT", f"{base}/q-partition-2/partitions", 2)
    run.rest("no namespace", "PUT", f"{base}-no/q/partitions", 2)
    run.rest("update a missing one", "POST", f"{base}/q/partitions", 2)
    run.rest("delete a missing one", "DELETE", f"{base}/q/partitions")
    run.rest("missed partitions of a missing one", "POST", f"{base}/q/createMissedPartitions")
    run.rest("delete", "DELETE", f"{base}/p/partitions")
    lists(run, "gone", namespace)


@scenario
def topics_properties(run: Run) -> None:
    """Properties of topics, partitioned topics and partitions: merged, and removed one by one."""
    namespace = with_namespace(run)
    base = f"{V2}/persistent/{namespace}"
    run.rest("create", "PUT", f"{base}/t", {"a": "1", "b": "2"})
    body = {"partitions": 2, "properties": {"x": "1"}}
    run.rest("create partitioned", "PUT", f"{base}/p/partitions", body, WITH_PROPERTIES)
    run.rest("metadata", "GET", f"{base}/p/partitions")
    for name in ("t", "p", "p-partition-0"):
        path = f"{base}/{name}/properties"
        run.rest(f"{name}: get", "GET", path)
        run.rest(f"{name}: set", "PUT", path, {"b": "3", "c": "4"})
        run.rest(f"{name}: get set", "GET", path)
        run.rest(f"{name}: delete", "DELETE", f"{path}?key=b")
        run.rest(f"{name}: delete what is not there", "DELETE", f"{path}?key=zz")
        run.rest(f"{name}: set nothing", "PUT", path, {})
        run.rest(f"{name}: get at last", "GET", path)
    run.rest("get of a missing one", "GET", f"{base}/no/properties")
    run.rest_status("set of a missing one", "PUT", f"{base}/no/properties", {"a": "1"})
    run.rest("of a non-persistent one", "GET", f"{V2}/non-persistent/{namespace}/t/properties")


@scenario
def topics_deleted_with_clients(run: Run) -> None:
    """Connected clients keep a topic from being deleted, subscriptions do not; force goes over both."""
    namespace = with_namespace(run)
    base = f"{V2}/persistent/{namespace}"
    run.rest("create partitioned", "PUT", f"{base}/p/partitions", 2)
    run.rest("subscribe", "PUT", f"{base}/t/subscription/s")
    with run.raw() as raw:
        raw.open_producer(f"persistent://{namespace}/t", 1)
        raw.open_producer(f"persistent://{namespace}/p-partition-1", 2)
        run.rest("with a producer", "DELETE", f"{base}/t")
        run.rest("partitioned with a producer", "DELETE", f"{base}/p/partitions")
        run.rest("partition with a producer", "DELETE", f"{base}/p-partition-1")
        run.rest("by force", "DELETE", f"{base}/t?force=true")
        run.rest("partitioned by force", "DELETE", f"{base}/p/partitions?force=true")
    lists(run, "gone", namespace)
    run.rest("subscribe again", "PUT", f"{base}/t/subscription/s")
    run.rest("with a subscription", "DELETE", f"{base}/t")
    lists(run, "gone again", namespace)


@scenario
def topics_grow_under_subscriptions(run: Run) -> None:
    """New partitions get the subscriptions of the first one, and what is sent there waits for their consumers."""
    namespace = with_namespace(run)
    base, topic = f"{V2}/persistent/{namespace}", f"persistent://{namespace}/p"
    run.rest("create", "PUT", f"{base}/p/partitions", 1)
    client = run.client()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    run.rest("update", "POST", f"{base}/p/partitions", 3)
    for index in range(3):
        run.rest(f"subscriptions of {index}", "GET", f"{base}/p-partition-{index}/subscriptions")
    run.step("partitions", [name.rpartition("-")[2] for name in client.get_topic_partitions(topic)])
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    run.step("used", sorted({producer.send(b"m").partition() for _ in range(3)}))
    consumer.close()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    received = run.receive(consumer, 3)
    run.step("received from", sorted(message.message_id().partition() for message in received))


def _asks(run: Run, raw: RawClient, label: str, topic: str, **fields: Any) -> None:
    reply = raw.request(Type.PARTITIONED_METADATA, topic=topic, **fields)
    reply.pop("message", None)
    run.step(label, reply)


@scenario
def topics_made_automatically(run: Run) -> None:
    """What asking for partitions makes, and what naming a topic makes, as the namespace says."""
    namespace = with_namespace(run)
    base, prefix = f"{V2}/persistent/{namespace}", f"persistent://{namespace}/"
    path = f"{V2}/namespaces/{namespace}/autoTopicCreation"
    with run.raw() as raw:
        _asks(run, raw, "not partitioned", f"{prefix}a")
        _asks(run, raw, "not to be made", f"{prefix}a", metadata_auto_creation_enabled=False)
        lists(run, "nothing made", namespace)
        run.rest(
            "partitioned from now on",
            "POST",
            path,
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        )
        _asks(run, raw, "partitioned, not to be made", f"{prefix}b", metadata_auto_creation_enabled=False)
        _asks(run, raw, "partitioned", f"{prefix}b")
        _asks(run, raw, "name of a partition", f"{prefix}c-partition-1")
        lists(run, "one made", namespace)
        run.step("producer on the whole", _code(raw.open_producer(f"{prefix}b", 1)))
        run.step("consumer on the whole", _code(raw.subscribe(f"{prefix}b", 1)))
        run.step("producer on a partition", _code(raw.open_producer(f"{prefix}b-partition-1", 2)))
        run.step("producer on a partition too many", _code(raw.open_producer(f"{prefix}b-partition-7", 3)))
        run.step("producer on a partition of nothing", _code(raw.open_producer(f"{prefix}e-partition-2", 4)))
        lists(run, "a partition made", namespace)
        run.rest("nothing from now on", "POST", path, {"allowAutoTopicCreation": False})
        _asks(run, raw, "nothing", f"{prefix}f")
        run.step("producer on nothing", _code(raw.open_producer(f"{prefix}f", 5)))
        run.step("consumer on nothing", _code(raw.subscribe(f"{prefix}f", 6)))
        run.rest("made by hand", "PUT", f"{base}/g/partitions", 2)
        run.rest("less one", "DELETE", f"{base}/g-partition-1")
        run.step("producer on the missing partition", _code(raw.open_producer(f"{prefix}g-partition-1", 7)))
        lists(run, "at last", namespace)


def _code(reply: dict[str, object]) -> object:
    """What kind of reply it is, and which error it holds."""
    return [reply["type"], reply.get("error")]


@scenario
def topics_of_a_limited_namespace(run: Run) -> None:
    """The most topics of a namespace: partitions count one by one."""
    namespace = with_namespace(run)
    base, prefix = f"{V2}/persistent/{namespace}", f"persistent://{namespace}/"
    run.rest("three", "POST", f"{V2}/namespaces/{namespace}/maxTopicsPerNamespace", 3)
    run.rest("one", "PUT", f"{base}/t1")
    run.rest("three more", "PUT", f"{base}/p/partitions", 3)
    run.rest("two more", "PUT", f"{base}/p/partitions", 2)
    run.rest("another", "PUT", f"{base}/t2")
    run.rest("another partitioned", "PUT", f"{base}/q/partitions", 1)
    with run.raw() as raw:
        run.step("by a producer", _code(raw.open_producer(f"{prefix}t3", 1)))
        run.step("by a consumer", _code(raw.subscribe(f"{prefix}t3", 1)))
    lists(run, "in the end", namespace)


@scenario
def topics_non_persistent_partitions(run: Run) -> None:
    """Partitioned topics of the domain non-persistent."""
    namespace = with_namespace(run)
    base = f"{V2}/non-persistent/{namespace}"
    run.rest("create", "PUT", f"{base}/p/partitions", 2)
    run.rest("get", "GET", f"{base}/p/partitions")
    run.rest("update", "POST", f"{base}/p/partitions", 3)
    run.rest("get updated", "GET", f"{base}/p/partitions")
    run.rest("partitioned", "GET", f"{base}/partitioned")
    run.rest("delete as one without", "DELETE", f"{base}/p")
    run.rest("of a missing one", "GET", f"{base}/q/partitions")
    run.rest("delete", "DELETE", f"{base}/p/partitions")
    lists(run, "gone", namespace, "non-persistent")


@scenario
def topics_of_a_namespace(run: Run) -> None:
    """Lists of a namespace by mode and bundle; a namespace with topics in it stays."""
    namespace = with_namespace(run)
    base = f"{V2}/namespaces/{namespace}"
    run.rest("topic", "PUT", f"{V2}/persistent/{namespace}/t")
    run.rest("partitioned", "PUT", f"{V2}/persistent/{namespace}/p/partitions", 2)
    for mode in ("", "?mode=PERSISTENT", "?mode=NON_PERSISTENT", "?mode=ALL"):
        run.rest(f"topics {mode}", "GET", f"{base}/topics{mode}")
    for bundle in ("0x00000000_0xffffffff", "0x00000000_0x40000000", "junk"):
        run.rest(f"bundle {bundle}", "GET", f"{V2}/persistent/{namespace}?bundle={bundle}")
    run.rest("delete with topics", "DELETE", base)
    run.rest("delete by force", "DELETE", f"{base}?force=true")
    run.rest("delete the topic", "DELETE", f"{V2}/persistent/{namespace}/t")
    run.rest("delete with partitions", "DELETE", base)
    run.rest("delete the partitions", "DELETE", f"{V2}/persistent/{namespace}/p/partitions")
    run.rest("delete", "DELETE", base)
    run.rest("topics of the deleted one", "GET", f"{base}/topics")
