"""Each row of docs/contributing/conformance.md names existing tests, a section of docs/reference/differences.md, or the client."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
DIFFERENCES = (ROOT / "docs" / "reference" / "differences.md").read_text(encoding="utf-8")
TEXT = (ROOT / "docs" / "contributing" / "conformance.md").read_text(encoding="utf-8")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\(\.\./reference/differences\.md#([\w-]+)\)")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| Statement")]


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


ANCHORS = {anchor(line.lstrip("#")) for line in DIFFERENCES.splitlines() if line.startswith("#")}


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(TEXT))))
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(path)


@pytest.mark.parametrize("section", sorted(set(LINK.findall(TEXT))))
def test_a_difference_that_is_named_is_there(section: str) -> None:
    assert section in ANCHORS


@pytest.mark.parametrize("row", ROWS, ids=[row[2:50] for row in ROWS])
def test_a_statement_is_shown_or_said_to_be_somebody_elses(row: str) -> None:
    statement, shown_by = row.strip("| ").split(" | ")
    assert statement
    assert TEST.search(shown_by) or LINK.search(shown_by) or shown_by.startswith("Client-side: ")
