"""What `partitioned-stats` and `partitioned-internalStats` show of a topic's partitions together: every field, and the numbers."""

import json
from collections.abc import Callable
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.differential.scenarios_retention import Topic
from tests.differential.scenarios_stats import shape

PARTITIONS = 3
MESSAGES = 9
# Where cursors rest, and when something happened, is each broker's own affair; and for how long the read of a consumer that has
# left goes on waiting.
_OWN_INTERNALS = frozenset({"ledgers", "cursors", "properties", "waitingCursorsCount"})


def _record(run: Run, label: str, path: str, holds: Callable[[Any], bool]) -> None:
    """Record them as soon as `holds`, with the partitions in the order of their names."""

    def get() -> Any:
        return json.loads(run.http("GET", path, ..., "")[2])

    run.wait_until(lambda: holds(get()))
    found = get()
    found["partitions"] = {name.rpartition("/")[2]: each for name, each in sorted(found["partitions"].items())}
    run.step(label, shape(found))


@scenario
def partitioned_stats(run: Run) -> None:
    """A partitioned topic before, during and after use, with and without its partitions."""
    topic = Topic(run)
    path = f"{topic.path}/partitioned-stats"
    for what in ("partitioned-stats", "partitioned-internalStats", "stats", "internalStats"):
        run.rest(f"missing {what}", "GET", f"{topic.path}/{what}")
    run.rest("make", "PUT", f"{topic.path}/partitions", PARTITIONS)
    _record(run, "fresh", path, lambda stats: len(stats["partitions"]) == PARTITIONS)
    _record(run, "fresh, without partitions", f"{path}?perPartition=false", lambda stats: not stats["partitions"])
    for what in ("stats", "internalStats"):
        run.rest(f"the partitioned name's {what}", "GET", f"{topic.path}/{what}")
    run.rest("a partition's", "GET", f"{topic.path}-partition-0/partitioned-stats")
    consumer = topic.client.subscribe(
        topic.name, "s", pulsar.ConsumerType.Shared, consumer_name="c", receiver_queue_size=10
    )
    producer = topic.client.create_producer(
        topic.name,
        producer_name="p",
        batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    for index in range(MESSAGES):
        producer.send(f"{index:099d}".encode())
    for _ in range(MESSAGES - PARTITIONS):
        consumer.acknowledge(consumer.receive(5000))
    _record(
        run,
        "used",
        f"{path}?perPartition=false",
        lambda stats: stats["msgInCounter"] == MESSAGES and stats["subscriptions"]["s"]["msgBacklog"] == PARTITIONS,
    )
    producer.close()
    consumer.close()
    _record(
        run,
        "left",
        f"{path}?getEarliestTimeInBacklog=true",
        lambda stats: not stats["publishers"] and not stats["subscriptions"]["s"]["consumers"],
    )


@scenario
def partitioned_internal_stats(run: Run) -> None:
    """What the managed ledgers of partitions look like, and a partition that is gone."""
    topic = Topic(run)
    run.rest("make", "PUT", f"{topic.path}/partitions", PARTITIONS)
    topic.client.subscribe(topic.name, "s").close()
    found = json.loads(run.http("GET", f"{topic.path}/partitioned-internalStats", ..., "")[2])
    partitions = {name.rpartition("/")[2]: each for name, each in sorted(found["partitions"].items())}
    run.step("metadata", found["metadata"])
    for name, each in partitions.items():
        run.step(name, shape({key: value for key, value in each.items() if key not in _OWN_INTERNALS}))
        run.step(f"{name}, ledgers", [sorted(ledger) for ledger in each["ledgers"]])
        run.step(f"{name}, cursors", {key: sorted(cursor) for key, cursor in each["cursors"].items()})
    run.rest("delete one", "DELETE", f"{topic.path}-partition-1?force=true")
    left = json.loads(run.http("GET", f"{topic.path}/partitioned-stats", ..., "")[2])
    run.step("left", sorted(name.rpartition("/")[2] for name in left["partitions"]))


@scenario
def broker_stats(run: Run) -> None:
    """The whole broker's figures: which there are, and what is refused."""
    topic = Topic(run)
    topic.client.subscribe(topic.name, "s").close()
    base = "/admin/v2/broker-stats"
    report = json.loads(run.http("GET", f"{base}/load-report", ..., "")[2])
    run.step("load report", sorted(report))
    run.step("load report, usages", sorted(report["cpu"]))
    tenant_and_namespace = topic.name.removeprefix("persistent://").rpartition("/")[0]
    operations = json.loads(run.http("GET", f"{base}/bookieops", ..., "")[2])
    run.step("bookie operations", sorted(operations[tenant_and_namespace][topic.name]))
    run.rest("an allocator that does not exist", "GET", f"{base}/allocator-stats/none")
    run.rest_status("availability", "GET", f"{base}/broker-resource-availability/{tenant_and_namespace}")
