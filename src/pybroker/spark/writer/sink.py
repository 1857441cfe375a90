"""The writing side (sink) of the data source `pulsar`.

Writers are imported only when they are needed: Spark starts a process for each step of a query, and readers need no
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.spark.option_text import InvalidOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
    from pyspark.sql.types import StructType


class PulsarSink:
    """The writing methods of the data source, for a class that also inherits from `DataSource`."""

    options: Mapping[str, str]

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from pybroker.spark.writer.sink_writer import BatchWriter, checked  # noqa: PLC0415

        if overwrite:
            raise InvalidOptions('topics cannot be overwritten: use mode("append")')
        return BatchWriter(checked(self.options, schema, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer for the batches of a stream. Raises InvalidOptions, also if `overwrite` is set, and
        RowsRefused if `schema` has a column that cannot be written, no payload column, or no column for the topic.
        """
        from pybroker.spark.writer.sink_writer import StreamWriter, checked  # noqa: PLC0415

        if overwrite:
            raise InvalidOptions('topics cannot be overwritten: use outputMode("append")')
        return StreamWriter(checked(self.options, schema, is_stream=True))
