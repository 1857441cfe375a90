"""How many entries of a run a rate lets pass, and that over a longer time it holds."""

from __future__ import annotations

import random

from pybroker.broker.limits.rate_buckets import RateBuckets

SECOND_MS = 1000


def passing(limit: RateBuckets, counts: list[int], sizes: list[int], now_ms: float) -> int:
    """What passes, and is spent."""
    payloads = [bytes(size) for size in sizes]
    entries = limit.passing(counts, payloads, sum(sizes), now_ms)
    limit.spend(sum(counts[:entries]), sum(sizes[:entries]))
    return entries


def test_a_second_s_worth_passes_at_once_and_then_one_by_one() -> None:
    limit = RateBuckets(5, 0, SECOND_MS, 0)
    assert passing(limit, [1] * 20, [10] * 20, 0) == 5
    assert passing(limit, [1] * 15, [10] * 15, 0) == 0
    assert limit.wait_ms() == 200
    assert passing(limit, [1] * 15, [10] * 15, 200) == 1
    assert passing(limit, [1] * 14, [10] * 14, 399) == 0


def test_the_entry_that_uses_up_the_limit_passes_whole_and_is_made_up_for() -> None:
    limit = RateBuckets(0, 1000, SECOND_MS, 0)
    assert passing(limit, [1, 1], [5000, 10], 0) == 1
    assert passing(limit, [1], [10], 3999) == 0
    assert passing(limit, [1], [10], 4001) == 1


def test_a_batch_counts_with_all_its_messages() -> None:
    limit = RateBuckets(10, 0, SECOND_MS, 0)
    assert passing(limit, [7, 7, 7], [1, 1, 1], 0) == 2
    assert passing(limit, [1], [1], 400) == 0
    assert passing(limit, [1], [1], 500) == 1


def test_both_limits_hold() -> None:
    limit = RateBuckets(10, 100, SECOND_MS, 0)
    assert passing(limit, [1] * 5, [50] * 5, 0) == 2
    limit = RateBuckets(3, 1000, SECOND_MS, 0)
    assert passing(limit, [1] * 5, [50] * 5, 0) == 3


def test_over_a_long_time_no_more_passes_than_the_rate_and_one_second_s_worth() -> None:
    rng = random.Random(7)
    limit = RateBuckets(100, 10_000, SECOND_MS, 0)
    now_ms = messages = size_bytes = 0
    while now_ms < 60 * SECOND_MS:
        counts = [rng.randint(1, 20) for _ in range(rng.randint(1, 30))]
        sizes = [rng.randint(1, 2000) for _ in counts]
        entries = passing(limit, counts, sizes, now_ms)
        messages += sum(counts[:entries])
        size_bytes += sum(sizes[:entries])
        if entries < len(counts):
            now_ms += max(1, limit.wait_ms())
        assert messages <= 100 + now_ms * 100 / SECOND_MS + 20
        assert size_bytes <= 10_000 + now_ms * 10_000 / SECOND_MS + 2000
    assert messages > 0.9 * 60 * 100 or size_bytes > 0.9 * 60 * 10_000, "who waits loses nothing of the rate"
