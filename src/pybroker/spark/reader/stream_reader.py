"""The stream reader for PySpark 4.2 or newer, which supports limits and `Trigger.AvailableNow` for Python sources."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pybroker.spark.reader.admission import UNLIMITED, Limits
from pybroker.spark.reader.open_stream import OpenStream
from pybroker.spark.reader.streaming import Document


class StreamReader(OpenStream, SupportsTriggerAvailableNow):
    """A stream whose micro-batches have size limits."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self.options.limits
        if limits.size_bytes < UNLIMITED:
            return ReadMaxBytes(limits.size_bytes)
        return ReadMaxRows(limits.message_count) if limits.message_count < UNLIMITED else ReadAllAvailable()

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        # Spark cannot limit both bytes and rows, so the limits come from the options, unless Spark requests all
        # messages.
        return self.progress.latest(start, Limits() if isinstance(limit, ReadAllAvailable) else self.options.limits)

    def reportLatestOffset(self) -> Document:  # noqa: N802
        return self.progress.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.progress.freeze()
