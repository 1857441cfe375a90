"""Transactions under load, compared with the reference broker, and `pybroker.client` compared with the official Python
client.

    python -m benchmarks.transactions --reference DIR        rates and latencies, with the broker of DIR's `baseline` script
    python -m benchmarks.transactions --clients              the two clients with a pybroker
    python -m benchmarks.transactions --recovery [--ended 100000 --open 1000] [--reference DIR]
                                                             from an unload, and from `kill -9`, to the first message

The load is `pybroker.client` in this process, with `WORKERS` concurrent transactions; figures are medians of the
rounds. CPU time covers all threads of the broker. With `--sync` everything is synced to the disk, otherwise the
reference uses the settings of its distribution.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pathlib
import statistics
import sys
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable

import pulsar

from benchmarks import brokers
from benchmarks.brokers import Broker
from pybroker.client import OutgoingMessage, PulsarClient, Transaction, connect

WORKERS = 16
SIZES = (1, 10, 100)
PAYLOAD = b"x" * 100
LEAD_IN_S = 0.5
REFERENCE_SETTINGS = {"transactionCoordinatorEnabled": "true"}
OPEN_TIMEOUT_S = 3600.0
AHEAD_MESSAGES = 3000
"""Messages published in advance and not received by the acknowledging workers."""
Figures = dict[str, float]


class Load:
    def __init__(self, broker: Broker, seconds: float) -> None:
        self.broker = broker
        self.begins_s = time.monotonic() + LEAD_IN_S
        self.ends_s = self.begins_s + seconds
        self.messages = 0
        self.commits_ms: list[float] = []
        self.cpu_s = 0.0
        self.workers = WORKERS

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s

    def done(self, messages: int, commit_ms: float) -> None:
        if self.begins_s <= time.monotonic() < self.ends_s:
            self.messages += messages
            self.commits_ms.append(commit_ms)

    async def run(
        self, work: Callable[[], Awaitable[None]], beside: Callable[[], Awaitable[None]] | None = None
    ) -> Figures:
        """Run `WORKERS` copies of `work` until the time is over, and `beside` in parallel."""

        async def measured_cpu() -> None:
            await asyncio.sleep(LEAD_IN_S)
            before_s = self.broker.cpu_s() or 0.0
            await asyncio.sleep(self.ends_s - time.monotonic())
            self.cpu_s = (self.broker.cpu_s() or 0.0) - before_s

        async def worker() -> None:
            await work()
            self.workers -= 1

        async with asyncio.TaskGroup() as group:
            group.create_task(measured_cpu())
            if beside is not None:
                group.create_task(_coroutine(beside))
            for _ in range(WORKERS):
                group.create_task(worker())
        seconds = self.ends_s - self.begins_s
        commits = sorted(self.commits_ms)
        return {
            "messages_s": self.messages / seconds,
            "transactions_s": len(commits) / seconds,
            "commit_p50_ms": commits[len(commits) // 2],
            "commit_p99_ms": commits[len(commits) * 99 // 100],
            "cpu_us_each": self.cpu_s / len(commits) * 1e6,
        }


async def _coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def new_topic() -> str:
    return f"persistent://public/default/txn-{uuid.uuid4().hex[:12]}"


async def commit_ms(transaction: Transaction) -> float:
    started_s = time.monotonic()
    await transaction.commit()
    return (time.monotonic() - started_s) * 1000


async def publish(client: PulsarClient, broker: Broker, size: int, seconds: float) -> Figures:
    producer = await client.producer(new_topic())
    load = Load(broker, seconds)

    async def work() -> None:
        while not load.is_over:
            transaction = await client.transaction()
            receipts = [await producer.submit(OutgoingMessage(PAYLOAD), transaction) for _ in range(size)]
            for each in receipts:
                await each
            load.done(size, await commit_ms(transaction))

    figures = await load.run(work)
    await producer.close()
    return figures


async def acknowledge(client: PulsarClient, broker: Broker, size: int, seconds: float) -> Figures:
    topic = new_topic()
    consumer = await client.consumer(topic, "s", kind="shared", from_earliest=True)
    producer = await client.producer(topic)
    load = Load(broker, seconds)
    published = taken = 0

    async def work() -> None:
        nonlocal taken
        while not load.is_over:
            transaction = await client.transaction()
            messages = [await consumer.receive() for _ in range(size)]
            taken += size
            await consumer.ack(*messages, transaction=transaction)
            load.done(size, await commit_ms(transaction))

    async def fill() -> None:
        nonlocal published
        while load.workers:
            if published - taken > AHEAD_MESSAGES:
                await asyncio.sleep(0.01)
                continue
            receipts = [await producer.submit(OutgoingMessage(PAYLOAD)) for _ in range(500)]
            published += len(receipts)
            await receipts[-1]

    figures = await load.run(work, fill)
    await consumer.close()
    await producer.close()
    return figures


CASES = {"publish": publish, "acknowledge": acknowledge}


async def rates(targets: list[Broker], seconds: float, rounds: int) -> None:
    found: dict[tuple[str, int, str], list[Figures]] = {}
    async with contextlib.AsyncExitStack() as stack:
        clients = {each.name: await stack.enter_async_context(connect(each.service_url)) for each in targets}
        for broker in targets:
            await publish(clients[broker.name], broker, 10, 5.0)  # a JVM compiles its hot path first
        for _ in range(rounds):
            for name, case in CASES.items():
                for size in SIZES:
                    for broker in targets:
                        figures = await case(clients[broker.name], broker, size, seconds)
                        found.setdefault((name, size, broker.name), []).append(figures)
                        print(name, size, broker.name, shown(figures), flush=True)
    print("medians")
    for (name, size, target), all_of in found.items():
        print(name, size, target, shown(medians(all_of)))


def medians(all_of: list[Figures]) -> Figures:
    return {figure: statistics.median(each[figure] for each in all_of) for figure in all_of[0]}


def shown(figures: Figures) -> str:
    return "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())


# --- recovery --------------------------------------------------------------------------------------------------------------


async def prepare(broker: Broker, topic: str, ended: int, left_open: int) -> None:
    """Create `ended` ended transactions of one message each, every tenth aborted, and then `left_open` open ones. A
    subscription without a consumer retains the messages.
    """
    async with connect(broker.service_url) as client:
        producer = await client.producer(topic, batching=False)
        await (await client.consumer(topic, "keeps", from_earliest=True)).close()
        left = iter(range(ended))

        async def work() -> None:
            for number in left:
                transaction = await client.transaction()
                await producer.send(b"%d" % number, transaction=transaction)
                await (transaction.abort() if number % 10 == 9 else transaction.commit())

        async with asyncio.TaskGroup() as group:
            for _ in range(4 * WORKERS):
                group.create_task(work())
        await producer.send(b"in front of what is open")
        for _ in range(left_open):
            await producer.send(PAYLOAD, transaction=await client.transaction(OPEN_TIMEOUT_S))


async def first_message_ms(broker: Broker, topic: str) -> tuple[float, float]:
    """Return the milliseconds until a reader has the first message, and until a transaction has been opened and
    committed.
    """
    started_s = time.monotonic()
    async with connect(broker.service_url, operation_timeout_s=120) as client:
        reader = await client.reader(topic)
        assert await reader.receive(120)
        read_ms = (time.monotonic() - started_s) * 1000
        producer = await client.producer(topic)
        for _ in range(16):  # each coordinator once
            transaction = await client.transaction()
            await producer.send(PAYLOAD, transaction=transaction)
            await transaction.commit()
        return read_ms, (time.monotonic() - started_s) * 1000


def unload(broker: Broker, topic: str) -> None:
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/unload"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()


async def recovery(options: argparse.Namespace) -> None:
    topic = new_topic()
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(brokers.own_pybroker(options.sync))
        targets = [own.start()]
        if options.reference:
            targets.append(
                stack.enter_context(brokers.started_reference(options.reference, options.sync, REFERENCE_SETTINGS))
            )
        for broker in targets:
            started_s = time.monotonic()
            await prepare(broker, topic, options.ended, options.open)
            print(broker.name, f"prepared in {time.monotonic() - started_s:.1f} s", flush=True)
        for _ in range(options.rounds):
            for broker in targets:
                await asyncio.to_thread(unload, broker, topic)
                read_ms, _ = await first_message_ms(broker, topic)
                print(broker.name, f"unloaded: first message after {read_ms:,.0f} ms", flush=True)
        for _ in range(options.rounds):
            own.kill()
            broker = own.start()
            read_ms, committed_ms = await first_message_ms(broker, topic)
            print(
                f"pybroker kill -9: healthy after {own.starting_s * 1000:,.0f} ms, then the first message after {read_ms:,.0f} ms, "
                f"a transaction of each coordinator committed after {committed_ms:,.0f} ms",
                flush=True,
            )


# --- the clients -----------------------------------------------------------------------------------------------------------


async def own_client(broker: Broker, messages: int) -> tuple[Figures, Figures]:
    topic = new_topic()
    async with connect(broker.service_url) as client:
        consumer = await client.consumer(topic, "s", kind="shared", from_earliest=True)
        producer = await client.producer(topic)
        meter = Meter()
        for _ in range(messages):
            await producer.submit(OutgoingMessage(PAYLOAD))
        await producer.flush()
        produced = meter.figures(messages)
        meter = Meter()
        left = messages
        while left:
            found = await consumer.receive_some(min(left, 1000))
            left -= len(found)
            await consumer.ack(*found)
        return produced, meter.figures(messages)


def official_client(broker: Broker, messages: int) -> tuple[Figures, Figures]:
    topic = new_topic()
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
        )
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=1, block_if_queue_full=True
        )
        failures: list[object] = []

        def sent(result: object, _: object) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)

        meter = Meter()
        for _ in range(messages):
            producer.send_async(PAYLOAD, sent)
        producer.flush()
        assert not failures
        produced = meter.figures(messages)
        meter = Meter()
        for _ in range(messages):
            consumer.acknowledge(consumer.receive())
        return produced, meter.figures(messages)
    finally:
        client.close()


class Meter:
    def __init__(self) -> None:
        self._started_s, self._cpu_s = time.monotonic(), time.process_time()

    def figures(self, messages: int) -> Figures:
        return {
            "messages_s": messages / (time.monotonic() - self._started_s),
            "cpu_us": (time.process_time() - self._cpu_s) / messages * 1e6,
        }


def clients(options: argparse.Namespace) -> None:
    found: dict[str, list[Figures]] = {}
    with brokers.started_pybroker(options.sync) as broker:
        for number in range(options.rounds + 1):
            for name, figures in (
                ("pybroker.client", asyncio.run(own_client(broker, options.messages))),
                ("official client", official_client(broker, options.messages)),
            ):
                for what, each in zip(("produce", "consume"), figures, strict=True):
                    print(name, what, shown(each), flush=True)
                    if number:  # the first round is warm-up
                        found.setdefault(f"{name}, {what}", []).append(each)
    print("medians")
    for name, all_of in found.items():
        print(name, shown(medians(all_of)))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transactions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reference", type=pathlib.Path, metavar="DIR", help="holds the `baseline` script")
    parser.add_argument("--secs", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--clients", action="store_true")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--recovery", action="store_true")
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=1000)
    options = parser.parse_args(arguments)
    if options.clients:
        clients(options)
    elif options.recovery:
        asyncio.run(recovery(options))
    else:
        with contextlib.ExitStack() as stack:
            targets = [stack.enter_context(brokers.started_pybroker(options.sync))]
            if options.reference:
                targets.append(
                    stack.enter_context(brokers.started_reference(options.reference, options.sync, REFERENCE_SETTINGS))
                )
            asyncio.run(rates(targets, options.secs, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
