"""The Spark data source `pulsar`, its sink, and tables that describe topics. Needs the extra `spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> str:
    """Register the data sources with a Spark session. Return the format name for topics: `pulsar`, or `pybroker` if a
    jar uses the name `pulsar`.

    Needed if Spark reports DATA_SOURCE_NOT_FOUND: because the environment is not activated, the package was passed with
    `--py-files`, or a jar uses the name `pulsar`. Workers of a local session then run in this interpreter, unless
    PYSPARK_PYTHON or spark.pyspark.python is set. Raises WrongInterpreter if Spark's interpreter cannot import this
    package, and ImportError for PySpark before 4.0.
    """
    # Imported here, because options and offsets can be used without Spark.
    from pybroker.spark.pyspark_version import require_data_sources  # noqa: PLC0415

    require_data_sources()
    from pybroker.spark.registration import register_all  # noqa: PLC0415

    return register_all(spark)
