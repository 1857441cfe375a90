"""The Spark data source `pulsar`, its sink, and tables that describe topics. Needs the extra `spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> str:
    """Make the data sources known to `spark`, where the package came by `--py-files` or a jar holds the name `pulsar`.

    Returns the format name to use for topics: `pulsar`, or `pybroker` in the second case.
    """
    from pybroker.spark.registration import register_all  # noqa: PLC0415  (options and offsets are of use without Spark)

    return register_all(spark)
