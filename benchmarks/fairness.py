"""Publishing while another client uses as much of the broker as it can: `make bench-disturbed`.

    python -m benchmarks.fairness                        latency at a fixed rate
    python -m benchmarks.fairness --rate 0               rate of publishers that send as fast as their windows allow
    python -m benchmarks.fairness --before DIR           and the broker of another checkout, in alternating windows

Publishers (several connections and topics, single messages of 1 KiB) run alone, and during each disturbance: a flood by
one producer, a subscription that reads a large backlog, a metrics scrape of many topics every second, a compaction,
1,000 connections that open and close, 100 producers on 100 topics.

Prints one line per disturbance and broker: milliseconds from the due time to the receipt (or messages a second), alone
and during the disturbance, and their ratio; medians over the rounds. `loop` has processor time of the broker's event
loop in milliseconds, alone and during the disturbance: from a publish to its receipt (p50, p99), the longest block of
the loop, and the share of the window that blocks of more than 5 ms take. Other processes on the machine hardly change
these figures.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers import Broker, own_pybroker
from benchmarks.disturbances import DISTURBANCES, Preparation, Sizes, Window, in_process
from benchmarks.metered_broker import FILE_VARIABLE
from benchmarks.steady_publisher import STEADY, SteadyPublisher

ROOT = Path(__file__).resolve().parents[1]
TOPIC = f"persistent://public/default{STEADY}"
LATENCIES = ("p50_ms", "p99_ms", "p999_ms")
RATES = ("rate",)
LEAD_IN_S = 1.0
STOP_TIMEOUT_S = 240.0


class Side:
    """One broker and its results. `loop_file` is the file of its loop meter."""

    def __init__(self, name: str, broker: Broker, loop_file: Path, asked: argparse.Namespace) -> None:
        self.name = name
        self.broker = broker
        self._loop_file = loop_file
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
        self._end_loop_window()
        time.sleep(self._asked.seconds)
        alone = publisher.end_window("alone") | self._end_loop_window()
        self.seen.setdefault((case, "alone"), []).append(alone)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=in_process, args=(case, Window(self.broker, sizes, window, theirs)), daemon=True
        )
        process.start()
        try:
            assert ours.recv() == "running"
            publisher.end_window("between")
            self._end_loop_window()
            if not DISTURBANCES[case].ends_by_itself:
                time.sleep(self._asked.seconds)
            elif not ours.poll(STOP_TIMEOUT_S):
                raise TimeoutError(f"{case} did not end")
            beside = publisher.end_window("beside") | self._end_loop_window()
            ours.send("stop")
            if not ours.poll(STOP_TIMEOUT_S):
                raise TimeoutError(f"{case} did not stop")
            self.seen.setdefault((case, "beside"), []).append(beside | {"load": ours.recv()})
            process.join(STOP_TIMEOUT_S)
        finally:
            process.kill()

    def _end_loop_window(self) -> dict[str, float]:
        """Return the loop meter's figures since the last call."""
        assert self.broker.pid is not None
        self._loop_file.unlink()
        os.kill(self.broker.pid, signal.SIGUSR2)
        while not self._loop_file.exists():
            time.sleep(0.002)
        figures: dict[str, float] = json.loads(self._loop_file.read_text())
        return figures


def show(case: str, side: Side, figures: Sequence[str]) -> None:
    def median(when: str, figure: str) -> float:
        return statistics.median(float(each[figure]) for each in side.seen[case, when])

    cells = []
    for figure in figures:
        alone, beside = median("alone", figure), median("beside", figure)
        cells.append(f"{figure.removesuffix('_ms')} {alone:7.2f} {beside:8.2f} ({beside / alone:5.2f})")
    loop = ", ".join(
        f"{median(when, 'receipt_p50_ms'):5.2f} {median(when, 'receipt_p99_ms'):5.2f} {median(when, 'longest_ms'):5.1f} "
        f"{median(when, 'long_share'):4.2f}"
        for when in ("alone", "beside")
    )
    most = max(each["max_ms"] for each in side.seen[case, "beside"])
    load = median("beside", "load")
    unit = DISTURBANCES[case].unit
    print(
        f"{case:17} {side.name:7} {'   '.join(cells)}   most {most:6.1f} ms   loop {loop}   {load:6.1f} {unit}",
        flush=True,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, with its compiled modules")
    parser.add_argument("--only", nargs="+", choices=DISTURBANCES, default=list(DISTURBANCES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="of each window")
    parser.add_argument(
        "--rate", type=int, default=1000, help="messages a second of all publishers together; 0: as fast as they can"
    )
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--backlog-mb", type=int, default=2048)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--sync", action="store_true", help="with journalSyncData")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def started_side(name: str, source: Path, settings: dict[str, str], asked: argparse.Namespace) -> Iterator[Side]:
    """Run the broker of the package in `source`, with a meter of its event loop."""
    with tempfile.TemporaryDirectory(prefix="loop-meter-") as directory:
        file = Path(directory) / "figures"
        variables = {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", FILE_VARIABLE: str(file)}
        command = ["env", *(f"{key}={value}" for key, value in variables.items())]
        command += [sys.executable, "-m", "benchmarks.metered_broker"]
        with own_pybroker(asked.sync, settings, command) as process:
            yield Side(name, process.start(), file, asked)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parse(arguments)
    settings = dict(each.split("=", 1) for each in asked.set)
    sources = {"now": ROOT / "src"}
    if asked.before is not None:
        sources = {"before": asked.before.resolve() / "src", **sources}
    sizes = Sizes(asked.backlog_mb, asked.topics)
    for case in asked.only:
        with contextlib.ExitStack() as stack:  # new brokers: the topics of a case would disturb the next one
            sides = [
                stack.enter_context(started_side(name, source, settings, asked)) for name, source in sources.items()
            ]
            for side in sides:
                side.prepare(case, sizes)
            for number in range(asked.rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    side.measure(case, number, sizes)
            for side in sides:
                show(case, side, LATENCIES if asked.rate else RATES)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()), flush=True)


if __name__ == "__main__":
    main()
