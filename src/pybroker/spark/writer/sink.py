"""The sink of the data source `pulsar`.

It imports what writes only when something is written: Spark starts processes for each step of a query, and those that read have no
use for a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.spark.option_text import InvalidOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
    from pyspark.sql.types import StructType


class PulsarSink:
    """The writing half of a `DataSource`: inherit it beside that class. Needs its `options`."""

    options: Mapping[str, str]

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Of a batch. Raises InvalidOptions and RowsRefused before anything runs."""
        from pybroker.spark.writer.sink_writer import BatchWriter, checked  # noqa: PLC0415

        if overwrite:
            raise InvalidOptions('topics are only appended to: use mode("append")')
        return BatchWriter(checked(self.options, schema, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Of each batch of a stream."""
        from pybroker.spark.writer.sink_writer import StreamWriter, checked  # noqa: PLC0415

        if overwrite:
            raise InvalidOptions('topics are only appended to: use outputMode("append")')
        return StreamWriter(checked(self.options, schema, is_stream=True))
