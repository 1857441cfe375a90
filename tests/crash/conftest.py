"""A broker that tests kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """With the `SETTINGS` of the test's module, if it has some."""
    process = BrokerProcess(tmp_path, getattr(request.module, "SETTINGS", None)).start()
    yield process
    process.stop()
