"""Writes the rows of a Parquet file into new Iceberg tables with Spark; run by the Python of
`tests.support.iceberg_spark`.

`iceberg_writer.py JARS DIRECTORY`, then a line `TABLE FILE` on stdin for each table, answered with a line `SECONDS
number of ROWS`.
"""

import sys
import time

from pyspark.sql import SparkSession


def main(jars: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "jdbc")
        .config("spark.sql.catalog.lake.uri", f"jdbc:sqlite:{directory}/spark-catalog.db")
        .config("spark.sql.catalog.lake.jdbc.schema-version", "V1")
        .config("spark.sql.catalog.lake.warehouse", f"file://{directory}/spark-warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.sql("create namespace if not exists lake.bench")
    for line in sys.stdin:
        table, file = line.split()
        rows = spark.read.parquet(file)
        properties = {
            "format-version": "2",
            "write.parquet.compression-codec": "zstd",
            "write.parquet.compression-level": "1",
        }
        writer = rows.writeTo(f"lake.bench.{table}").using("iceberg")
        for name, value in properties.items():
            writer = writer.tableProperty(name, value)
        started = time.perf_counter()
        writer.create()
        seconds = time.perf_counter() - started
        print(f"SECONDS {seconds} of {spark.table(f'lake.bench.{table}').count()}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
