"""The tutorial about Spark does what it says."""

from pathlib import Path

import pytest
from tests.support.tutorials import PAGES, reader_in

pytestmark = pytest.mark.spark


def test_spark_tutorial_does_what_it_says(tmp_path: Path) -> None:
    with reader_in(tmp_path) as reader:
        reader.follow(PAGES / "first-spark-job.md")
