"""Run by another Python with another Spark: reads and changes a table through the Iceberg jar, prints what it saw as JSON."""

import json
import sys

from pyspark.sql import SparkSession


def main(jars: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "jdbc")
        .config("spark.sql.catalog.lake.uri", f"jdbc:sqlite:{directory}/catalog.db")
        .config("spark.sql.catalog.lake.jdbc.schema-version", "V1")
        .config("spark.sql.catalog.lake.warehouse", f"file://{directory}/warehouse")
        .getOrCreate()
    )
    table = "lake.events.clicks"
    seen = {
        "rows": spark.sql(
            f"select count(*), count(distinct __entryId), sum(number), count(extra) from {table}"
        ).first()[:],
        "hour": spark.sql(
            f"select count(*) from {table} where __publishTime < timestamp '2023-11-14 23:00:00Z'"
        ).first()[0],
        "files": spark.sql(f"select sum(record_count) from {table}.files").first()[0],
    }
    spark.sql(
        "call lake.system.rewrite_data_files(table => 'events.clicks', options => map('min-input-files', '2'))"
    ).collect()
    seen["after"] = spark.sql(f"select count(*), count(distinct __entryId) from {table}").first()[:]
    spark.stop()
    print("SEEN " + json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
