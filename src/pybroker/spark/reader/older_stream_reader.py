"""The stream reader for PySpark 4.0 and 4.1.

These versions request the latest offset without passing the offset that the query has reached. The reader remembers the
last offset that it returned, because the next batch begins there. After a restart, and with `Trigger.AvailableNow`,
there is no such offset: the returned offset then covers the topics from their beginning, and the tasks of that batch
are planned from the offset that Spark passes to `partitions`.
"""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from pybroker.spark.reader.admission import Limits
from pybroker.spark.reader.offsets import from_json, to_json
from pybroker.spark.reader.open_stream import Declared, OpenStream
from pybroker.spark.reader.query_planning import DELETED
from pybroker.spark.reader.reader_options import ReadOptions
from pybroker.spark.reader.streaming import Document


class OlderStreamReader(OpenStream):
    """A stream in which each micro-batch contains all available messages."""

    def __init__(self, options: ReadOptions, declared: Declared) -> None:
        super().__init__(options, declared)
        self._reached: Document | None = None
        self._knew_start = False
        """Whether the last offset was computed from its predecessor."""

    def initialOffset(self) -> Document:  # noqa: N802
        initial = super().initialOffset()
        if self._reached is None:
            self._reached = initial
        return initial

    def latestOffset(self) -> Document:  # noqa: N802
        self._knew_start = self._reached is not None
        start = to_json({}) if self._reached is None else self._reached
        self._reached = self.progress.latest(start, Limits(), is_committed=False)
        return self._reached

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        if not self._knew_start:
            for topic in sorted(set(from_json(start)) - set(from_json(end))):
                self.planner.lost(topic, (DELETED,))
        if self._reached is None:
            self._reached = end  # a batch that an earlier run of the query has planned but not finished
        return super().partitions(start, end)
