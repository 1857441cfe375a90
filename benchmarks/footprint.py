"""Resident memory per connection, topic, subscription and producer, and for a backlog.

`python -m benchmarks.footprint --count 5000`. Each line adds that many objects of one kind and prints the resident
memory per object. The backlog is then measured in a restarted broker. Linux only.
"""

import argparse
import time
from collections.abc import Callable, Sequence

from benchmarks import load
from benchmarks.brokers import Broker, PybrokerProcess, own_pybroker
from benchmarks.cases import open_publisher
from pybroker.wire import pulsar_api_pb2 as pb

SETTLE_S = 1.5
TIMEOUT_S = 300.0
MAX_CONNECTIONS = 4000
BATCH = 50


def topic_name(number: int) -> str:
    return f"persistent://public/default/footprint-{number}"


def resident_mb(broker: Broker) -> int:
    """Return the broker's resident memory in MB, after work in progress has ended."""
    time.sleep(SETTLE_S)
    return broker.rss_mb() or 0


def measured(broker: Broker, what: str, count: int, add: Callable[[], None]) -> None:
    before_mb = resident_mb(broker)
    add()
    grown_mb = resident_mb(broker) - before_mb
    print(f"{what:<44} {count:>9} {grown_mb:>6} MB {grown_mb * (1 << 20) / count / 1024:>9.2f} KiB each", flush=True)


def measure_beings(process: PybrokerProcess, count: int) -> None:
    broker = process.start()
    print(f"{'a broker without clients':<44} {'':>9} {resident_mb(broker):>6} MB", flush=True)
    links: list[load.Link] = []
    connections = min(count, MAX_CONNECTIONS)
    measured(broker, "connections", connections, lambda: links.extend(connect(broker, connections)))
    one = load.Link(broker.service_url)

    def add_topics() -> None:
        for number in range(count):
            one.open_producer(topic_name(number), number + 1)

    def add_producers() -> None:
        for number in range(count):
            one.open_producer(topic_name(0), count + number + 1)

    def add_subscriptions() -> None:
        for number in range(count):
            one.subscribe(topic_name(number % 50), f"s{number}", pb.CommandSubscribe.Shared, number + 1)

    def add_consumers() -> None:
        for number in range(count):
            one.subscribe(topic_name(0), "s0", pb.CommandSubscribe.Shared, count + number + 1)

    measured(broker, "topics, each with a producer", count, add_topics)
    measured(broker, "producers of one topic", count, add_producers)
    measured(broker, "subscriptions with a consumer, of 50 topics", count, add_subscriptions)
    measured(broker, "consumers of one Shared subscription", count, add_consumers)
    for link in [*links, one]:
        link.close()
    process.stop()


def connect(broker: Broker, count: int) -> list[load.Link]:
    return [load.Link(broker.service_url) for _ in range(count)]


def measure_backlog(process: PybrokerProcess, messages: int) -> None:
    broker = process.start()
    topic, link = topic_name(0), load.Link(broker.service_url)
    link.subscribe(topic, "behind", pb.CommandSubscribe.Shared, 1)
    publisher = open_publisher(broker, topic, 100, 1000 * BATCH, BATCH)
    publisher.limit_to(messages // BATCH)
    load.run([publisher], publisher.finished, TIMEOUT_S)
    publisher.link.close()
    link.close()
    process.stop()
    broker = process.start()

    def attach() -> None:
        load.Link(broker.service_url).subscribe(topic, "behind", pb.CommandSubscribe.Shared, 1)

    measured(broker, f"messages of a backlog, {BATCH} in an entry", messages, attach)
    process.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the broker's configuration")
    asked = parser.parse_args(arguments)
    # The limits per address and per topic would refuse these numbers.
    many = {"maxProducersPerTopic": "0", "maxConsumersPerTopic": "0", "maxConnectionsBeforeConnectPerIp": "10000"}
    settings = {**many, **dict(each.split("=", 1) for each in asked.set)}
    with own_pybroker(False, settings) as process:
        measure_beings(process, asked.count)
    with own_pybroker(False, settings) as process:
        measure_backlog(process, asked.messages)


if __name__ == "__main__":
    main()
