"""Every test of a managed ledger runs on both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from tests.unit.managed_ledger.stack import STACKS, Stack


@pytest.fixture(params=STACKS, ids=lambda make: make.__name__)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    make: Callable[[], Stack] = request.param
    made = make()
    await made.start()
    yield made
    await made.stop()
