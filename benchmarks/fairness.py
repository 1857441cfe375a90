"""Latency of steady publishers while one client uses as much of the broker as it can: `python -m benchmarks.fairness`.

Steady publishers (several connections and topics, single messages of 1 KiB at a fixed rate) run alone, and during each
disturbance: a flood by one producer, a subscription that reads a large backlog, a metrics scrape of many topics every
second, a compaction. With `--before PATH` (the `pybroker` command of another installation) both brokers are measured in
alternating windows.

Prints one line per disturbance and broker: milliseconds from the due time to the receipt, alone and during the
disturbance, and their ratio; medians over the rounds.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.brokers import Broker, own_pybroker
from benchmarks.disturbances import DISTURBANCES, Preparation, Sizes, Window, in_process
from benchmarks.steady_publisher import SteadyPublisher

TOPIC = "persistent://public/default/steady"
SHOWN = ("p50_ms", "p99_ms", "p999_ms")
LEAD_IN_S = 1.0
STOP_TIMEOUT_S = 240.0


class Side:
    def __init__(self, name: str, broker: Broker, asked: argparse.Namespace) -> None:
        self.name = name
        self.broker = broker
        self.prepared: list[Preparation] = []
        self.seen: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._asked = asked

    def prepare(self, case: str, sizes: Sizes) -> None:
        prepare = DISTURBANCES[case].prepare
        if prepare is not None:
            self.prepared.append(Preparation(self.broker, sizes, self._asked.rounds))
            prepare(self.prepared[-1])

    def measure(self, case: str, window: int, sizes: Sizes) -> None:
        publisher = SteadyPublisher(
            self.broker.service_url, f"{TOPIC}-{window}", self._asked.rate, 1024, self._asked.publishers
        )
        try:
            self._measure(publisher, case, window, sizes)
        finally:
            publisher.close()

    def _measure(self, publisher: SteadyPublisher, case: str, window: int, sizes: Sizes) -> None:
        publisher.end_window("opened")
        time.sleep(LEAD_IN_S)
        publisher.end_window("lead in")
        time.sleep(self._asked.seconds)
        self.seen.setdefault((case, "alone"), []).append(publisher.end_window("alone"))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=in_process, args=(case, Window(self.broker, sizes, window, theirs)), daemon=True
        )
        process.start()
        try:
            assert ours.recv() == "running"
            publisher.end_window("between")
            if not DISTURBANCES[case].ends_by_itself:
                time.sleep(self._asked.seconds)
            elif not ours.poll(STOP_TIMEOUT_S):
                raise TimeoutError(f"{case} did not end")
            beside = publisher.end_window("beside")
            ours.send("stop")
            if not ours.poll(STOP_TIMEOUT_S):
                raise TimeoutError(f"{case} did not stop")
            self.seen.setdefault((case, "beside"), []).append(beside | {"rate": ours.recv()})
            process.join(STOP_TIMEOUT_S)
        finally:
            process.kill()


def show(case: str, side: Side) -> None:
    alone, beside = (
        {key: statistics.median(each[key] for each in side.seen[case, when]) for key in SHOWN}
        for when in ("alone", "beside")
    )
    rate = statistics.median(each["rate"] for each in side.seen[case, "beside"])
    figures = "   ".join(
        f"{key.removesuffix('_ms')} {alone[key]:6.2f} {beside[key]:7.2f} ({beside[key] / alone[key]:4.1f})"
        for key in SHOWN
    )
    most = max(each["max_ms"] for each in side.seen[case, "beside"])
    print(
        f"{case:17} {side.name:7} {figures}   most {most:6.1f} ms   {rate:6.1f} {DISTURBANCES[case].unit}", flush=True
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="PATH", help="the pybroker command to compare with")
    parser.add_argument("--only", nargs="+", choices=DISTURBANCES, default=list(DISTURBANCES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="of each window")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second of all steady publishers together")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--backlog-mb", type=int, default=2048)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--sync", action="store_true", help="with journalSyncData")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parse(arguments)
    settings = dict(each.split("=", 1) for each in asked.set)
    commands = {"now": None} if asked.before is None else {"before": asked.before, "now": None}
    sizes = Sizes(asked.backlog_mb, asked.topics)
    with contextlib.ExitStack() as stack:
        sides = [
            Side(name, stack.enter_context(own_pybroker(asked.sync, settings, command)).start(), asked)
            for name, command in commands.items()
        ]
        for case in asked.only:
            for side in sides:
                side.prepare(case, sizes)
            for number in range(asked.rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    side.measure(case, number, sizes)
            for side in sides:
                show(case, side)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()), flush=True)


if __name__ == "__main__":
    main()
