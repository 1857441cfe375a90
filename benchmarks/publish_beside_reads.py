"""Publish latency while analytics jobs read: `python -m benchmarks.publish_beside_reads`.

A steady publisher (2,000 single messages of 1 KiB per second) runs in its own process, and beside it in turns: nothing,
Spark reading another topic from segment files at full speed, Spark reading Parquet files of the same rows at that rate,
Spark reading the topic over the bulk endpoint, and Parquet at that rate. The result is the ratio of the 99th
percentiles within one run: topic to Parquet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.broker_process import BrokerProcess

from benchmarks.lake import TOPIC, publish
from benchmarks.spark_source import SETTINGS, lay_out_parquet
from benchmarks.steady_publisher import SteadyPublisher

PUBLISHED_TOPIC = "persistent://public/default/steady"
FILES_OF_A_JOB = 2
"""One for each task of local[2], so that a paced job alternates between full speed and pauses."""


class Analytics:
    """The Spark jobs. Each runs for a minimum time and returns rows per second."""

    def __init__(self, broker: BrokerProcess, directory: Path, rows: int) -> None:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g")
        self.spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        self.spark.sparkContext.setLogLevel("OFF")
        self._broker = broker
        self._rows = rows
        parquet = lay_out_parquet(self.topic("segment"), directory)
        files = sorted(str(path) for path in parquet.glob("*.parquet"))
        self._jobs = [files[start : start + FILES_OF_A_JOB] for start in range(0, len(files), FILES_OF_A_JOB)]
        self._rows_of_job = [self.spark.read.parquet(*job).count() for job in self._jobs]

    def topic(self, mode: str) -> Any:
        broker = self._broker
        where = {"service.url": broker.url, "admin.url": broker.http_url, "topic": TOPIC, "readMode": mode}
        return self.spark.read.format("pulsar").options(**where).load()

    def read_topic(self, mode: str, seconds: float) -> float:
        started_s, rows = time.perf_counter(), 0
        while time.perf_counter() - started_s < seconds:
            _to_nowhere(self.topic(mode))
            rows += self._rows
        return rows / (time.perf_counter() - started_s)

    def read_parquet(self, rows_per_s: float, seconds: float) -> float:
        started_s, rows, number = time.perf_counter(), 0, 0
        while (elapsed_s := time.perf_counter() - started_s) < seconds:
            time.sleep(max(0.0, rows / rows_per_s - elapsed_s))
            _to_nowhere(self.spark.read.parquet(*self._jobs[number % len(self._jobs)]))
            rows += self._rows_of_job[number % len(self._jobs)]
            number += 1
        return rows / (time.perf_counter() - started_s)


def _to_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8, help="of each window, about")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--value-bytes", type=int, default=1024)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = Path(tempfile.mkdtemp(prefix="pybroker-publish-"))
    (directory / "broker").mkdir()
    try:
        with BrokerProcess(directory / "broker", SETTINGS).running() as broker:
            publish(broker.url, options.rows)
            broker.stop()  # A restart seals the ledgers.
            broker.start()
            analytics = Analytics(broker, directory, options.rows)
            publisher = SteadyPublisher(broker.url, PUBLISHED_TOPIC, options.rate, options.value_bytes)
            try:
                _measure(analytics, publisher, options)
            finally:
                publisher.close()
                analytics.spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(analytics: Analytics, publisher: SteadyPublisher, options: argparse.Namespace) -> None:
    for mode in ("segment", "bulk"):
        analytics.read_topic(mode, 1)  # warm-up
    seen: dict[str, list[dict[str, Any]]] = {}

    def window(name: str, run: Callable[[], Any]) -> float:
        publisher.end_window("between")
        rows_per_s = run() or 0.0
        seen.setdefault(name, []).append(publisher.end_window(name) | {"rows_per_s": rows_per_s})
        return float(rows_per_s)

    for _ in range(options.rounds):
        window("nothing", lambda: time.sleep(options.seconds))
        for mode in ("segment", "bulk"):
            rate = window(mode, lambda mode=mode: analytics.read_topic(mode, options.seconds))  # type: ignore[misc]
            window(f"Parquet as {mode}", lambda rate=rate: analytics.read_parquet(rate, options.seconds))  # type: ignore[misc]
    for name, windows in seen.items():
        p50, p99, p999, most, rows_per_s = (
            statistics.median(each[key] for each in windows)
            for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms", "rows_per_s")
        )
        print(
            f"{name:18} {rows_per_s / 1000:6.0f} krow/s   p50 {p50:7.2f}   p99 {p99:7.2f}   p99.9 {p999:7.2f}   "
            f"most {most:7.1f} ms"
        )
    for mode in ("segment", "bulk"):
        ratios = [
            own["p99_ms"] / other["p99_ms"] for own, other in zip(seen[mode], seen[f"Parquet as {mode}"], strict=True)
        ]
        print(f"p99 beside {mode} / beside Parquet at its rate: {statistics.median(ratios):.2f}", end="")
        print(f" ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))


if __name__ == "__main__":
    main()
