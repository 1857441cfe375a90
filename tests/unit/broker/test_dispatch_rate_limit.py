"""Dispatch rates at work, by messages, bytes, and relative to what is published."""

from __future__ import annotations

from math import inf

from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit, is_limited
from pybroker.model.policies import DispatchRate


def test_a_rate_of_nothing_limits_nothing() -> None:
    assert not is_limited(DispatchRate())
    assert not is_limited(DispatchRate(-1, -1))
    assert is_limited(DispatchRate(dispatchThrottlingRateInByte=1))


def test_messages_and_bytes_are_limited_each_by_itself() -> None:
    limit = DispatchRateLimit("Topic", DispatchRate(10, 1000), 0, 0, 0)
    assert limit.allowance(0) == (10, 1000)
    limit.spend(2, 1500)
    assert limit.allowance(0) == (8, -500)
    assert limit.wait_ms() == 501
    assert limit.allowance(501) == (10, 1)


def test_what_is_not_limited_is_infinite() -> None:
    assert DispatchRateLimit("Topic", DispatchRate(10), 0, 0, 0).allowance(0) == (10, inf)
    assert DispatchRateLimit("Topic", DispatchRate(0, 10), 0, 0, 0).allowance(0) == (inf, 10)


def test_a_period_is_as_long_as_it_says_and_a_second_by_default() -> None:
    limit = DispatchRateLimit("Topic", DispatchRate(10, ratePeriodInSecond=10), 0, 0, 0)
    limit.spend(10, 0)
    assert limit.allowance(1000)[0] == 1
    limit = DispatchRateLimit("Topic", DispatchRate(10), 0, 0, 0)
    limit.spend(10, 0)
    assert limit.allowance(1000)[0] == 10


def test_a_relative_rate_lets_as_much_more_out_as_comes_in() -> None:
    limit = DispatchRateLimit("Topic", DispatchRate(10, 100, relativeToPublishRate=True), 0, 1000, 5000)
    limit.spend(10, 100)
    limit.published(1050, 5700)
    assert limit.allowance(0) == (50, 700)
    plain = DispatchRateLimit("Topic", DispatchRate(10), 0, 0, 0)
    plain.published(1000, 1000)
    assert plain.allowance(0)[0] == 10
