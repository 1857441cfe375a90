"""Cost of scraping `/metrics` with many topics: duration, page size, and the longest block of the event loop.

    python -m benchmarks.metrics_scrape                    10,000 topics of one subscription and one message each
    python -m benchmarks.metrics_scrape --topics 1000 --set exposeConsumerLevelMetricsInPrometheus=true

The broker runs in this process, with stores in memory and real HTTP; the scraper is another process. A task scheduled
every millisecond measures the delay of a client's message. The rate sampler is measured in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable

from pybroker import broker_process
from pybroker.config import load
from pybroker.model.names import TopicName
from pybroker.runtime.runtime import Runtime

TICK_S = 0.001
SCRAPES = 3
SETTLE_S = 0.05
"""Includes work after a scrape, such as the release of its memory."""
COLLECTED_S = 3
"""A garbage collection follows a burst of loads within this time."""
TOPICS_PER_GROUP = 100

# Reads a page for each line `URL ENCODING` on stdin and prints duration and bytes.
_SCRAPER = """
import sys, time, urllib.request
for line in sys.stdin:
    url, encoding = line.split()
    started_s, size = time.perf_counter(), 0
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": encoding})) as answer:
        while part := answer.read(1 << 20):
            size += len(part)
    print(time.perf_counter() - started_s, size, flush=True)
"""


class StallMeter:
    """The delay of a task that is scheduled every TICK_S seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0
        """CPU time of the loop, which excludes other processes."""

    async def run(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            due_s, cpu_s = time.perf_counter() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - cpu_s)
            self.longest_s = max(self.longest_s, time.perf_counter() - due_s)


async def load_topics(broker: broker_process.Broker, count: int) -> None:
    for start in range(0, count, TOPICS_PER_GROUP):
        async with asyncio.TaskGroup() as group:
            for index in range(start, min(start + TOPICS_PER_GROUP, count)):
                group.create_task(load_topic(broker, f"metrics-{index:05d}"))


async def load_topic(broker: broker_process.Broker, name: str) -> None:
    topic = await broker.service.topics.get(TopicName.parse(name), may_create=True)
    await topic.subscription("s", True, True, {})


class Scraper:
    """The scraping process. Started before the topics exist, because forking a large process is slow."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def start() -> Scraper:
        pipe = asyncio.subprocess.PIPE
        return Scraper(await asyncio.create_subprocess_exec(sys.executable, "-c", _SCRAPER, stdin=pipe, stdout=pipe))

    async def scrape(self, url: str, encoding: str) -> tuple[float, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{url} {encoding}\n".encode())
        took_s, size = (await self._process.stdout.readline()).split()
        return float(took_s), int(size)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def report(name: str, action: Callable[[], Awaitable[str]]) -> None:
    details: list[str] = []
    stalls = StallMeter()
    for _ in range(SCRAPES):
        gc.collect()
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(stalls.run(is_over))
            details.append(await action())
            await asyncio.sleep(SETTLE_S)
            is_over.set()
    stall = f"longest stall {stalls.longest_s * 1000:.1f} ms, {stalls.longest_cpu_s * 1000:.1f} ms of CPU"
    print(f"{name:<24} {min(details)}  {stall}", flush=True)


async def run(arguments: argparse.Namespace) -> None:
    settings = {"ledgerStore": "memory", "metadataStore": "memory", "brokerServicePort": "0", "webServicePort": "0"}
    settings |= dict(each.split("=", 1) for each in arguments.set)
    broker = broker_process.Broker(Runtime(load(None, {}, settings).config), broker_process.OwnProcess())
    await broker.start()
    broker.own_collector()
    scraper = await Scraper.start()
    try:
        await load_topics(broker, arguments.topics)
        await asyncio.sleep(COLLECTED_S)
        rates = broker.http.rates
        await rates.sample()
        url = f"http://127.0.0.1:{broker.http.port}/metrics"

        async def idle() -> str:
            await asyncio.sleep(1)
            return "1.000 s"

        async def one(encoding: str) -> str:
            started_s = time.process_time()
            took_s, size = await scraper.scrape(url, encoding)
            cpu_s = time.process_time() - started_s
            return f"{took_s:.3f} s  {size / 1e6:.1f} MB  {cpu_s:.3f} s of CPU"

        async def sample() -> str:
            started_s = time.perf_counter()
            await rates.sample()
            return f"{time.perf_counter() - started_s:.3f} s"

        print(f"{arguments.topics} topics of one subscription each")
        await report("nothing", idle)
        await report("scrape", lambda: one("identity"))
        await report("scrape, gzip", lambda: one("gzip"))
        await report("rate sampler", sample)
    finally:
        await scraper.close()
        await broker.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metrics_scrape",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    broker_process.tune_process()
    with asyncio.Runner(loop_factory=broker_process.loop_factory()) as runner:
        runner.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
