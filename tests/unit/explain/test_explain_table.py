"""docs/how-to/explain.md has a row for each code, with its meaning, and with a test that makes the real situation."""

import re
from pathlib import Path

from pybroker.model.findings import Code

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| `([a-z-]+)` \| (.*) \| (.*) \|$", re.MULTILINE)
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
}


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall((ROOT / "docs" / "how-to" / "explain.md").read_text(encoding="utf-8"))


def test_every_code_has_one_row_in_the_order_in_which_findings_are_shown() -> None:
    assert [code for code, _, _ in rows()] == [code.value for code in Code]


def test_every_row_says_what_the_code_says() -> None:
    assert {code: meaning for code, meaning, _ in rows()} == {code.value: code.meaning for code in Code}


def test_every_row_names_tests_that_exist() -> None:
    for code, _, tests in rows():
        named = re.findall(r"`(\w+)`", tests)
        assert named, f"{code} names no test"
        assert set(named) <= TESTS, f"{code} names a test that does not exist"
