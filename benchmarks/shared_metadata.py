"""Costs of metadata in ZooKeeper compared with SQLite, with a real server and real broker processes.

    python -m benchmarks.shared_metadata [--topics 10000] [--rounds 5] [--before SOURCE_TREE]

Prints operations of ZooKeeper per topic load and rollover; latencies without and with an added network delay of 1 ms in
each direction; the delay until a policy that was changed at one broker is enforced at another; start and memory with
many partitioned topics. `--before` is the folder `src` of another version, whose figures with SQLite are measured, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess
from tests.support.frame_proxy import Direction, frame_proxy
from tests.support.raw_client import RawClient
from tests.support.rest import call
from tests.support.zookeeper_server import ZooKeeperServer, zookeeper_server

from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient
from pybroker.zookeeper.operations import Operation

NAMESPACE = "/admin/v2/namespaces/public/default"
LOADS = 50
CHANGES = 20
ROLLOVERS = 10
ENTRIES_PER_LEDGER = 10
DELAY_S = 0.001
AT_ONCE = 500
_numbers = count()
_NAMES = {int(operation): operation.name.lower() for operation in Operation}


def shared_settings(address: str, **more: str) -> dict[str, str]:
    return {"metadataStoreUrl": f"zk:{address}", "ledgerStore": "local", "clusterName": "c1", **more}


async def new_chroot(server: ZooKeeperServer) -> str:
    chroot = f"/bench-{next(_numbers)}"
    client = ZooKeeperClient(ServerAddresses.parse(server.address), ClientOptions())
    await client.start(30)
    await client.create(f"{chroot}/admin/clusters/c1", b"{}", makes_parents=True)
    await client.close()
    return chroot


@asynccontextmanager
async def running(
    settings: dict[str, str], source: str = "", directory: Path | None = None
) -> AsyncIterator[BrokerProcess]:
    """Run a broker from this source tree or from `source`."""
    with tempfile.TemporaryDirectory(prefix="shared-metadata-") as temporary:
        broker = BrokerProcess(directory or Path(temporary), settings)
        if source:
            broker.environment = {"PYTHONPATH": source}
        await asyncio.to_thread(broker.start)
        try:
            yield broker
        finally:
            await asyncio.to_thread(broker.stop)


def summary(values_ms: list[float]) -> str:
    ordered = sorted(values_ms)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return f"median {statistics.median(ordered):.1f}, 95 % {last:.1f}, max {ordered[-1]:.1f} ms"


def timed(act: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    act()
    return (time.perf_counter() - began_s) * 1000


def load_topics(broker: BrokerProcess, topics: int) -> list[float]:
    """Return the latencies in ms of the first producer of new topics."""
    took_ms = []
    with closing(RawClient(broker.url)) as client:
        client.connect()
        for number in range(topics):
            topic = f"persistent://public/default/load-{next(_numbers)}"

            def attach(topic: str = topic, number: int = number) -> None:
                answer = client.request(pb.BaseCommand.PRODUCER, topic=topic, producer_id=number)
                assert answer["type"] == "PRODUCER_SUCCESS", answer

            took_ms.append(timed(attach))
    return took_ms


def change_policies(broker: BrokerProcess, changes: int) -> list[float]:
    def change(value: int) -> None:
        assert call(f"{broker.http_url}{NAMESPACE}/maxConsumersPerTopic", "POST", body=value).status == 204

    return [timed(lambda value=value: change(value)) for value in range(1, changes + 1)]  # type: ignore[misc]


async def operations(server: ZooKeeperServer) -> None:
    """Count the requests of a broker to ZooKeeper."""
    host, port = "127.0.0.1", server.port
    counted: Counter[str] = Counter()

    def note(direction: Direction, frame: bytes) -> bool:
        number = int.from_bytes(frame[4:8], "big", signed=True)
        if direction is Direction.REQUEST and number not in (0, Operation.PING):
            counted[_NAMES.get(number, str(number))] += 1
        return False

    async with frame_proxy(host, port) as proxy:
        rollover = {
            "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        }
        address = f"127.0.0.1:{proxy.port}{await new_chroot(server)}"
        async with running(shared_settings(address, **rollover)) as broker:
            await asyncio.to_thread(load_topics, broker, 1)
            proxy.cut_at = note
            await asyncio.to_thread(load_topics, broker, LOADS)
            print(f"operations per first load of a topic: {_per(counted, LOADS)}")
            counted.clear()
            await asyncio.to_thread(_roll_over, broker)
            print(f"operations per rollover: {_per(counted, ROLLOVERS)}")
            counted.clear()
            await asyncio.to_thread(change_policies, broker, LOADS)
            print(f"operations per change of a policy: {_per(counted, LOADS)}")


def _per(counted: Counter[str], times: int) -> str:
    return ", ".join(f"{name} {number / times:.2f}" for name, number in sorted(counted.items())) or "none"


def _roll_over(broker: BrokerProcess) -> None:
    with closing(RawClient(broker.url)) as client:
        client.connect()
        client.open_producer("persistent://public/default/load-0")
        for first in range(0, ROLLOVERS * ENTRIES_PER_LEDGER, ENTRIES_PER_LEDGER):
            client.publish(1, ENTRIES_PER_LEDGER, first)
            time.sleep(0.05)


async def latencies(server: ZooKeeperServer, before: str, rounds: int) -> None:
    """Measure first loads of topics and changes of policies."""
    loads: dict[str, list[float]] = {}
    changes: dict[str, list[float]] = {}

    async def measure(name: str, settings: dict[str, str], source: str = "") -> None:
        async with running(settings, source) as broker:
            await asyncio.to_thread(load_topics, broker, 5)
            loads.setdefault(name, []).extend(await asyncio.to_thread(load_topics, broker, LOADS))
            changes.setdefault(name, []).extend(await asyncio.to_thread(change_policies, broker, LOADS))

    async with frame_proxy("127.0.0.1", server.port) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        for _ in range(rounds):
            if before:
                await measure("SQLite before", {}, before)
            await measure("SQLite", {})
            await measure("ZooKeeper", shared_settings(f"{server.address}{await new_chroot(server)}"))
            proxy.delay_s = DELAY_S
            await measure("ZooKeeper + 1 ms each way", shared_settings(f"{address}{await new_chroot(server)}"))
            proxy.delay_s = 0
    for title, found in (("first load of a topic", loads), ("change of a policy", changes)):
        for name, values in found.items():
            print(f"{title}, {name}: {summary(values)}")


async def enforcement(server: ZooKeeperServer) -> None:
    """Measure the time from a policy change at one broker until another broker rejects, or accepts, a second
    producer.
    """
    address = f"{server.address}{await new_chroot(server)}"
    async with running(shared_settings(address)) as one, running(shared_settings(address)) as two:
        took_ms = await asyncio.to_thread(_enforced, one, two)
        print(f"policy changed at one broker, enforced at another ({CHANGES} changes): {summary(took_ms)}")


def _enforced(one: BrokerProcess, two: BrokerProcess) -> list[float]:
    topic, took_ms = "persistent://public/default/limited", []
    with closing(RawClient(two.url)) as first, closing(RawClient(two.url)) as second:
        first.connect()
        first.open_producer(topic)
        second.connect()
        producer_ids = count(1)
        for number in range(CHANGES):
            limit = 1 if number % 2 == 0 else 0
            assert call(f"{one.http_url}{NAMESPACE}/maxProducersPerTopic", "POST", body=limit).status == 204
            began_s = time.perf_counter()
            while True:
                producer_id = next(producer_ids)
                answer = second.request(pb.BaseCommand.PRODUCER, topic=topic, producer_id=producer_id)
                if answer["type"] == "PRODUCER_SUCCESS":
                    second.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=producer_id)
                if (answer["type"] == "PRODUCER_SUCCESS") == (limit == 0):
                    break
            took_ms.append((time.perf_counter() - began_s) * 1000)
    return took_ms


_FILL = """
import asyncio, sys
from pathlib import Path
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

