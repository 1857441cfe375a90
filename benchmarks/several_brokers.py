"""Processor time of brokers for each message when one broker owns all topics and when two share them, on the same bookies.

    python -m benchmarks.several_brokers --rounds 6

ZooKeeper, three bookies and two brokers run on this machine. A round measures four placements of the topics for each case: all at
the first broker, divided evenly, all at the second broker, divided evenly. Only the topics move between two placements: processes,
clients and connections stay, so a round is short and its placements have the same conditions. The processor time of the brokers
that own topics is divided by the number of messages with a receipt. Each message has 1 KiB.

The brokers' fixed cost, that of the broker without topics in the same round, is subtracted, because it depends on time and not on
messages; it is reported for each second. The ratio of a round is the mean of both divided placements by the mean of both others.
Two control pairs show the chance of the measurement: the first broker by the second one, and the divided placement by its
repetition.

A broker that receives several batches at once needs less time for each. So the cases with one batch on its way compare the same
steps. The case with many batches also contains the smaller number of batches that each of two brokers finds at once, which the
number of wake-ups (voluntary context switches of all threads) for each batch shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pulsar
from tests.bookkeeper.service_gaps import NAMESPACE, Broker, rest, running_brokers
from tests.support.bookkeeper_cluster import bookkeeper_cluster

from benchmarks.processor_time import processor_seconds

TOPICS = 16
SESSION_MS = 30_000
WARM_S = 1.5
FIRST, SECOND, BOTH = (0,), (1,), (0, 1)
PLACEMENTS = (FIRST, BOTH, SECOND, BOTH)


class Case(NamedTuple):
    batch: int
    on_the_way: int
    """Batches of all topics without a receipt."""

    def __str__(self) -> str:
        size = f", {self.batch} in a batch" if self.batch > 1 else ""
        return f"publish 1 KiB{size}, {self.on_the_way} on the way"


CASES = (Case(1, 1), Case(100, 1), Case(100, 32))


class Slice(NamedTuple):
    """One measurement of a placement."""

    seconds: float
    messages: int
    owners: int
    used_s: float
    """Processor time of the brokers with topics."""
    idle_s: float
    """Of the broker without topics; 0 if both have topics."""
    wake_ups: int
    """Of the brokers with topics."""

    def us_per_message(self, idle: float) -> float:
        """Return the processor time for a message without the fixed cost.

        `idle`: processor seconds of an idle broker per second.
        """
        return (self.used_s - self.owners * idle * self.seconds) / self.messages * 1e6


class Publishing:
    """A thread that publishes to all topics in turn while it is switched on."""

    def __init__(self, url: str, topics: Sequence[str], case: Case) -> None:
        self.receipts = 0
        self._case = case
        self._room = threading.Semaphore(case.on_the_way)
        self._on = threading.Event()
        self._ends = False
        self._client = pulsar.Client(url, io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._producers = [
            self._client.create_producer(
                topic,
                send_timeout_millis=0,
                batching_enabled=case.batch > 1,
                batching_max_messages=max(case.batch, 2),
                batching_max_publish_delay_ms=1_000,  # only full batches
            )
            for topic in topics
        ]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def switch(self, *, on: bool) -> None:
        if on:
            self._on.set()
        else:
            self._on.clear()

    def _run(self) -> None:
        payload = b"x" * 1024
        last = self._case.batch - 1
        while not self._ends:
            for producer in self._producers:
                self._on.wait()
                self._room.acquire()
                for number in range(self._case.batch):
                    producer.send_async(payload, self._answered_last if number == last else self._answered)

    def _answered(self, result: pulsar.Result, _: pulsar.MessageId) -> None:
        self.receipts += result == pulsar.Result.Ok

    def _answered_last(self, result: pulsar.Result, where: pulsar.MessageId) -> None:
        self._answered(result, where)
        self._room.release()

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


def wake_ups(process: int) -> int:
    """Return the voluntary context switches of all threads of a process."""
    found = 0
    for status in Path(f"/proc/{process}/task").glob("*/status"):
        with suppress(OSError):  # the thread has ended
            found += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def measured(load: Publishing, brokers: Sequence[Broker], owners: Sequence[int], seconds: float) -> Slice:
    """Measure one placement."""
    load.switch(on=True)
    time.sleep(WARM_S)
    woken = sum(wake_ups(brokers[number].pid) for number in owners)
    before = [processor_seconds(each.pid) for each in brokers]
    began_s, receipts = time.monotonic(), load.receipts
    time.sleep(seconds)
    used = [processor_seconds(each.pid) - then for each, then in zip(brokers, before, strict=True)]
    receipts, took_s = load.receipts - receipts, time.monotonic() - began_s
    woken = sum(wake_ups(brokers[number].pid) for number in owners) - woken
    load.switch(on=False)
    used_s = sum(used[number] for number in owners)
    return Slice(took_s, receipts, len(owners), used_s, sum(used) - used_s, woken)


def spread(ratios: Sequence[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def idle_of(slices: Sequence[Slice]) -> float:
    """Return the processor seconds of an idle broker per second, in one round."""
    single = [each for each in slices if each.owners == 1]
    return sum(each.idle_s for each in single) / sum(each.seconds for each in single)


def figures(case: Case, rounds: Sequence[Sequence[Slice]]) -> dict[str, object]:
    """Return the figures of one case. Each round has a slice for each of `PLACEMENTS`."""
    us = [[each.us_per_message(idle_of(slices)) for each in slices] for slices in rounds]
    one = [(first + second) / 2 for first, _, second, _ in us]
    two = [(before + after) / 2 for _, before, _, after in us]
    found = [each for slices in rounds for each in slices]
    woken = {count: [each for each in found if each.owners == count] for count in (1, 2)}
    return {
        "messages a second": round(statistics.median(each.messages / each.seconds for each in found)),
        "one broker, us": round(statistics.median(one), 2),
        "two brokers, us": round(statistics.median(two), 2),
        "ratio": spread([after / before for before, after in zip(one, two, strict=True)]),
        "control: first by second broker": spread([first / second for first, _, second, _ in us]),
        "control: divided by divided": spread([before / after for _, before, _, after in us]),
        "wake-ups for a batch": {
            count: round(statistics.median(each.wake_ups / each.messages * case.batch for each in slices), 2)
            for count, slices in woken.items()
        },
        "fixed cost of a broker, ms for each second": round(1e3 * statistics.median(map(idle_of, rounds)), 2),
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
                idle = idle_of(slices[-1])
                print(case, *(f"{each.us_per_message(idle):.2f}" for each in slices[-1]), flush=True)
        for load in loads.values():
            load.close()
    for case, rounds in found.items():
        print(json.dumps({"case": str(case), **figures(case, rounds)}), flush=True)


if __name__ == "__main__":
    main()
