"""Throughput of `lake`, compared with Spark writing the same rows: `python -m benchmarks.lake --rows 500000`.

One broker in its own process, one topic of 1 KiB messages in batches. First, each into a new table: the pipeline with
each format from segment files, and from the bulk endpoint. Then, alternating with the pipeline: Spark with the Iceberg
jar, if available, writing the same table from the same rows in uncompressed Parquet; and Spark's Parquet writer. Each
figure is the median of `--rounds`. Only figures of one run are comparable.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.broker_process import BrokerProcess
from tests.support.iceberg_spark import NoIcebergSpark, iceberg_spark

from benchmarks.processor_time import processor_seconds
from pybroker.client.access import Access
from pybroker.lake.lake_pipeline import LakePipeline
from pybroker.lake.opening import lake_options, open_table, selection
from pybroker.lake.settings import LakeSettings, load_settings
from pybroker.lake.topic_planning import SourcePlanner
from pybroker.lake.typed_rows import close_idle_sources, reading_maker
from pybroker.lake.workers import ThreadWorkers
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source

VALUE_BYTES = 1000
TOPIC = "persistent://public/default/lake-benchmark"
SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
"""Keeps the topic, which has no subscription, during long runs."""


def publish(url: str, rows: int) -> None:
    """Publish messages whose values compress by about half."""
    import pulsar  # noqa: PLC0415

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    producer = client.create_producer(
        TOPIC, batching_enabled=True, batching_max_messages=500, block_if_queue_full=True, max_pending_messages=20_000
    )
    for number in range(rows):
        half = os.urandom(VALUE_BYTES // 4).hex().encode()
        producer.send_async(half + b"x" * (VALUE_BYTES // 2), lambda *_: None, partition_key=str(number % 1000))
    producer.flush()
    client.close()


def settings_of(kind: str, target: Path, **more: Any) -> LakeSettings:
    return load_settings(
        None, {"topics": [TOPIC], "table": "bench.rows", "target": str(target), "format": kind, **more}
    )


def run_pipeline(settings: LakeSettings, where: SourceOptions) -> tuple[int, float]:
    """Return rows and seconds, from taking the lease to releasing it."""
    planner = SourcePlanner(open_source(where), selection(settings), reading_maker(settings, where))
    table = open_table(settings, planner.topics())
    workers = ThreadWorkers(settings.workers)
    pipeline = LakePipeline(table, planner, workers, lake_options(settings, "benchmark", takes_over=False))
    started = time.perf_counter()
    pipeline.begin()
    while pipeline.step():
        pass
    pipeline.end()
    seconds = time.perf_counter() - started
    workers.close()
    planner.close()
    table.close()
    close_idle_sources()
    return pipeline.figures.rows, seconds


def spark_writes_parquet(rows: Path, target: Path, rounds: int) -> list[float]:
    """Return seconds of Spark's own writer, after a warm-up round."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.parquet.compression.codec", "zstd")
        .getOrCreate()
    )
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        spark.read.parquet(str(rows)).write.mode("overwrite").parquet(str(target))
        seconds.append(time.perf_counter() - started)
    spark.stop()
    return seconds[1:]


class IcebergSpark:
    """Spark with the Iceberg jar in its own process. The first table is the warm-up."""

    def __init__(self, directory: Path) -> None:
        python, jars = iceberg_spark()
        environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("iceberg_writer.py"), jars, str(directory)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def seconds_of(self, table: str, rows: Path, row_count: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{table} {rows}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("SECONDS "):
                _, seconds, _, count = line.split()
                assert int(count) == row_count, f"{count} rows"
                return float(seconds)
        raise RuntimeError("Spark with the Iceberg jar has ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="lake-benchmark-"))
    try:
        with BrokerProcess(directory, SETTINGS).running() as broker:
            publish(broker.url, options.rows)
            access = Access(broker.url, broker.http_url)
            measure(directory, access, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(directory: Path, access: Access, options: argparse.Namespace) -> None:
    cases: dict[str, Callable[[int], float]] = {}

    def case(kind: str, mode: str, **more: Any) -> Callable[[int], float]:
        def once(number: int) -> float:
            target = directory / f"{kind}-{mode}-{number}-{len(more)}"
            settings = settings_of(kind, target, workers=options.workers, **more)
            rows, seconds = run_pipeline(settings, SourceOptions(access, mode))
            assert rows == options.rows, f"{rows} rows"
            return seconds

        return once

    for mode in ("segment", "bulk"):
        cases[f"iceberg from {mode}"] = case("iceberg", mode)
    cases["iceberg from segment, by hour"] = case("iceberg", "segment", partition_by="publish-hour")
    cases["delta from segment"] = case("delta", "segment")
    cases["parquet from segment"] = case("parquet", "segment")
    cases["iceberg from segment"](options.rounds)  # warm-up: libraries and page cache
    medians = {}
    for name, once in cases.items():
        seconds = [once(number) for number in range(options.rounds)]
        medians[name] = statistics.median(seconds)
        show(name, options.rows, medians[name])
    if not options.without_spark:
        source = directory / "rows.parquet"
        lay_out(directory / "parquet-segment-0-0", source)
        compare_with_iceberg_spark(directory, source, options, cases["iceberg from segment"])
        spark_seconds = statistics.median(spark_writes_parquet(source, directory / "spark", options.rounds))
        show("Spark writes Parquet", options.rows, spark_seconds)
        print(f"lake into iceberg / Spark into Parquet: {spark_seconds / medians['iceberg from segment']:.2f} times")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load average {load}; arrow {pa.__version__}")


def lay_out(table: Path, target: Path) -> None:
    files = sorted(table.rglob("*.parquet"))
    with pq.ParquetWriter(target, pq.read_schema(files[0]), compression="none") as writer:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(20_000):
                writer.write_batch(batch)


def compare_with_iceberg_spark(
    directory: Path, rows: Path, options: argparse.Namespace, lake: Callable[[int], float]
) -> None:
    try:
        spark = IcebergSpark(directory)
    except NoIcebergSpark as error:
        print(f"left out: Spark writes Iceberg ({error})")
        return
    spark.seconds_of("warm", rows, options.rows)  # warm-up
    ours, theirs, ours_busy, theirs_busy = [], [], [], []
    for number in range(options.rounds):
        before_s = processor_seconds(os.getpid())
        ours.append(lake(options.rounds + 1 + number))
        between_s = processor_seconds(os.getpid())
        theirs.append(spark.seconds_of(f"rows{number}", rows, options.rows))
        ours_busy.append(between_s - before_s)
        theirs_busy.append(processor_seconds(os.getpid()) - between_s)
    spark.close()
    show("iceberg from segment, in turns", options.rows, statistics.median(ours))
    show("Spark writes Iceberg, in turns", options.rows, statistics.median(theirs))
    ratio, busy_ratio = (
        statistics.median(their / own for own, their in zip(*each, strict=True))
        for each in ((ours, theirs), (ours_busy, theirs_busy))
    )
    print(
        f"lake into Iceberg / Spark into the same: {ratio:.2f} times, by processor time {busy_ratio:.2f} "
        f"({statistics.median(ours_busy):.1f} and {statistics.median(theirs_busy):.1f} s)"
    )


def show(name: str, rows: int, seconds: float) -> None:
    print(f"{name:32} {rows / seconds / 1000:8.0f} krow/s  {rows * VALUE_BYTES / seconds / 1e6:8.0f} MB/s", flush=True)


if __name__ == "__main__":
    main()
