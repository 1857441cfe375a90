"""The newest Spark that the Iceberg jar knows reads and rewrites what `lake` wrote, and `lake` goes on behind it.

That Spark has an environment of its own: see `tests.support.iceberg_spark`.
"""

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.iceberg_spark import NoIcebergSpark, iceberg_spark
from tests.tables.lake.made_up_topic import SCHEMA, MadeUpPlanner, MadeUpReading
from tests.tables.lake.tables import identities, open_table, pipeline_of, rows_of, run_to_end

from pybroker.lake.partitioning import parse_partitioning

pytestmark = [pytest.mark.spark, pytest.mark.long]
A = "persistent://t/n/a"


@pytest.fixture(scope="module")
def other_spark() -> tuple[Path, str]:
    """The Python of an environment with PySpark 4.1, and the jars; skipped where they cannot be fetched."""
    try:
        return iceberg_spark()
    except NoIcebergSpark as error:
        pytest.skip(str(error))


def test_the_jar_reads_and_rewrites_an_evolved_table_and_the_pipeline_goes_on(
    other_spark: tuple[Path, str], tmp_path: Path
) -> None:
    planner = MadeUpPlanner({A: {1: 40}})
    by_hour = parse_partitioning("publish-hour")
    planner.present_reading = MadeUpReading(SCHEMA.append(pa.field("n", pa.int32())))
    run_to_end(pipeline_of(open_table("iceberg", tmp_path), planner, partitioning=by_hour, commit_bytes=10_000))
    planner.ledgers[A][1] = 70
    planner.new_names = {"number": "n"}
    planner.present_reading = MadeUpReading(
        SCHEMA.append(pa.field("number", pa.int64())).append(pa.field("extra", pa.float64()))
    )
    run_to_end(pipeline_of(open_table("iceberg", tmp_path), planner))
    python, jars = other_spark
    job = Path(__file__).with_name("iceberg_jar_job.py")
    environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [python, job, jars, str(tmp_path)], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, ended.stderr[-3000:]
    seen = json.loads(lines[0].removeprefix("SEEN "))
    assert seen == {"rows": [70, 70, sum(range(70)), 30], "hour": 40, "files": 70, "after": [70, 70]}
    planner.ledgers[A][1] = 100
    run_to_end(pipeline_of(open_table("iceberg", tmp_path), planner))
    assert identities(rows_of("iceberg", tmp_path)) == planner.expected()
