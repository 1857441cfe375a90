"""Effect of a stuck key or consumer of a Key_Shared subscription on the other keys and consumers.

Three consumers of the official client in their own processes, a backlog of small unbatched messages. A quarter of them
have the *hot* key, the others 1,999 keys. The consumer `first` subscribes before the others, and:

    nothing         consumes like the others
    stuck hash      holds a message of the hot key, whose hash has moved to another consumer; consumes everything else
    stuck consumer  consumes nothing
    slow consumer   consumes a message every 5 ms, with a queue of 10

The rate is that of the other two consumers, for messages of the 1,999 keys. Each case runs with the default look-ahead
limit and with a limit of 20,000 bytes; rounds alternate.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pulsar

from benchmarks.brokers import Broker, started_pybroker
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.model.hashing import key_hash

SUBSCRIPTION = "s"
CASES = ("nothing", "stuck hash", "stuck consumer", "slow consumer")
BOUNDS = {"default": {}, "20,000 bytes": {"keySharedLookAheadMaxBytesPerSubscription": "20000"}}
OTHERS = ("second", "third")
KEYS = 1999
CANDIDATES = [f"hot-{index}" for index in range(60)]
QUEUE, SMALL_QUEUE = 1000, 10
SLOW_S = 0.005
QUIET_MS = 3000
"""After this time without messages, a consumer has received all of its messages."""
TIMEOUT_S = 100.0


@dataclass(frozen=True)
class Taker:
    """The behaviour of one consumer process."""

    url: str
    topic: str
    name: str
    queue: int
    pause_s: float


def take(taker: Taker, pipe: Connection) -> None:
    """Subscribe, keep messages of candidate keys unacknowledged until a command arrives, then consume the rest. Report
    the number of messages of the other keys over time.

    Commands: the key to keep permanently ("" for none), then "start" or "idle".
    """
    client = pulsar.Client(taker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    consumer = client.subscribe(
        taker.topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.KeyShared,
        consumer_name=taker.name,
        receiver_queue_size=taker.queue,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    held = [consumer.receive() for _ in CANDIDATES] if taker.name == "first" else []
    pipe.send("ready")
    stuck = pipe.recv()
    for message in held:
        if message.partition_key() != stuck:
            consumer.acknowledge(message)
    if pipe.recv() == "start":
        pipe.send(_take_all(consumer, taker.pause_s))
    pipe.recv()  # until the held messages are no longer needed
    client.close()


def _take_all(consumer: Any, pause_s: float) -> tuple[int, float]:
    started_s = last_s = time.monotonic()
    count = 0
    while True:
        try:
            message = consumer.receive(QUIET_MS)
        except pulsar.Timeout:
            return count, last_s - started_s
        consumer.acknowledge(message)
        if not message.partition_key().startswith("hot"):
            count += 1
            last_s = time.monotonic()
        if pause_s:
            time.sleep(pause_s)
            if last_s - started_s > TIMEOUT_S / 4:
                return count, last_s - started_s


def run(broker: Broker, case: str, messages: int, number: int) -> dict[str, float]:
    topic = f"persistent://public/default/stuck-{number}"
    client = pulsar.Client(broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []

    def join(name: str) -> None:
        slow = name == "first" and case == "slow consumer"
        small = name == "first" and case in ("slow consumer", "stuck consumer")
        ours, theirs = context.Pipe()
        taker = Taker(broker.service_url, topic, name, SMALL_QUEUE if small else QUEUE, SLOW_S if slow else 0.0)
        process = context.Process(target=take, args=(taker, theirs), daemon=True)
        process.start()
        processes.append(process)
        pipes[name] = ours

    try:
        publish(client, topic, CANDIDATES)
        join("first")
        _expect(pipes["first"], "ready")
        for name in OTHERS:
            join(name)
            _expect(pipes[name], "ready")
        hot = _draining_key(broker, topic)
        for pipe in pipes.values():
            pipe.send(hot if case == "stuck hash" else "")
        time.sleep(1)  # waits for acknowledgements in transit
        publish(client, topic, [hot if index % 4 == 0 else f"key-{index % KEYS}" for index in range(messages)])
        for name, pipe in pipes.items():
            pipe.send("idle" if name == "first" and case == "stuck consumer" else "start")
        rates = {}
        for name in OTHERS:
            if not pipes[name].poll(TIMEOUT_S):
                raise TimeoutError(f"{name} got messages for longer than {TIMEOUT_S} s")
            count, took_s = pipes[name].recv()
            rates[name] = count / took_s
        return rates
    finally:
        for pipe in pipes.values():
            pipe.send("end")
        for process in processes:
            process.join(3)
            process.kill()
        client.close()


def publish(client: pulsar.Client, topic: str, keys: list[str]) -> None:
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=10_000
    )
    for index, key in enumerate(keys):
        producer.send_async(b"%d" % index, _ignore, partition_key=key)
    producer.flush()
    producer.close()


def _ignore(*_: object) -> None:
    """Ignore the receipt of a message: `flush` waits for all."""


def _draining_key(broker: Broker, topic: str) -> str:
    """Return a candidate key whose hash has moved away from `first`, which holds a message of it."""
    with urllib.request.urlopen(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats") as answer:
        consumers = json.loads(answer.read())["subscriptions"][SUBSCRIPTION]["consumers"]
    (first,) = (each for each in consumers if each["consumerName"] == "first")
    draining = {each["hash"] for each in first["drainingHashes"]}
    hashes = ConsistentHashSelector(1).sticky_hashes([key_hash(key.encode()) for key in CANDIDATES])
    return next(key for key, each in zip(CANDIDATES, hashes, strict=True) if each in draining)


def _expect(pipe: Connection, what: str) -> None:
    if not pipe.poll(TIMEOUT_S) or pipe.recv() != what:
        raise RuntimeError(f"a consumer did not report {what!r}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--bounds", nargs="+", choices=BOUNDS, default=list(BOUNDS))
    asked = parser.parse_args(arguments)
    number = 0
    for bound in asked.bounds:
        seen: dict[str, dict[str, list[float]]] = {}
        with started_pybroker(journal_sync_data=False, settings=BOUNDS[bound]) as broker:
            for _ in range(asked.rounds):
                for case in asked.only:
                    number += 1
                    for name, rate in run(broker, case, asked.messages, number).items():
                        seen.setdefault(case, {}).setdefault(name, []).append(rate)
        rates = {
            case: {name: statistics.median(each) for name, each in by_name.items()} for case, by_name in seen.items()
        }
        for case, by_name in rates.items():
            shown = "   ".join(
                f"{name} {rate:6.0f}/s ({rate / rates[asked.only[0]][name]:.2f})" for name, rate in by_name.items()
            )
            print(f"{bound:13} {case:15} {shown}", flush=True)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()), flush=True)


if __name__ == "__main__":
    main()
