"""The heap of transaction timeouts."""

from __future__ import annotations

from pybroker.transactions.timeouts import SLACK, Timeouts


def test_due_returns_the_oldest_first_up_to_the_limit() -> None:
    timeouts = Timeouts()
    for least, due_ms in ((1, 30.0), (2, 10.0), (3, 20.0), (4, 99.0)):
        timeouts.add(least, due_ms)
    assert timeouts.next_ms == 10.0
    assert timeouts.due(50.0, 2) == [2, 3]
    assert timeouts.due(50.0, 2) == [1]
    assert timeouts.due(50.0, 2) == []
    assert timeouts.next_ms == 99.0


def test_next_ms_is_none_without_transactions() -> None:
    assert Timeouts().next_ms is None


def test_tidy_removes_ended_transactions_only_above_the_slack() -> None:
    timeouts = Timeouts()
    for least in range(SLACK + 2):
        timeouts.add(least, float(least))
    timeouts.tidy(1, lambda least: least == 7)
    assert len(timeouts) == SLACK + 2, "at the limit nothing is removed"
    timeouts.add(SLACK + 2, 0.0)
    timeouts.tidy(1, lambda least: least == 7)
    assert timeouts.due(float(SLACK), 10) == [7]
    assert len(timeouts) == 0