async def main():
    data = Path(sys.argv[1], "data")
    store = await SqliteMetadataStore.open(data / "metadata.db", None, data / "metadata.end")
    for number in range(int(sys.argv[2])):
        path = f"/admin/partitioned-topics/public/default/persistent/topic-{number}"
        await store.put(path, b'{"partitions":3,"deleted":false}')
    await store.close()

asyncio.run(main())
"""


def fill_embedded(directory: Path, topics: int, source: str) -> None:
    """Create partitioned topics in the SQLite store with the code of the source tree that will use it, because layouts
    differ.
    """
    environment = {**os.environ, **({"PYTHONPATH": source} if source else {})}
    subprocess.run([sys.executable, "-c", _FILL, str(directory), str(topics)], env=environment, check=True)


async def fill(store: MetadataStore, topics: int) -> None:
    document = json.dumps({"partitions": 3, "deleted": False}).encode()
    paths = [f"/admin/partitioned-topics/public/default/persistent/topic-{number}" for number in range(topics)]
    for start in range(0, topics, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for path in paths[start : start + AT_ONCE]:
                group.create_task(_put(store, path, document))


async def _put(store: MetadataStore, path: str, value: bytes) -> None:
    await store.put(path, value)


def made(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory


async def starts(server: ZooKeeperServer, topics: int, before: str, rounds: int) -> None:
    """Measure the start until ready, and the resident memory then, with many partitioned topics."""
    took_ms: dict[str, list[float]] = {}
    memory_mb: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="shared-metadata-") as temporary:
        variants: list[tuple[str, dict[str, str], str, Path]] = []
        for name, source in (("SQLite before", before), ("SQLite", "")):
            if name == "SQLite" or before:
                directory = made(Path(temporary), name.replace(" ", "-"))
                async with running({}, source, directory):
                    pass
                await asyncio.to_thread(fill_embedded, directory, topics, source)
                variants.append((name, {}, source, directory))
        address = f"{server.address}{await new_chroot(server)}"
        directory = made(Path(temporary), "zookeeper")
        async with running(shared_settings(address), "", directory):
            pass
        shared = await ZooKeeperMetadataStore.open(ServerAddresses.parse(address), ClientOptions(), 30)
        await fill(shared, topics)
        await shared.close()
        variants.append(("ZooKeeper", shared_settings(address), "", directory))
        for _ in range(rounds):
            for name, settings, source, directory in variants:
                began_s = time.perf_counter()
                async with running(settings, source, directory) as broker:
                    took_ms.setdefault(name, []).append((time.perf_counter() - began_s) * 1000)
                    memory_mb.setdefault(name, []).append(broker.resident_bytes() / (1 << 20))
    for name, values in took_ms.items():
        memory = f"memory {statistics.median(memory_mb[name]):.0f} MB"
        print(f"start with {topics:,} partitioned topics, {name}: {summary(values)}, {memory}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", default="", help="an absolute path")
    parsed = parser.parse_args()
    before = parsed.before
    with zookeeper_server() as server:
        await operations(server)
        await enforcement(server)
        await latencies(server, before, parsed.rounds)
        await starts(server, parsed.topics, before, parsed.rounds)


if __name__ == "__main__":
    asyncio.run(main())
