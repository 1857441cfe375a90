"""Workers that read and write the shares of a commit in Spark tasks; the driver commits. Needs the extra `spark`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pybroker.lake.table_format import WrittenFile
from pybroker.lake.workers import RowReading, Workers, write_share
from pybroker.lake.writing import FileLayout
from pybroker.reading.positions import EntryRange


class SparkWorkers(Workers):
    """Workers that are tasks of the running Spark session, or of a new one.

    If Spark repeats a task, no commit contains the files of the first attempt, and maintenance deletes them.
    """

    def __init__(self, spark: Any = None) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415  (half a gigabyte, only where it is asked for)

        self._spark = spark if spark is not None else SparkSession.builder.appName("pybroker lake").getOrCreate()
        self.count = max(1, int(self._spark.sparkContext.defaultParallelism))

    def write(
        self, layout: FileLayout, reading: RowReading, shares: Sequence[Sequence[EntryRange]]
    ) -> list[WrittenFile]:
        def of_task(parts: Iterator[Sequence[EntryRange]]) -> Iterator[WrittenFile]:
            for part in parts:
                yield from write_share(layout, reading, part)

        context = self._spark.sparkContext
        found: list[WrittenFile] = (
            context.parallelize([list(share) for share in shares], len(shares)).mapPartitions(of_task).collect()
        )
        return found
