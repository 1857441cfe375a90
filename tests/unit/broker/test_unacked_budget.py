"""Who has to stop when all subscriptions together hold too much, and when they go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybroker.broker.limits.unacked_budget import UnackedBudget


def test_at_the_limit_those_above_their_share_stop() -> None:
    budget = UnackedBudget[str](100, 0.2)
    assert budget.report("big", 70) == []
    assert budget.report("small", 20) == []
    assert not budget.is_stopped("big")
    assert budget.report("third", 10) == []
    assert budget.is_stopped("big")
    assert not budget.is_stopped("small")
    assert not budget.is_stopped("third")


def test_whoever_passes_its_share_while_the_limit_is_reached_stops_too() -> None:
    budget = UnackedBudget[str](100, 0.2)
    budget.report("big", 100)
    assert budget.report("other", 20) == []
    assert not budget.is_stopped("other")
    budget.report("other", 21)
    assert budget.is_stopped("other")


def test_at_half_of_its_share_one_goes_on_by_itself() -> None:
    budget = UnackedBudget[str](100, 0.2)
    budget.report("big", 90)
    budget.report("other", 30)
    budget.report("big", 95)
    assert budget.is_stopped("other")
    assert budget.report("other", 11) == []
    assert budget.report("other", 10) == ["other"]
    assert budget.is_stopped("big")


def test_at_half_of_the_limit_all_go_on() -> None:
    budget = UnackedBudget[str](100, 0.2)
    budget.report("a", 60)
    budget.report("b", 60)
    assert budget.report("b", 30) == []
    assert budget.is_stopped("a")
    assert budget.is_stopped("b")
    assert budget.report("a", 20) == ["a", "b"]
    assert not budget.is_stopped("a")
    assert not budget.is_stopped("b")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 80)), max_size=60))
def test_nobody_waits_once_the_sum_is_down_to_half(reports: list[tuple[int, int]]) -> None:
    budget = UnackedBudget[int](100, 0.16)
    held: dict[int, int] = {}
    stopped: set[int] = set()
    for subscription, messages in reports:
        before = {each for each in range(6) if budget.is_stopped(each)}
        released = budget.report(subscription, messages)
        held[subscription] = messages
        stopped = {each for each in range(6) if budget.is_stopped(each)}
        assert set(released) == before - stopped, "whoever may go on is told, once"
        assert budget.total == sum(held.values())
        if budget.total <= 50:
            assert not stopped
