"""What the models of coordinators share."""

from __future__ import annotations

import pytest

from pybroker.transactions import log_positions


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are shortened after a few records."""
    monkeypatch.setattr(log_positions, "FEW_RECORDS", 4)
    monkeypatch.setattr(log_positions, "RECORDS_EACH", 2)
    monkeypatch.setattr(log_positions, "AGAIN_AT_ONCE", 2)
