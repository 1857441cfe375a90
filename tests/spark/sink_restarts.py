"""A program of its own: a stream into a topic whose task dies once after some rows, with tasks that are tried again.

Arguments: service URL, URL of REST, topic, delivery, directory, what is to happen (`task` or `driver`).
"""

import os
import sys
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from pybroker.spark.writer.sink import PulsarSink

ROWS = 4000


class Sink(PulsarSink, DataSource):
    """The sink under a name of its own."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-sink-restarts"


def dying(marker: Path) -> Any:
    """Passes rows on; the first attempt of task 1 ends in the middle, or all of the driver with it."""

    def passed(batches: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        for index, batch in enumerate(batches):
            yield batch
            if index == 5 and context.partitionId() == 1 and not marker.exists():
                marker.write_text("dead")
                raise RuntimeError("the test wants this task to die")

    return passed


def main() -> None:
    url, http_url, topic, delivery, directory, event = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,3]" if event == "task" else "local[2]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Sink)
    place = Path(directory)
    if not (place / "in").exists():
        for part in range(2):
            half = ROWS // 2
            frame = spark.range(part * half, part * half + half, 1, 1).selectExpr("cast(id as string) as value")
            frame.write.mode("append").parquet(str(place / "in"))
    stream = spark.readStream.schema("value string").parquet(str(place / "in"))
    query = (
        stream.mapInArrow(dying(place / "died"), "value string")
        .writeStream.format("pulsar-sink-restarts")
        .options(**{"service.url": url, "admin.url": http_url, "topic": topic, "delivery": delivery})
        .option("batchingMaxMessages", "50")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)  # raises what ended the query


if __name__ == "__main__":
    main()
