"""Found by Spark, which asks each module `pyspark_*` for its `DefaultSource`: the format `pulsar`."""

from pybroker.spark.source import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]
