"""SECURITY.md has a defence for each threat, and each test that it names exists."""

import re
from pathlib import Path

import pytest
from tests.support.named_tests import NAMED_TEST, names_in

TEXT = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text(encoding="utf-8")
THREATS = TEXT.partition("\n## Threats\n")[2].partition("\n## ")[0]
ROWS = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| Threat |")]


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED_TEST.findall(TEXT))))
def test_named_test_exists(path: str, name: str) -> None:
    assert name in names_in(path)


@pytest.mark.parametrize("row", ROWS, ids=[row[2:50] for row in ROWS])
def test_each_threat_has_a_defence_and_a_test(row: str) -> None:
    threat, defence, shown_by = row.strip("| ").split(" | ")
    assert threat
    assert defence
    assert re.fullmatch(rf"{NAMED_TEST.pattern}(?:, {NAMED_TEST.pattern})*", shown_by)


def test_page_says_how_to_report_and_what_is_not_defended() -> None:
    assert len(ROWS) > 25
    assert {"## Report a vulnerability", "## Not defended"} <= set(TEXT.splitlines())
