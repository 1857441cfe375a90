"""What Spark's processes import: every query starts some, and each pays for it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark


def test_finding_the_source_imports_neither_the_client_nor_what_writes() -> None:
    script = "import sys, pyspark_pulsar; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "pybroker.spark.source" in found
    assert not {"pybroker.client.client", "pybroker.spark.writer.sink_writer", "pandas"} & set(found)
