"""Makes the data sources known to a session where Spark does not find them by itself.

Spark looks for modules `pyspark_*` of installed packages, so after `pip install pybroker[spark]` nothing is to be done. Packages
that come as `--py-files` are not looked at, and a jar may hold the name `pulsar` already: then this is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from pybroker.spark.iceberg_table import IcebergTableSource
from pybroker.spark.source import ALIAS, NAME, PulsarDataSource, PybrokerDataSource
from pybroker.spark.tables import LedgersSource, SubscriptionsSource, TopicsSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_all(spark: SparkSession) -> str:
    """Register everything; the format name to read topics by: `pulsar`, or `pybroker` where a jar holds that."""
    for source in (PybrokerDataSource, TopicsSource, LedgersSource, SubscriptionsSource, IcebergTableSource):
        spark.dataSource.register(source)
    try:
        spark.dataSource.register(PulsarDataSource)
    except PySparkException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        return ALIAS
    return NAME
