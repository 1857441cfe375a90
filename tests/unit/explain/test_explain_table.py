"""Each finding code has a test that creates the real situation (`tests_of_codes.py`)."""

import re
from pathlib import Path

import pytest
from tests.unit.explain.tests_of_codes import TESTS_OF_CODES

from pybroker.model.findings import Code

TESTS = {
    name
    for path in (Path(__file__).resolve().parents[2]).rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
}


def test_each_code_names_tests() -> None:
    assert list(TESTS_OF_CODES) == list(Code)
    assert all(TESTS_OF_CODES.values())


@pytest.mark.parametrize("code", Code, ids=lambda code: code.value)
def test_named_tests_exist(code: Code) -> None:
    assert set(TESTS_OF_CODES[code]) <= TESTS
