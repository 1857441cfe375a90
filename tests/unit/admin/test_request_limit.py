"""The limit of requests per second for each client address."""

from __future__ import annotations

import pytest

from pybroker.admin.http.request_limit import MAX_CLIENTS, RequestLimit
from pybroker.errors import AdminError


def taken(limit: RequestLimit, address: str, now_ms: float, count: int) -> int:
    """Return the number of permitted requests of `count`."""
    permitted = 0
    for _ in range(count):
        try:
            limit.take(address, now_ms)
        except AdminError:
            continue
        permitted += 1
    return permitted


@pytest.mark.parametrize(("max_per_second", "in_ten_seconds"), [(5, 50), (1, 10), (0.5, 5), (2.5, 25)])
def test_permitted_requests_follow_rate(max_per_second: float, in_ten_seconds: int) -> None:
    limit = RequestLimit(max_per_second)
    first = taken(limit, "a", 0, 100)
    assert first == max(1, int(max_per_second))
    later = sum(taken(limit, "a", 100 * step, 100) for step in range(1, 101))
    assert abs(later - in_ten_seconds) <= 1


def test_addresses_have_separate_allowances() -> None:
    limit = RequestLimit(1)
    assert taken(limit, "a", 0, 2) == 1
    assert taken(limit, "b", 0, 2) == 1


def test_refusal_names_limit_and_setting() -> None:
    limit = RequestLimit(0.5)
    limit.take("a", 0)
    with pytest.raises(AdminError, match=r"More than 0\.5 .*httpRequestsMaxPerSecond") as refusal:
        limit.take("a", 0)
    assert refusal.value.status == 429


def test_least_recently_active_client_is_forgotten() -> None:
    limit = RequestLimit(1)
    limit.take("first", 0)
    limit.take("second", 0)
    assert taken(limit, "first", 0, 1) == 0, "a refused request counts as activity"
    for number in range(MAX_CLIENTS - 1):
        limit.take(f"other {number}", 0)
    assert taken(limit, "first", 0, 1) == 0
    assert taken(limit, "second", 0, 1) == 1
