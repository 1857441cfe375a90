"""The tutorials of the documentation do what they say. That of Spark runs in `tests/spark`."""

from pathlib import Path

import pytest
from tests.support.tutorials import PAGES, reader_in

SPARK = "first-spark-job.md"
PAGES_WITHOUT_SPARK = sorted(page.name for page in PAGES.glob("first-*.md") if page.name != SPARK)


def test_tutorials_are_found() -> None:
    assert len(PAGES_WITHOUT_SPARK) >= 3
    assert (PAGES / SPARK).exists()


@pytest.mark.parametrize("name", PAGES_WITHOUT_SPARK)
def test_tutorial_does_what_it_says(name: str, tmp_path: Path) -> None:
    with reader_in(tmp_path) as reader:
        reader.follow(PAGES / name)
