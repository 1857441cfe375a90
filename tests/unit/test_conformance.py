"""Each row of docs/contributing/conformance*.md names existing tests, a section of docs/reference/differences.md, or the client."""

import re
from pathlib import Path

import pytest
from tests.support.named_tests import NAMED_TEST, names_in

ROOT = Path(__file__).resolve().parents[2]
DIFFERENCES = (ROOT / "docs" / "reference" / "differences.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs" / "contributing").glob("conformance*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
LINK = re.compile(r"\]\(\.\./reference/differences\.md#([\w-]+)\)")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| Statement")]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


ANCHORS = {anchor(line.lstrip("#")) for line in DIFFERENCES.splitlines() if line.startswith("#")}


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED_TEST.findall(TEXT))))
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(path)


@pytest.mark.parametrize("section", sorted(set(LINK.findall(TEXT))))
def test_a_difference_that_is_named_is_there(section: str) -> None:
    assert section in ANCHORS


@pytest.mark.parametrize("row", ROWS, ids=[row[2:50] for row in ROWS])
def test_a_statement_is_shown_or_said_to_be_somebody_elses(row: str) -> None:
    statement, shown_by = row.strip("| ").split(" | ")
    assert statement
    assert NAMED_TEST.search(shown_by) or LINK.search(shown_by) or shown_by.startswith("Client-side: ")
