"""Measures the gap in service of each topic when brokers end, with clients of the official library.

    python -m tests.bookkeeper.service_gaps --broker pybroker --session 5 --topics 16
    python -m tests.bookkeeper.service_gaps --broker java --session 30 --topics 16
    python -m tests.bookkeeper.service_gaps --session 5 --topics 1000 --interval 1
    python -m tests.bookkeeper.service_gaps --end sigterm --brokers 3 --ensemble 3 --session 30 --topics 200 --interval 0.25
    python -m tests.bookkeeper.service_gaps --end shutdown --brokers 3 --ensemble 3 --session 30 --topics 200 --interval 0.25

ZooKeeper, three bookies and the brokers run on this machine. Each topic has a producer that sends a message each `--interval`
seconds. The bundles are divided among the brokers. More than 100 topics are partitions of topics with 100 each. Clients, brokers
and servers share the processors of this machine, so their shares are reported, too.

`--end kill`: one broker is killed. The pause between receipts is reported per topic: from the last one before to the first one
after, and from the kill to the first one after.

`--end sigterm` and `--end shutdown` (the REST call): the brokers are restarted one by one, in the way of
docs/cluster/rolling-restart.md. Each topic also has a consumer. For the topics of each restarted broker, the longest pause between
two receipts and between two deliveries is reported. At the end, each message with a receipt must have been delivered, and each
topic in its order.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pulsar
from benchmarks.processor_time import processor_seconds
from tests.bookkeeper.conftest import init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.java_broker import JavaBroker

CLUSTER = "c1"
NAMESPACE = "public/gaps"
SUBSCRIPTION = "gaps"
PARTITIONS = 100
SETTLE_S = 5.0
DEADLINE_S = 90.0
SETTINGS = {
    "clusterName": CLUSTER,
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "loadBalancerSheddingEnabled": "false",
}
_NONE: Mapping[str, str] = MappingProxyType({})
KILL, SIGTERM, SHUTDOWN = "kill", "sigterm", "shutdown"


class Broker(Protocol):
    """A process with a broker."""

    @property
    def url(self) -> str: ...

    @property
    def http_url(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> object: ...

    def stop(self, number: signal.Signals, /) -> object: ...

    def wait(self) -> object: ...


def rest(method: str, url: str, body: object = None) -> Any:
    """Return the answer's JSON. Raises urllib.error.HTTPError."""
    for _ in range(5):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
                return json.loads(text) if text.startswith(("{", "[", '"')) else text
        except urllib.error.HTTPError as error:
            if error.code != 307:
                raise
            url = error.headers["location"]
    raise OSError(f"{url} is redirected in a circle")


@contextmanager
def running_brokers(
    kind: str,
    count: int,
    session_ms: int,
    cluster: BookKeeperCluster,
    parent: Path | None = None,
    more: Mapping[str, str] = _NONE,
) -> Iterator[list[Broker]]:
    """Run brokers with data below `parent`, by default the directory of the cluster. They are killed at the end.

    `more`: settings of all brokers.
    """
    zookeeper = cluster.zookeeper.address
    init_metadata(CLUSTER, zookeeper)
    settings = {**SETTINGS, "metadataStoreSessionTimeoutMillis": str(session_ms), **more}
    brokers: list[Broker] = []
    with ExitStack() as stack:
        for number in range(count):
            directory = (cluster.directory if parent is None else parent) / f"broker{number}"
            directory.mkdir()
            if kind == "java":
                java = JavaBroker(directory, zookeeper, settings)
                java.start()
                stack.callback(java.stop, signal.SIGKILL)
                brokers.append(java)
            else:
                own = BrokerProcess(
                    directory, {**settings, "ledgerStore": "bookkeeper", "metadataStoreUrl": f"zk:{zookeeper}"}
                )
                own.start()
                stack.callback(own.kill)
                brokers.append(own)
        yield brokers


