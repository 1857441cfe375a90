"""Who has to stop when all subscriptions together hold too much, and when they go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybroker.broker.limits.broker_unacked_limit import BrokerUnackedLimit


def test_at_the_limit_those_above_their_share_stop() -> None:
    limit = BrokerUnackedLimit[str](100, 0.2)
    assert limit.report("big", 70) == []
    assert limit.report("small", 20) == []
    assert not limit.is_stopped("big")
    assert limit.report("third", 10) == []
    assert limit.is_stopped("big")
    assert not limit.is_stopped("small")
    assert not limit.is_stopped("third")


def test_whoever_passes_its_share_while_the_limit_is_reached_stops_too() -> None:
    limit = BrokerUnackedLimit[str](100, 0.2)
    limit.report("big", 100)
    assert limit.report("other", 20) == []
    assert not limit.is_stopped("other")
    limit.report("other", 21)
    assert limit.is_stopped("other")


def test_at_half_of_its_share_one_goes_on_by_itself() -> None:
    limit = BrokerUnackedLimit[str](100, 0.2)
    limit.report("big", 90)
    limit.report("other", 30)
    limit.report("big", 95)
    assert limit.is_stopped("other")
    assert limit.report("other", 11) == []
    assert limit.report("other", 10) == ["other"]
    assert limit.is_stopped("big")


def test_at_half_of_the_limit_all_go_on() -> None:
    limit = BrokerUnackedLimit[str](100, 0.2)
    limit.report("a", 60)
    limit.report("b", 60)
    assert limit.report("b", 30) == []
    assert limit.is_stopped("a")
    assert limit.is_stopped("b")
    assert limit.report("a", 20) == ["a", "b"]
    assert not limit.is_stopped("a")
    assert not limit.is_stopped("b")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 80)), max_size=60))
def test_nobody_waits_once_the_sum_is_down_to_half(reports: list[tuple[int, int]]) -> None:
    limit = BrokerUnackedLimit[int](100, 0.16)
    held: dict[int, int] = {}
    stopped: set[int] = set()
    for subscription, messages in reports:
        before = {each for each in range(6) if limit.is_stopped(each)}
        released = limit.report(subscription, messages)
        held[subscription] = messages
        stopped = {each for each in range(6) if limit.is_stopped(each)}
        assert set(released) == before - stopped, "whoever may go on is told, once"
        assert limit.total == sum(held.values())
        if limit.total <= 50:
            assert not stopped
