"""Processor time of brokers for each message when one broker owns all topics and when two share them, on the same bookies.

    python -m benchmarks.several_brokers --rounds 6

ZooKeeper, three bookies and two brokers run on this machine. A round measures four placements of the topics for each case: all at
the first broker, divided evenly, all at the second broker, divided evenly. Only the topics move between two placements: processes,
clients and connections stay, so a round is short and its placements have the same conditions. The processor time of the brokers
that own topics is divided by the number of messages with a receipt. Each message has 1 KiB.

The ratio of a round is the mean of both divided placements by the mean of both others. Two control pairs show the chance of the
measurement: the first broker by the second one, and the divided placement by its repetition. The processor time of the broker
without topics is reported for each second: two brokers cost that much more, whatever the number of messages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import pulsar
from tests.bookkeeper.service_gaps import NAMESPACE, Broker, rest, running_brokers
from tests.support.bookkeeper_cluster import bookkeeper_cluster

from benchmarks.processor_time import processor_seconds

TOPICS = 16
SESSION_MS = 30_000
WARM_S = 1.5
PENDING = 200
"""Messages without a receipt of each producer."""
FIRST, SECOND, BOTH = (0,), (1,), (0, 1)
PLACEMENTS = (FIRST, BOTH, SECOND, BOTH)


class Case(NamedTuple):
    batch: int
    rate: int
    """Messages per second of all topics; 0 as many as the client can send."""

    def __str__(self) -> str:
        size = f", {self.batch} in a batch" if self.batch > 1 else ""
        return f"publish 1 KiB{size}, {f'{self.rate:,} messages a second' if self.rate else 'without a limit'}"


CASES = (Case(1, 2_000), Case(100, 8_000), Case(100, 0))


class Slice(NamedTuple):
    """One measurement of a placement."""

    us_per_message: float
    messages_per_s: float
    idle_us_per_s: float
    """Of the broker without topics; 0 if both have topics."""


class Publishing:
    """A thread that publishes to all topics while it is switched on, with at most `PENDING` messages of each on their way."""

    def __init__(self, url: str, topics: Sequence[str], case: Case) -> None:
        self.receipts = 0
        self._case = case
        self._room = {topic: threading.Semaphore(PENDING) for topic in topics}
        self._on = threading.Event()
        self._ends = False
        self._client = pulsar.Client(url, io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._producers = {
            topic: self._client.create_producer(
                topic,
                send_timeout_millis=0,
                batching_enabled=case.batch > 1,
                batching_max_messages=max(case.batch, 2),
                batching_max_publish_delay_ms=1_000,  # only full batches
            )
            for topic in topics
        }
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def switch(self, *, on: bool) -> None:
        if on:
            self._on.set()
        else:
            self._on.clear()

    def _run(self) -> None:
        payload = b"x" * 1024
        pause_s = self._case.batch / self._case.rate if self._case.rate else 0.0
        next_s = time.monotonic()
        while not self._ends:
            for topic, producer in self._producers.items():
                if not self._on.is_set():
                    self._on.wait()
                    next_s = time.monotonic()
                room = self._room[topic]
                for _ in range(self._case.batch):
                    room.acquire()
                    producer.send_async(payload, lambda result, _, room=room: self._answered(result, room))
                next_s += pause_s
                if (ahead_s := next_s - time.monotonic()) > 0:
                    time.sleep(ahead_s)

    def _answered(self, result: pulsar.Result, room: threading.Semaphore) -> None:
        self.receipts += result == pulsar.Result.Ok
        room.release()

    def close(self) -> None:
        self._ends = True
        self._on.set()
        self._thread.join()
        self._client.close()


def one_topic_of_each_bundle(url: str) -> dict[str, str]:
    """Return a topic by bundle, so that the topics can be divided evenly."""
    rest("PUT", f"{url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": TOPICS}})
    found: dict[str, str] = {}
    number = 0
    while len(found) < TOPICS:
        topic = f"persistent://{NAMESPACE}/t{number}"
        found.setdefault(rest("GET", f"{url}/lookup/v2/topic/{topic.replace('://', '/')}/bundle"), topic)
        number += 1
    return found


def place(brokers: Sequence[Broker], bundles: Sequence[str], owners: Sequence[int]) -> None:
    """Divide the bundles among the owners."""
    for number, bundle in enumerate(bundles):
        destination = brokers[owners[number % len(owners)]].http_url.removeprefix("http://")
        path = f"/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={destination}"
        rest("PUT", f"{brokers[0].http_url}{path}")


def measured(load: Publishing, brokers: Sequence[Broker], owners: Sequence[int], seconds: float) -> Slice:
    """Measure one placement."""
    load.switch(on=True)
    time.sleep(WARM_S)
    before = [processor_seconds(each.pid) for each in brokers]
    began_s, receipts = time.monotonic(), load.receipts
    time.sleep(seconds)
    used = [processor_seconds(each.pid) - then for each, then in zip(brokers, before, strict=True)]
    receipts, took_s = load.receipts - receipts, time.monotonic() - began_s
    load.switch(on=False)
    idle_s = sum(each for number, each in enumerate(used) if number not in owners)
    return Slice((sum(used) - idle_s) / receipts * 1e6, receipts / took_s, idle_s / took_s * 1e6)


def spread(ratios: Sequence[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def figures(rounds: Sequence[Sequence[Slice]]) -> dict[str, object]:
    """Return the figures of one case. Each round has a slice for each of `PLACEMENTS`."""
    us = [[each.us_per_message for each in slices] for slices in rounds]
    one = [(first + second) / 2 for first, _, second, _ in us]
    two = [(before + after) / 2 for _, before, _, after in us]
    idle = [each.idle_us_per_s for slices in rounds for each in slices if each.idle_us_per_s]
    return {
        "messages a second": round(statistics.median(each.messages_per_s for slices in rounds for each in slices)),
        "one broker, us": round(statistics.median(one), 2),
        "two brokers, us": round(statistics.median(two), 2),
        "ratio": spread([after / before for before, after in zip(one, two, strict=True)]),
        "control: first by second broker": spread([first / second for first, _, second, _ in us]),
        "control: divided by divided": spread([before / after for _, before, _, after in us]),
        "broker without topics, us for each second": round(statistics.median(idle)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3, help="of each placement")
    options = parser.parse_args()
    found: dict[Case, list[list[Slice]]] = {case: [] for case in CASES}
    with (
        bookkeeper_cluster(3, zookeeper_settings=("maxSessionTimeout=60000",)) as cluster,
        running_brokers("pybroker", 2, SESSION_MS, cluster) as brokers,
    ):
        topics = one_topic_of_each_bundle(brokers[0].http_url)
        url = ",".join([brokers[0].url, *(each.url.removeprefix("pulsar://") for each in brokers[1:])])
        loads = {case: Publishing(url, list(topics.values()), case) for case in CASES}
        for _ in range(options.rounds):
            for slices in found.values():
                slices.append([])
            for owners in PLACEMENTS:
                place(brokers, list(topics), owners)
                for case, load in loads.items():
                    found[case][-1].append(measured(load, brokers, owners, options.seconds))
            for case, slices in found.items():
                print(case, *(f"{each.us_per_message:.2f}" for each in slices[-1]), flush=True)
        for load in loads.values():
            load.close()
    for case, rounds in found.items():
        print(json.dumps({"case": str(case), **figures(rounds)}), flush=True)


if __name__ == "__main__":
    main()
