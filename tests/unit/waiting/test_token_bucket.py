"""A rate applies over any longer time, even after bursts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybroker.waiting.token_bucket import TokenBucket


def test_a_period_passes_at_once_and_then_as_much_as_time_brings() -> None:
    bucket = TokenBucket(10, 1000, 0)
    assert bucket.available(0) == 10
    bucket.spend(10)
    assert bucket.available(0) == 0
    assert bucket.wait_ms() == 100
    assert bucket.available(99) == 0
    assert bucket.available(101) == 1
    assert bucket.available(351) == 3


def test_what_nobody_used_is_saved_up_for_one_period_only() -> None:
    bucket = TokenBucket(10, 2000, 0)
    bucket.spend(4)
    assert bucket.available(1_000_000) == 10


def test_debt_is_made_up_for_first() -> None:
    bucket = TokenBucket(10, 1000, 0)
    bucket.spend(35)
    assert bucket.available(0) == -25
    assert bucket.wait_ms() == 2600
    assert bucket.available(2500) == 0
    assert bucket.available(2600) == 1


def test_a_clock_that_stands_still_or_goes_back_takes_nothing_away() -> None:
    bucket = TokenBucket(10, 1000, 5000)
    assert bucket.available(4000) == 10
    bucket.spend(1)
    assert bucket.available(4000) == 9


def test_what_is_added_counts_beyond_the_rate_but_is_not_saved_up() -> None:
    bucket = TokenBucket(10, 1000, 0)
    bucket.add(50)
    assert bucket.available(0) == 60
    bucket.add(5)
    assert bucket.available(10_000) == 15


@given(
    units=st.integers(1, 1000),
    period_ms=st.integers(1, 5000),
    steps=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 300)), max_size=50),
)
def test_no_more_passes_than_the_rate_allows_and_one_overdraft(
    units: int, period_ms: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(units, period_ms, 0)
    now_ms = passed = largest = 0
    for wait_ms, wanted in steps:
        now_ms += wait_ms
        if bucket.available(now_ms) > 0:
            bucket.spend(wanted)
            passed += wanted
            largest = max(largest, wanted)
    assert passed <= units + now_ms * units / period_ms + largest


@given(units=st.integers(1, 1000), period_ms=st.integers(1, 5000), debt=st.integers(0, 5000))
def test_after_the_wait_something_passes(units: int, period_ms: int, debt: int) -> None:
    bucket = TokenBucket(units, period_ms, 0)
    bucket.spend(units + debt)
    assert bucket.available(bucket.wait_ms() + 0.01) >= 1
