"""Registration of the data sources with a Spark session.

Spark finds the modules `pyspark_*` of packages that are installed for the interpreter that it starts. Registration is
needed if the environment is not activated, if the package is passed with `--py-files`, where Spark does not search, or
if a jar uses the name `pulsar`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from pybroker.spark.description_tables import LedgersSource, SubscriptionsSource, TopicsSource
from pybroker.spark.iceberg_table import IcebergTableSource
from pybroker.spark.source import ALIAS, NAME, PulsarDataSource, PybrokerDataSource
from pybroker.spark.worker_python import use_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_all(spark: SparkSession) -> str:
    """Register all data sources. Return the format name for topics: `pulsar`, or `pybroker` if a jar uses that name.
    Raises WrongInterpreter if the Python that Spark starts cannot import this package.
    """
    use_worker_python(spark)
    for source in (PybrokerDataSource, TopicsSource, LedgersSource, SubscriptionsSource, IcebergTableSource):
        spark.dataSource.register(source)
    try:
        spark.dataSource.register(PulsarDataSource)
    except PySparkException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        return ALIAS
    return NAME
