"""docs/contributing/faults.md has an answer for every fault at every moment, and every test that it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOMENTS = (
    "journal append",
    "journal file creation",
    "segment write",
    "checkpoint commit",
    "index and seal",
    "segment read",
    "recovery read",
    "metadata write",
    "cursor ack",
    "start",
)
FAULTS = {
    "torn write",
    "lost unsynced data",
    "short write",
    "no space",
    "write error",
    "sync error",
    "read error",
    "bit flip",
    "slow",
}


def rows() -> list[tuple[str, str, str, str]]:
    lines = (ROOT / "docs" / "contributing" / "faults.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(moment, faults, answer, tests) for moment, faults, answer, tests in cells[2:]]


TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_fault_has_one_answer_at_every_moment(moment: str) -> None:
    faults = [fault for found, faults, _, _ in rows() if found == moment for fault in faults.split(", ")]
    assert sorted(faults) == sorted(FAULTS)


def test_only_moments_that_are_known_have_rows() -> None:
    assert {moment for moment, _, _, _ in rows()} == set(MOMENTS)


def test_every_answer_names_tests_that_exist() -> None:
    for moment, faults, answer, tests in rows():
        named = re.findall(r"`(\w+)`", tests)
        assert named or answer.startswith("—"), f"{moment}, {faults}: no test"
        assert set(named) <= TESTS, f"{moment}, {faults}"
