"""Processor time of brokers for each message with one broker and with two, on the same bookies.

    python -m benchmarks.several_brokers --rounds 2

ZooKeeper and three bookies run on this machine. Rounds alternate: one broker, two brokers, one broker. The topics of a round are
divided evenly among its brokers, and the sum of the processor time of all brokers is divided by the number of messages with a
receipt. Each message has 1 KiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time

import pulsar
from tests.bookkeeper.service_gaps import NAMESPACE, Broker, divide, rest, running_brokers
from tests.support.bookkeeper_cluster import bookkeeper_cluster

from benchmarks.processor_time import processor_seconds

TOPICS = 16
SESSION_MS = 5_000
WARM_S = 3.0
PENDING = 200
"""Messages without a receipt of each producer."""
CASES = {"publish 1 KiB": 1, "publish 1 KiB, 100 in a batch": 100}


class Publishing:
    """A thread that keeps `PENDING` messages of each topic on their way."""

    def __init__(self, url: str, batch: int) -> None:
        self.receipts = 0
        self._room = threading.Semaphore(PENDING * TOPICS)
        self._ends = threading.Event()
        self._client = pulsar.Client(url, io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._producers = [
            self._client.create_producer(
                f"persistent://{NAMESPACE}/t{number}",
                send_timeout_millis=0,
                batching_enabled=batch > 1,
                batching_max_messages=max(batch, 2),
                batching_max_publish_delay_ms=10,
            )
            for number in range(TOPICS)
        ]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        payload = b"x" * 1024
        while not self._ends.is_set():
            for producer in self._producers:
                self._room.acquire()
                producer.send_async(payload, self._answered)

    def _answered(self, result: pulsar.Result, _: pulsar.MessageId) -> None:
        self.receipts += result == pulsar.Result.Ok
        self._room.release()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()


def measured(brokers: list[Broker], batch: int, seconds: float) -> tuple[float, float]:
    """Return the processor microseconds of all brokers for a message, and the messages per second."""
    load = Publishing(",".join([brokers[0].url, *(each.url.removeprefix("pulsar://") for each in brokers[1:])]), batch)
    divide(brokers)
    time.sleep(WARM_S)
    began_s, receipts = time.monotonic(), load.receipts
    used_s = sum(processor_seconds(each.pid) for each in brokers)
    time.sleep(seconds)
    used_s = sum(processor_seconds(each.pid) for each in brokers) - used_s
    receipts, took_s = load.receipts - receipts, time.monotonic() - began_s
    load.close()
    return used_s / receipts * 1e6, receipts / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="each has one broker, two brokers, and one broker again")
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    found: dict[str, dict[int, list[tuple[float, float]]]] = {case: {1: [], 2: []} for case in CASES}
    with bookkeeper_cluster(3) as cluster:
        for number in range(options.rounds):
            for turn, count in enumerate((1, 2, 1)):
                directory = cluster.directory / f"round{number}-{turn}"
                directory.mkdir()
                with running_brokers("pybroker", count, SESSION_MS, cluster, directory) as brokers:
                    bundles = {"bundles": {"numBundles": TOPICS}}
                    if not number and not turn:
                        rest("PUT", f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}", bundles)
                    for case, batch in CASES.items():
                        figures = measured(brokers, batch, options.seconds)
                        found[case][count].append(figures)
                        print(case, count, "brokers:", *(round(each, 2) for each in figures), flush=True)
                time.sleep(SESSION_MS / 1000 + 1)  # the killed brokers are still registered until then
    for case, figures_of in found.items():
        medians = {count: statistics.median(each for each, _ in figures) for count, figures in figures_of.items()}
        print(json.dumps({"case": case, "us": medians, "ratio": round(medians[2] / medians[1], 3)}), flush=True)


if __name__ == "__main__":
    main()
