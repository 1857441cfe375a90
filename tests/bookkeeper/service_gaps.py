"""Measures the gap in service of each topic after `kill -9` of a broker, with producers of the official client.

    python -m tests.bookkeeper.service_gaps --broker pybroker --session 5 --topics 16
    python -m tests.bookkeeper.service_gaps --broker java --session 30 --topics 16
    python -m tests.bookkeeper.service_gaps --session 5 --topics 1000 --interval 1

ZooKeeper, three bookies and the brokers run on this machine. Each topic has a producer that sends a message each `--interval`
seconds. The bundles are divided among the brokers, and one broker is killed. The pause between receipts is reported per topic: from
the last one before to the first one after, and from the kill to the first one after. More than 100 topics are partitions of
topics with 100 each. Clients, brokers and servers share the processors of this machine, so their shares are reported, too.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pulsar
from benchmarks.processor_time import processor_seconds
from tests.bookkeeper.conftest import init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.java_broker import JavaBroker

CLUSTER = "c1"
NAMESPACE = "public/gaps"
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


class Broker(Protocol):
    """A process with a broker."""

    @property
    def url(self) -> str: ...

    @property
    def http_url(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def stop(self, number: signal.Signals, /) -> object: ...


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
    kind: str, count: int, session_ms: int, cluster: BookKeeperCluster, parent: Path | None = None
) -> Iterator[list[Broker]]:
    """Run brokers with data below `parent`, by default the directory of the cluster. They are killed at the end."""
    zookeeper = cluster.zookeeper.address
    init_metadata(CLUSTER, zookeeper)
    settings = {**SETTINGS, "metadataStoreSessionTimeoutMillis": str(session_ms)}
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
    """A producer of each topic. Times of receipts are recorded by topic."""

    def __init__(self, brokers: list[Broker], topics: int, interval_s: float) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.failures: list[str] = []
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
        steps = [
            (producer, self._answered(name))
            for _ in range(self._partitions or 1)
            for name, producer in zip(self._names, self._producers, strict=True)
        ]
        pause_s = self._interval_s / len(steps)
        began_s, count = time.monotonic(), 0
        while not self._stop.is_set():
            for producer, answered in steps:
                producer.send_async(b"x" * 100, answered)
                count += 1
                ahead_s = began_s + count * pause_s - time.monotonic()
                if ahead_s > 0.002:
                    time.sleep(ahead_s)

    def _answered(self, name: str) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def answered(result: pulsar.Result, where: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                topic = f"{name}-partition-{where.partition()}" if self._partitions else name
                self.times[topic].append(time.monotonic())
            else:
                self.failures.append(f"{name}: {result}")

        return answered

    def wait_for_receipts(self, since_s: float, deadline_s: float) -> None:
        """Wait until each topic has a receipt after `since_s`."""
        deadline = time.monotonic() + deadline_s
        while late := [each for each in self.topics if not self.times[each] or self.times[each][-1] < since_s]:
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(late)} topics have no receipt after {deadline_s} s: {late[:5]}")
            time.sleep(0.1)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def divide(brokers: list[Broker]) -> None:
    """Give each broker its share of the bundles."""
    found = rest("GET", f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}/bundles")
    for number, (lower, upper) in enumerate(pairwise(found["boundaries"])):
        destination = brokers[number % len(brokers)].http_url.removeprefix("http://")
        rest(
            "PUT",
            f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}/{lower}_{upper}/unload?destinationBroker={destination}",
        )


def owners(brokers: list[Broker], topics: list[str]) -> dict[str, str]:
    """Return the owner's address of each topic."""
    return {
        topic: rest("GET", f"{brokers[0].http_url}/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"]
        for topic in topics
    }


class Processors:
    """Processor seconds of this process, of brokers and servers, and of the whole machine, since the constructor."""

    def __init__(self, brokers: list[Broker], cluster: BookKeeperCluster) -> None:
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


def longest_pause(times: list[float], killed_s: float) -> tuple[float, float]:
    """Return begin and end of the longest pause that ended after the kill."""
    return max(
        ((before, after) for before, after in pairwise(times) if after >= killed_s),
        key=lambda pause: pause[1] - pause[0],
    )


def measure(load: Load, brokers: list[Broker], cluster: BookKeeperCluster) -> dict[str, object]:
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
    options = parser.parse_args()
    with (
        bookkeeper_cluster(3, zookeeper_settings=("maxSessionTimeout=60000",)) as cluster,
        running_brokers(options.broker, options.brokers, options.session * 1000, cluster) as brokers,
    ):
        bundles = {"bundles": {"numBundles": options.bundles}}
        rest("PUT", f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}", bundles)
        known = brokers[:-1] if options.service_url == "others" else brokers
        load = Load(known, options.topics, options.interval)
        load.wait_for_receipts(0.0, DEADLINE_S)
        divide(brokers)
        load.wait_for_receipts(time.monotonic() + SETTLE_S, DEADLINE_S)
        found = measure(load, brokers, cluster)
        load.stop()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for number in range(options.brokers):
                for log in (cluster.directory / f"broker{number}").glob("*.log"):
                    shutil.copy(log, options.logs / f"broker{number}.log")
        print(json.dumps({**vars(options), "logs": "", **found}, indent=1), flush=True)


if __name__ == "__main__":
    main()
