"""Spark reads Iceberg tables without a jar, and its tasks write the files that the driver commits."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from tests.tables.lake.made_up_topic import SCHEMA, MadeUpPlanner, MadeUpReading
from tests.tables.lake.tables import identities, open_table, pipeline_of, rows_of, run_to_end

from pybroker.lake.lake_pipeline import LakeOptions, LakePipeline
from pybroker.pipelines.spark_workers import SparkWorkers
from pybroker.spark.iceberg_table import IcebergTableSource

pytestmark = pytest.mark.spark
A = "persistent://t/n/a"


def catalog_options(directory: Path) -> dict[str, str]:
    return {
        "table": "events.clicks",
        "catalogName": "lake",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{directory}/catalog.db",
        "catalog.warehouse": f"file://{directory}/warehouse",
    }


def test_an_evolved_table_is_read_with_its_present_columns_and_with_those_of_an_older_snapshot(
    spark: Any, tmp_path: Path
) -> None:
    planner = MadeUpPlanner({A: {1: 40}})
    planner.present_reading = MadeUpReading(SCHEMA.append(pa.field("n", pa.int32())))
    run_to_end(pipeline_of(open_table("iceberg", tmp_path), planner))
    older = open_table("iceberg", tmp_path).load().version
    planner.ledgers[A][1] = 70
    planner.new_names = {"number": "n"}
    planner.present_reading = MadeUpReading(
        SCHEMA.append(pa.field("number", pa.int64())).append(pa.field("extra", pa.float64()))
    )
    run_to_end(pipeline_of(open_table("iceberg", tmp_path), planner))
    spark.dataSource.register(IcebergTableSource)
    read = spark.read.format("pulsar-lake").options(**catalog_options(tmp_path))
    frame = read.load()
    assert dict(frame.dtypes)["number"] == "bigint"
    assert frame.selectExpr("sum(number)", "count(extra)", "count(distinct __entryId)").first() == (
        sum(range(70)),
        30,
        70,
    )
    assert frame.rdd.getNumPartitions() == len(
        open_table("iceberg", tmp_path).files(open_table("iceberg", tmp_path).load())
    )
    before = read.option("snapshotId", older).load()
    assert before.selectExpr("sum(n)", "count(*)").first() == (sum(range(40)), 40)
    assert "extra" not in before.columns


def test_a_wrong_option_is_told_without_its_value() -> None:
    source = IcebergTableSource({"table": "a.b", "target": "secret"})
    with pytest.raises(ValueError, match="absolute path") as refusal:
        source.schema()
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_tasks_write_the_files_that_the_driver_commits(spark: Any, kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner({A: {1: 300}})
    workers = SparkWorkers(spark)
    options = LakeOptions("main", "driver", commit_bytes=150_000, least_share_bytes=1000)
    run_to_end(LakePipeline(open_table(kind, tmp_path), planner, workers, options))
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
    table = open_table(kind, tmp_path)
    assert len(table.files(table.load())) == 2 * workers.count
