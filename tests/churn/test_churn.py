"""A short run of `make churn`, and one of a broker that is told to waive what is checked."""

from pathlib import Path

import pytest
from tests.churn.harness import CASES, Case, run

SECONDS = 12.0
pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", CASES)
def test_churn_breaks_no_promise(name: str, tmp_path: Path) -> None:
    result = run(CASES[name], SECONDS, seed=2, directory=tmp_path)
    assert not result.findings.violations, result.line(name)
    assert result.findings.received >= result.published > 0


def test_churn_finds_keys_at_two_consumers_when_order_is_waived(tmp_path: Path) -> None:
    result = run(Case("Key_Shared", {}, out_of_order=True), SECONDS, seed=2, directory=tmp_path)
    assert any(text.startswith("two holders") for text in result.findings.violations)
