"""The newest Spark that the Iceberg jar knows reads and rewrites what `lake` wrote, and `lake` goes on behind it.

That Spark (4.1) cannot run this project's data source (4.2), so it has an environment of its own in the user's cache, made once.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from tests.tables.lake.made_up_topic import SCHEMA, MadeUpPlanner, MadeUpReading
from tests.tables.lake.tables import identities, open_table, pipeline_of, rows_of, run_to_end

from pybroker.lake.partitioning import parse_partitioning

pytestmark = [pytest.mark.spark, pytest.mark.long]
HOME = Path.home() / ".cache" / "pybroker-iceberg-spark"
MAVEN = "https://repo1.maven.org/maven2/"
JARS = (
    "org/apache/iceberg/iceberg-spark-runtime-4.1_2.13/1.12.0/iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
    "org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar",
)
A = "persistent://t/n/a"


@pytest.fixture(scope="module")
def other_spark() -> tuple[Path, str]:
    """The Python of an environment with PySpark 4.1, and the jars; skipped where they cannot be fetched."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17")
    python = HOME / "venv" / "bin" / "python"
    try:
        HOME.mkdir(parents=True, exist_ok=True)
        for jar in JARS:
            target = HOME / jar.rsplit("/", 1)[1]
            if not target.exists():
                partial = target.with_suffix(".part")
                urllib.request.urlretrieve(MAVEN + jar, partial)
                partial.rename(target)
        if subprocess.run([python, "-c", "import pyspark"], check=False, capture_output=True).returncode:
            subprocess.run([sys.executable, "-m", "venv", str(HOME / "venv")], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "pyspark==4.1.4"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no Spark 4.1 with the Iceberg jar: {error}")
    return python, ",".join(str(HOME / jar.rsplit("/", 1)[1]) for jar in JARS)


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
