"""WaitLimit: shares of waiting requests, deadlines, and the counters of both."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.wait_limit import WaitLimit, WaitRefused, WaitTimedOut

HOLDER = Holder("address 10.0.0.1")
FOREVER_S = 60


async def test_request_beyond_limit_is_refused_and_counted() -> None:
    limit = WaitLimit("maxWaitingRequests")
    async with limit.waiting(HOLDER, 2, FOREVER_S), limit.waiting(HOLDER, 2, FOREVER_S):
        with pytest.raises(WaitRefused, match=r"2 of 2 waiting requests .*maxWaitingRequests"):
            async with limit.waiting(HOLDER, 2, FOREVER_S):
                pytest.fail("it waits")
        assert (limit.count, limit.refused_total) == (2, 1)
    async with limit.waiting(HOLDER, 2, FOREVER_S):
        assert limit.count == 1
    assert (limit.count, limit.refused_total, limit.late_total) == (0, 1, 0)


async def test_wait_beyond_deadline_is_counted_as_late() -> None:
    limit = WaitLimit("maxWaitingRequests")
    with pytest.raises(WaitTimedOut):
        async with limit.waiting(HOLDER, 1, 0.001):
            await asyncio.Event().wait()
    assert (limit.count, limit.late_total) == (0, 1)


async def test_timeout_of_another_deadline_is_not_counted_as_late() -> None:
    limit = WaitLimit("maxWaitingRequests")
    with pytest.raises(TimeoutError, match="another"):
        async with limit.waiting(HOLDER, 1, FOREVER_S):
            raise TimeoutError("another")
    assert (limit.count, limit.late_total) == (0, 0)


async def test_cancelled_request_is_not_counted_any_more() -> None:
    limit = WaitLimit("maxWaitingRequests")

    async def wait() -> None:
        async with limit.waiting(HOLDER, 1, FOREVER_S):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert limit.count == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (limit.count, limit.late_total) == (0, 0)
