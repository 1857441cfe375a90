"""Partitioning of rows by the hour or day of their event time or publish time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Unit = Literal["hour", "day"]
_MICROS: dict[Unit, int] = {"hour": 3_600_000_000, "day": 86_400_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Partitions by hour or day (UTC) of the time in `column`. Rows without a time have a separate partition.

    The number of a partition is its hours or days since 1970, as in Iceberg's transforms.
    """

    column: str
    unit: Unit

    def value_text(self, value: int | None) -> str:
        """Return the text for a partition number in paths: `2026-11-23-04`, `2026-11-23`, or `null`."""
        if value is None:
            return "null"
        moment = self.start_of(value)
        return moment.strftime("%Y-%m-%d-%H" if self.unit == "hour" else "%Y-%m-%d")

    def start_of(self, value: int) -> datetime:
        return _EPOCH + timedelta(microseconds=value * _MICROS[self.unit])

    def path(self, value: int | None) -> str:
        return f"{self.column}_{self.unit}={self.value_text(value)}"

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        """Yield each partition number with its rows, in order. Rows without a time come first, with None as their
        number.
        """
        times = batch.column(self.column)
        micros = pc.cast(times, pa.timestamp("us", tz="UTC")).cast(pa.int64())
        values = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), _MICROS[self.unit])
        if micros.null_count:
            is_null = micros.is_null().to_numpy(zero_copy_only=False)
            if is_null.any():
                yield None, batch.filter(pa.array(is_null))
            batch, values = batch.filter(pa.array(~is_null)), values[~is_null]
        present = np.unique(values)
        if len(present) == 1:
            yield int(present[0]), batch
            return
        for value in present:
            yield int(value), batch.filter(pa.array(values == value))


def parse_partitioning(text: str) -> Partitioning | None:
    """Parse `publish-hour`, `publish-day`, `event-hour`, `event-day` or `none`, for which None is returned. Raises
    ValueError.
    """
    if text == "none":
        return None
    columns = {"publish": "__publishTime", "event": "__eventTime"}
    kind, _, unit = text.partition("-")
    if kind not in columns or unit not in _MICROS:
        raise ValueError(
            f"--partition-by {text!r} is invalid: use none, publish-hour, publish-day, event-hour or event-day"
        )
    return Partitioning(columns[kind], "hour" if unit == "hour" else "day")
