"""The parts of PySpark that the data sources use. All code that depends on the PySpark version is here.

* 4.0: introduced Python data sources. It passes Arrow batches to each subclass of the batch writer, so the stream writer
  here inherits from both.
* 4.1: stream writers that receive Arrow batches.
* 4.2: limits of micro-batches and `Trigger.AvailableNow` (`pyspark.sql.streaming.datasource`). Earlier versions request
  the latest offset without passing the offset that the query has reached: see `spark/reader/older_stream_reader.py`.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VERSION: str = pyspark.__version__
HAS_READ_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark passes limits and the start to `latestOffset`: PySpark 4.2 or newer."""


class _StreamArrowWriterOf40(datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter):
    """The replacement for Spark 4.0, where workers pass Arrow batches to every subclass of DataSourceArrowWriter."""


class StreamArrowWriter(getattr(datasource, "DataSourceStreamArrowWriter", _StreamArrowWriterOf40)):  # type: ignore[misc]
    """A stream writer that receives Arrow batches."""


_NAMES_TIMEZONE = "timezone" in inspect.signature(to_arrow_schema).parameters


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC") if _NAMES_TIMEZONE else to_arrow_schema(schema)
