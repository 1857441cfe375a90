"""CPU time of the BookKeeper client per entry, against real bookies: adds, reads, and batch reads of 1 KiB.

    python -m benchmarks.bookkeeper_client --seconds 3 --repeat 3 --java

Prints CPU microseconds of this process per entry, and entries per second. `--java` measures the process of the Java
client, too, after a warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

import uvloop
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import BookKeeperCluster, bookkeeper_cluster

from pybroker.bookkeeper import AppendOutcome, BookKeeperClient, BookKeeperError, BookKeeperOptions, Quorums

ENTRY_BYTES = 1024
JAVA_LOAD = Path(__file__).parent / "BookKeeperLoad.java"
OUTSTANDING = (1, 10, 100, 500)
SHAPES = (Quorums(1, 1, 1), Quorums(3, 2, 2))


class Load:
    def __init__(self, outstanding: int, seconds: float) -> None:
        self.outstanding = outstanding
        self.end_s = time.perf_counter() + seconds
        self.count = 0
        self.pending = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.payload = random.randbytes(ENTRY_BYTES)

    def append_completed(
        self, first_entry_id: int, contexts: list[object], outcome: AppendOutcome, error: BookKeeperError | None
    ) -> None:
        if error is not None:
            raise error
        self.pending -= len(contexts)
        self.count += len(contexts)
        if time.perf_counter() < self.end_s:
            self.fill()
        elif self.pending == 0 and not self.done.done():
            self.done.set_result(None)

    def fill(self) -> None:
        while self.pending < self.outstanding:
            self.pending += 1
            self.writer.append(self.payload)

    async def run(self, client: BookKeeperClient) -> None:
        self.writer = await client.create_ledger({}, self)
        self.fill()
        await self.done


async def _measure(cluster: BookKeeperCluster, seconds: float) -> None:
    for quorums in SHAPES:
        name = f"E{quorums.ensemble_size} W{quorums.write_quorum} A{quorums.ack_quorum}"
        options = BookKeeperOptions(quorums=quorums)
        async with connected(cluster, options) as client:
            for outstanding in OUTSTANDING:
                load = Load(outstanding, seconds)
                started, cpu = time.perf_counter(), time.process_time()
                await load.run(client)
                _report(f"{name} add, {outstanding} outstanding", load.count, started, cpu)
            await client.close_ledger(load.writer)
            await _reads(cluster, options, load.writer.ledger_id, seconds, name)


async def _reads(
    cluster: BookKeeperCluster, options: BookKeeperOptions, ledger_id: int, seconds: float, name: str
) -> None:
    for use_batches in (False, True):
        if use_batches and options.quorums.write_quorum != options.quorums.ensemble_size:
            continue
        for size in (1, 100):
            async with connected(cluster, replace(options, use_batch_reads=use_batches)) as client:
                reader = await client.open_ledger(ledger_id)
                count, started, cpu = 0, time.perf_counter(), time.process_time()
                while time.perf_counter() - started < seconds:
                    first = count % max(1, reader.last_readable - size)
                    count += len(await reader.read(first, size, size * ENTRY_BYTES))
                _report(f"{name} read of {size}{', in batches' if use_batches else ''}", count, started, cpu)


def _report(name: str, count: int, started: float, cpu: float) -> None:
    used, took = time.process_time() - cpu, time.perf_counter() - started
    print(f"{name:40} {used * 1e6 / count:7.1f} us/entry {count / took:9.0f} entries/s", flush=True)


def _measure_java(cluster: BookKeeperCluster, seconds: float) -> None:
    for quorums in SHAPES:
        sizes = (quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum, *OUTSTANDING)
        for line in cluster.run_java(JAVA_LOAD, str(seconds), *map(str, sizes)):
            name, microseconds, rate = line.rsplit(" ", 2)
            shape = f"Java E{quorums.ensemble_size} W{quorums.write_quorum} A{quorums.ack_quorum} {name}"
            print(f"{shape:40} {float(microseconds):7.1f} us/entry {float(rate):9.0f} entries/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--java", action="store_true", help="measure the Java client, too")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    arguments = parser.parse_args()
    run = uvloop.run if arguments.loop == "uvloop" else asyncio.run
    with bookkeeper_cluster(3) as cluster:
        for _ in range(arguments.repeat):
            run(_measure(cluster, arguments.seconds))
            if arguments.java:
                _measure_java(cluster, arguments.seconds)


if __name__ == "__main__":
    main()
