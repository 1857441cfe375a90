"""Throughput of reading topics with Spark, compared with ready-made Arrow batches and Parquet.

One broker in its own process and one sealed topic of 1 KiB messages; local[2], the `noop` sink. Each round reads:
segment files, the bulk endpoint, the binary protocol, a Python source that yields ready-made batches of the same rows,
and Parquet with Spark's own reader. Also prints the CPU time of the broker, of Spark and of its Python processes. Only
figures of one run are comparable.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from tests.support.broker_process import BrokerProcess

from benchmarks.lake import TOPIC, publish
from benchmarks.processor_time import processor_seconds

SETTINGS = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}


class Ready(DataSource):
    """A source of batches from Arrow files: the upper limit for any Python source."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return (
            "value binary, __key binary, __topic string, __messageId binary, __publishTime timestamp,"
            " __eventTime timestamp, __messageProperties map<string,string>"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return _ReadyReader(self.options["path"])


class _ReadyReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._path).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file:
            batches = pa.ipc.open_file(file)
            for index in range(batches.num_record_batches):
                yield batches.get_batch(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="segment,bulk,broker,ready,parquet", help="ready is always among them")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = Path(tempfile.mkdtemp(prefix="pybroker-spark-"))
    (directory / "broker").mkdir()
    try:
        with BrokerProcess(directory / "broker", SETTINGS).running() as broker:
            publish(broker.url, options.rows)
            broker.stop()  # A restart seals the ledgers.
            broker.start()
            _measure(broker, directory, options.rows, options.rounds, {*options.only.split(","), "ready"})
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(broker: BrokerProcess, directory: Path, rows: int, rounds: int, only: set[str]) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Ready)

    def topic(mode: str) -> Any:
        where = {"service.url": broker.url, "admin.url": broker.http_url, "topic": TOPIC, "readMode": mode}
        return spark.read.format("pulsar").options(**where).load()

    parquet = lay_out_parquet(topic("segment"), directory)
    ready = directory / "ready"
    _lay_out_ready(topic("segment").schema, parquet, ready)
    cases: dict[str, Callable[[], Any]] = {
        "segment": lambda: topic("segment"),
        "bulk": lambda: topic("bulk"),
        "broker": lambda: topic("broker"),
        "ready": lambda: spark.read.format("ready").load(str(ready)),
        "parquet": lambda: spark.read.parquet(str(parquet)),
    }
    cases = {name: frame for name, frame in cases.items() if name in only}
    took_s: dict[str, list[float]] = {name: [] for name in cases}
    busy_s: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, frame in cases.items():
            started_s, busy_before_s = time.perf_counter(), processor_seconds(os.getpid())
            frame().write.format("noop").mode("overwrite").save()
            if number:  # the first round is warm-up
                took_s[name].append(time.perf_counter() - started_s)
                busy_s[name].append(processor_seconds(os.getpid()) - busy_before_s)
    assert topic("segment").count() == rows
    for name, times in took_s.items():
        median = statistics.median(times)
        ratio, busy_ratio = (
            statistics.median(ready / own for ready, own in zip(each["ready"], each[name], strict=True))
            for each in (took_s, busy_s)
        )
        busy = statistics.median(busy_s[name])
        print(
            f"{name:8} {rows / median / 1000:8.0f} krow/s   {ratio:5.2f} of ready-made batches;"
            f"   {busy:6.2f} s of processors, {busy_ratio:5.2f}"
        )
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))
    spark.stop()


def lay_out_parquet(frame: Any, directory: Path) -> Path:
    parquet = directory / "parquet"
    frame.write.option("compression", "none").parquet(str(parquet))
    return parquet


def _lay_out_ready(declared: Any, parquet: Path, ready: Path) -> None:
    ready.mkdir()
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  (needs a session)

    schema = to_arrow_schema(declared, timezone="UTC", prefers_large_types=False)
    for number, path in enumerate(sorted(parquet.glob("*.parquet"))):
        with pa.OSFile(str(ready / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as out:
            for batch in pq.ParquetFile(path).iter_batches(4000):
                out.write_batch(pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()[0])


if __name__ == "__main__":
    main()