class Load:
    """A producer of each topic, and a consumer if `consumes`. Times of receipts and deliveries are recorded by topic."""

    def __init__(self, brokers: Sequence[Broker], topics: int, interval_s: float, *, consumes: bool = False) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.delivered: dict[str, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        self.disordered: list[str] = []
        self._receipted: dict[str, set[int]] = defaultdict(set)
        self._seen: dict[str, set[int]] = defaultdict(set)
        self._last: dict[str, int] = defaultdict(lambda: -1)
        self._interval_s = interval_s
        self._stop = threading.Event()
        addresses = ",".join(each.url.removeprefix("pulsar://") for each in brokers)
        self._client = pulsar.Client(
            f"pulsar://{addresses}",
            operation_timeout_seconds=60,
            io_threads=1,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        partitions = PARTITIONS if topics > PARTITIONS else 0
        names = [f"persistent://{NAMESPACE}/t{each}" for each in range(topics // partitions if partitions else topics)]
        if partitions:
            for name in names:
                rest("PUT", f"{brokers[0].http_url}/admin/v2/{name.replace('://', '/')}/partitions", partitions)
        self.topics = [f"{name}-partition-{each}" for name in names for each in range(partitions)] or names
        self._consumes = consumes
        for name in names if consumes else []:
            self._client.subscribe(
                name,
                SUBSCRIPTION,
                initial_position=pulsar.InitialPosition.Earliest,
                message_listener=self._consumed(name),
            )
        self._producers = [
            self._client.create_producer(
                name,
                send_timeout_millis=0,
                batching_enabled=False,
                max_pending_messages=5000,
                max_pending_messages_across_partitions=500_000,
            )
            for name in names
        ]
        self._names = names
        self._partitions = partitions
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        steps = list(zip(self._names, self._producers, strict=True))
        pause_s = self._interval_s / len(self.topics)
        began_s, number = time.monotonic(), 0
        while not self._stop.is_set():
            for count, (name, producer) in enumerate(steps, number * len(steps) + 1):
                producer.send_async((b"%d " % number).ljust(100, b"x"), self._answered(name, number))
                ahead_s = began_s + count * pause_s - time.monotonic()
                if ahead_s > 0.002:
                    time.sleep(ahead_s)
            number += 1

    def _answered(self, name: str, number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def answered(result: pulsar.Result, where: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                topic = f"{name}-partition-{where.partition()}" if self._partitions else name
                self.times[topic].append(time.monotonic())
                self._receipted[name].add(number)
            else:
                self.failures.append(f"{name}: {result}")

        return answered

    def _consumed(self, name: str) -> Callable[[pulsar.Consumer, pulsar.Message], None]:
        seen = self._seen[name]

        def consumed(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            topic, number = message.topic_name(), int(message.data().partition(b" ")[0])
            self.delivered[topic].append(time.monotonic())
            if number not in seen:
                seen.add(number)
                if number < self._last[topic]:
                    self.disordered.append(f"{topic}: {number} came after {self._last[topic]}")
                self._last[topic] = number
            consumer.acknowledge(message)

        return consumed

    def undelivered(self) -> list[str]:
        """Return the messages that have a receipt and were not delivered."""
        return [
            f"{name} {number}" for name in self._names for number in sorted(self._receipted[name] - self._seen[name])
        ]

    def wait_for_receipts(self, since_s: float, deadline_s: float) -> None:
        """Wait until each topic has a receipt after `since_s`, and a delivery if it has a consumer."""
        deadline = time.monotonic() + deadline_s
        recorded = [self.times, self.delivered] if self._consumes else [self.times]
        while late := [
            topic for topic in self.topics for times in recorded if not times[topic] or times[topic][-1] < since_s
        ]:
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(late)} topics have no receipt or delivery after {deadline_s} s: {late[:5]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the producers, and wait for the messages that have no receipt or are not delivered yet."""
        self._stop.set()
        self._thread.join()
        for producer in self._producers:
            producer.flush()
        deadline = time.monotonic() + DEADLINE_S
        while self._consumes and self.undelivered() and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def divide(brokers: Sequence[Broker]) -> None:
    """Give each broker its share of the bundles."""
    found = rest("GET", f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}/bundles")
    for number, (lower, upper) in enumerate(pairwise(found["boundaries"])):
        destination = brokers[number % len(brokers)].http_url.removeprefix("http://")
        rest(
            "PUT",
            f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}/{lower}_{upper}/unload?destinationBroker={destination}",
        )


def owners(brokers: Sequence[Broker], topics: list[str]) -> dict[str, str]:
    """Return the owner's address of each topic."""
    return {
        topic: rest("GET", f"{brokers[0].http_url}/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"]
        for topic in topics
    }


class Processors:
    """Processor seconds of this process, of brokers and servers, and of the whole machine, since the constructor."""

    def __init__(self, brokers: Sequence[Broker], cluster: BookKeeperCluster) -> None:
        servers = [cluster.zookeeper.pid, *(bookie.pid for bookie in cluster.bookies)]
        self._roots = {
            "brokers": [broker.pid for broker in brokers],
            "ZooKeeper and bookies": [each for each in servers if each is not None],
        }
        self._before = self._seconds()

    def _seconds(self) -> dict[str, float]:
        found = {name: sum(map(processor_seconds, roots)) for name, roots in self._roots.items()}
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        busy_s = (sum(ticks) - idle) * tick_s
        known = {"clients": time.process_time(), **found}
        return {**known, "other programs": busy_s - sum(known.values()), "idle": idle * tick_s}

    def shares(self) -> dict[str, str]:
        """Return the shares of the machine's processors, in percent."""
        used = {name: seconds - self._before[name] for name, seconds in self._seconds().items()}
        return {f"processors, {name}": f"{100 * each / sum(used.values()):.0f} %" for name, each in used.items()}


def longest_pause(times: list[float], since_s: float) -> tuple[float, float]:
    """Return begin and end of the longest pause that ended after `since_s`."""
    return max(
        ((before, after) for before, after in pairwise(times) if after >= since_s),
        key=lambda pause: pause[1] - pause[0],
    )


class Restart(NamedTuple):
    """The pauses while one broker ended and started again, in seconds."""

    broker: str
    took_s: float
    """From the order to end until the process ended."""
    receipts: dict[str, float]
    """The longest pause between two receipts of each topic that the broker owned."""
    deliveries: dict[str, float]
    others_s: float
    """The longest pause between two receipts of a topic of another broker."""

    def figures(self) -> dict[str, object]:
        return {
            "broker": self.broker,
            "end of the process": round(self.took_s, 2),
            **pause_figures([self]),
            "other topics, worst pause": round(self.others_s, 2),
        }


def pause_figures(restarts: Sequence[Restart]) -> dict[str, object]:
    """Return the figures of all topics that moved."""
    found: dict[str, object] = {"topics that moved": sum(len(each.receipts) for each in restarts)}
    for label, lengths in (
        ("receipts", [length for each in restarts for length in each.receipts.values()]),
        ("deliveries", [length for each in restarts for length in each.deliveries.values()]),
    ):
        if lengths:
            found |= {
                f"{label}, median pause": round(statistics.median(lengths), 2),
                f"{label}, 90 %": round(sorted(lengths)[len(lengths) * 9 // 10], 2),
                f"{label}, 99 %": round(sorted(lengths)[len(lengths) * 99 // 100], 2),
                f"{label}, worst pause": round(max(lengths), 2),
            }
    return found


def end(broker: Broker, how: str) -> None:
    """End a broker with a handover of its bundles, and wait for the end of its process."""
    if how == SHUTDOWN:
        rest("POST", f"{broker.http_url}/admin/v2/brokers/shutdown")
        broker.wait()
    else:
        broker.stop(signal.SIGTERM)


def wait_for_registrations(brokers: Sequence[Broker]) -> None:
    """Wait until each broker lists all."""
    deadline = time.monotonic() + DEADLINE_S
    while not all(len(rest("GET", f"{each.http_url}/admin/v2/brokers")) == len(brokers) for each in brokers):
        if time.monotonic() > deadline:
            raise SystemExit(f"the brokers do not list each other after {DEADLINE_S} s")
        time.sleep(0.1)


def restart(load: Load, brokers: Sequence[Broker], number: int, how: str) -> Restart:
    """Restart one broker, and return the pauses of the topics."""
    broker = brokers[number]
    url, owner = broker.url, owners(brokers, load.topics)
    began_s = time.monotonic()
    end(broker, how)
    took_s = time.monotonic() - began_s
    load.wait_for_receipts(time.monotonic(), DEADLINE_S)
    broker.start()
    wait_for_registrations(brokers)
    load.wait_for_receipts(time.monotonic() + SETTLE_S, DEADLINE_S)

    def pauses(times: Mapping[str, list[float]], topics: Sequence[str]) -> dict[str, float]:
        found = {topic: longest_pause(list(times[topic]), began_s) for topic in topics}
        return {topic: after - before for topic, (before, after) in found.items()}

    moved = [topic for topic in load.topics if owner[topic] == url]
    others = pauses(load.times, [topic for topic in load.topics if owner[topic] != url])
    return Restart(
        f"broker{number}",
        took_s,
        pauses(load.times, moved),
        pauses(load.delivered, moved),
        max(others.values(), default=0.0),
    )


def roll(load: Load, brokers: Sequence[Broker], how: str) -> dict[str, object]:
    """Restart all brokers one by one, and return the figures."""
    restarts = []
    for number in range(len(brokers)):
        restarts.append(restart(load, brokers, number, how))
        print(json.dumps(restarts[-1].figures()), flush=True)
    load.stop()
    return {
        **pause_figures(restarts),
        "receipts in all": sum(map(len, load.times.values())),
        "failed sends": len(load.failures),
        "receipted and not delivered": len(load.undelivered()),
        "delivered out of order": len(load.disordered),
    }


def measure_kill(load: Load, brokers: Sequence[Broker], cluster: BookKeeperCluster) -> dict[str, object]:
    """Kill the last broker, and return the figures."""
    owner = owners(brokers, load.topics)
    victim = brokers[-1]
    time.sleep(2)
    killed_s = time.monotonic()
    victim.stop(signal.SIGKILL)
    processors = Processors(brokers[:-1], cluster)
    load.wait_for_receipts(killed_s + 1.0, DEADLINE_S)
    shares = processors.shares()
    time.sleep(2)
    pauses = {topic: longest_pause(list(load.times[topic]), killed_s) for topic in load.topics}
    lost = [topic for topic in load.topics if owner[topic] == victim.url]
    lengths = [pauses[topic][1] - pauses[topic][0] for topic in lost]
    from_kill = [pauses[topic][1] - killed_s for topic in lost]
    others = [pauses[topic][1] - pauses[topic][0] for topic in load.topics if owner[topic] != victim.url]
    return {
        "topics": len(load.topics),
        "topics of the killed broker": len(lost),
        "pause, median": round(statistics.median(lengths), 2),
        "pause, worst": round(max(lengths), 2),
        "after the kill, median": round(statistics.median(from_kill), 2),
        "after the kill, 90 %": round(sorted(from_kill)[len(from_kill) * 9 // 10], 2),
        "after the kill, 99 %": round(sorted(from_kill)[len(from_kill) * 99 // 100], 2),
        "after the kill, worst": round(max(from_kill), 2),
        "other topics, worst pause": round(max(others, default=0.0), 2),
        "failed sends": len(load.failures),
        **shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("pybroker", "java"), default="pybroker")
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--bundles", type=int, default=16)
    parser.add_argument("--session", type=int, default=5, help="seconds")
    parser.add_argument("--topics", type=int, default=16)
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between two messages of a topic")
    parser.add_argument(
        "--service-url",
        choices=("others", "all"),
        default="others",
        help="brokers in the service URL of the clients: without the killed one, like a load balancer, or all",
    )
    parser.add_argument("--logs", type=Path, help="directory for the logs of the brokers")
    parser.add_argument(
        "--end", choices=(KILL, SIGTERM, SHUTDOWN), default=KILL, help="of one broker, or of each in turn"
    )
    parser.add_argument("--ensemble", type=int, default=2, help="bookies of a ledger; both quorums are 2")
    options = parser.parse_args()
    kills = options.end == KILL
    more = {"managedLedgerDefaultEnsembleSize": str(options.ensemble)}
    with (
        bookkeeper_cluster(3, zookeeper_settings=("maxSessionTimeout=60000",)) as cluster,
        running_brokers(options.broker, options.brokers, options.session * 1000, cluster, more=more) as brokers,
    ):
        bundles = {"bundles": {"numBundles": options.bundles}}
        rest("PUT", f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}", bundles)
        known = brokers[:-1] if kills and options.service_url == "others" else brokers
        load = Load(known, options.topics, options.interval, consumes=not kills)
        load.wait_for_receipts(0.0, DEADLINE_S)
        divide(brokers)
        load.wait_for_receipts(time.monotonic() + SETTLE_S, DEADLINE_S)
        found = measure_kill(load, brokers, cluster) if kills else roll(load, brokers, options.end)
        load.close()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for number in range(options.brokers):
                for log in (cluster.directory / f"broker{number}").glob("*.log"):
                    shutil.copy(log, options.logs / f"broker{number}.log")
        print(json.dumps({**vars(options), "logs": "", **found}, indent=1), flush=True)


if __name__ == "__main__":
    main()
