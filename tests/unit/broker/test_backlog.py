"""Rules of retention, expiry and backlog quotas."""

from __future__ import annotations

import pytest

from pybroker.broker.topic import backlog_rules
from pybroker.ledgers.ledger_store import LedgerSummary
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.model.policies import BacklogQuota, RetentionPolicies
from pybroker.model.position import Position

MB = 1024 * 1024


def closed_ledgers(*closed_ms: int) -> LedgerList:
    """Ledgers 1, 2, ... of ten entries of 100 bytes, closed at these times, and an open one behind them."""
    ledgers = LedgerList()
    for ledger_id, time_ms in enumerate(closed_ms, start=1):
        ledgers.add_ledger(ledger_id)
        ledgers.close_ledger(LedgerSummary(ledger_id, 10, 10, 1000), time_ms)
    last = len(closed_ms) + 1
    ledgers.add_ledger(last)
    ledgers.added(last, 10, 10, 1000)
    return ledgers


def test_retention_is_told_in_milliseconds_and_bytes_and_minus_one_stays() -> None:
    assert backlog_rules.retention_limits(RetentionPolicies(2, 3)) == RetentionLimits(120_000, 3 * MB)
    assert backlog_rules.retention_limits(RetentionPolicies(-1, 3)) == RetentionLimits(-1, 3 * MB)
    assert backlog_rules.retention_limits(RetentionPolicies(0, 0)) == RetentionLimits(0, 0)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "is_refused"),
    [
        (0, 0, False),
        (10, 10, False),
        (-1, -1, False),
        (-1, 10, False),
        (10, -1, False),
        (0, 10, True),
        (10, 0, True),
        (0, -1, True),
        (-1, 0, True),
        (-2, 10, True),
        (10, -2, True),
    ],
)
def test_retention_of_which_one_limit_alone_is_zero_is_refused(minutes: int, megabytes: int, is_refused: bool) -> None:
    assert bool(backlog_rules.retention_refusal(RetentionPolicies(minutes, megabytes))) is is_refused


@pytest.mark.parametrize(
    ("size_bytes", "seconds", "retention", "is_above"),
    [
        (10 * MB - 1, 599, RetentionPolicies(10, 10), False),
        (10 * MB, 0, RetentionPolicies(10, 10), True),
        (-1, 600, RetentionPolicies(10, 10), True),
        (10 * MB, 600, RetentionPolicies(-1, -1), False),
        (10 * MB, 600, RetentionPolicies(0, 0), False),
        (10 * MB, 0, RetentionPolicies(-1, 10), True),
        (-1, -1, RetentionPolicies(10, 10), False),
        (10 * MB, 600, None, False),
    ],
)
def test_a_quota_must_stay_below_retention(
    size_bytes: int, seconds: int, retention: RetentionPolicies | None, is_above: bool
) -> None:
    quota = BacklogQuota("producer_exception", limitSize=size_bytes, limitTime=seconds)
    assert backlog_rules.is_quota_above_retention(quota, retention) is is_above
    assert not backlog_rules.is_quota_above_retention(None, retention)


@pytest.mark.parametrize(
    ("limit", "size", "is_exceeded"), [(-1, 99, False), (10, 9, False), (10, 10, True), (0, 0, True)]
)
def test_a_size_is_exceeded_once_it_is_reached(limit: int, size: int, is_exceeded: bool) -> None:
    assert backlog_rules.is_size_exceeded(BacklogQuota(limitSize=limit), size) is is_exceeded


@pytest.mark.parametrize(
    ("limit_s", "oldest_ms", "is_exceeded"),
    [(10, None, False), (10, 90_000, False), (10, 89_999, True), (0, 1, False), (-1, 1, False)],
)
def test_an_age_is_exceeded_when_the_oldest_message_is_older(
    limit_s: int, oldest_ms: int | None, is_exceeded: bool
) -> None:
    assert backlog_rules.is_age_exceeded(BacklogQuota(limitTime=limit_s), oldest_ms, now_ms=100_000) is is_exceeded


def test_producers_are_blocked_by_two_of_the_three_policies() -> None:
    blocking = [
        policy
        for policy in backlog_rules.BacklogQuotaPolicy  # type: ignore[attr-defined]
        if backlog_rules.blocks_producers(BacklogQuota(policy))
    ]
    assert blocking == ["producer_request_hold", "producer_exception"]
    assert not backlog_rules.blocks_producers(BacklogQuota(None))


@pytest.mark.parametrize(
    ("size", "limit", "entries", "evicted"),
    [(2700, 1000, 20, 13), (945, 1000, 7, 0), (900, 1000, 7, 0), (1000, 1000, 1, 1), (1000, 0, 10, 10), (0, 0, 0, 0)],
)
def test_what_is_evicted_brings_the_backlog_to_nine_tenths(size: int, limit: int, entries: int, evicted: int) -> None:
    assert backlog_rules.entries_to_evict(size, limit, entries) == evicted


def test_evicting_comes_to_an_end_below_the_limit() -> None:
    for sizes in ([1] * 50, [1000] + [1] * 20, [1] * 20 + [1000], [7, 900, 3, 800, 5]):
        left = list(sizes)
        while count := backlog_rules.entries_to_evict(sum(left), 500, len(left)):
            del left[:count]
        assert sum(left) < 500


def test_what_is_evicted_by_age_is_a_tenth_younger_than_the_limit() -> None:
    assert backlog_rules.eviction_deadline_ms(BacklogQuota(limitTime=100), now_ms=200_000) == 110_000


def test_without_a_look_at_a_message_its_age_counts_from_when_its_ledger_was_closed() -> None:
    ledgers = closed_ledgers(100, 200)
    assert backlog_rules.closed_ms_of_oldest(ledgers, Position(1, -1)) == 100
    assert backlog_rules.closed_ms_of_oldest(ledgers, Position(1, 9)) == 200  # all of ledger 1 is read
    assert backlog_rules.closed_ms_of_oldest(ledgers, Position(2, 9)) is None  # what is left is in the open one
    assert backlog_rules.closed_ms_of_oldest(ledgers, Position(3, 9)) is None
    assert backlog_rules.closed_ms_of_oldest(LedgerList(), Position(-1, -1)) is None


def test_whole_ledgers_are_evicted_up_to_the_last_one_that_was_closed_in_time() -> None:
    ledgers = closed_ledgers(100, 200, 300)

    def end(mark_delete: Position, deadline_ms: int) -> Position | None:
        return backlog_rules.end_of_ledgers_closed_before(ledgers, mark_delete, deadline_ms)

    assert end(Position(1, -1), 100) is None
    assert end(Position(1, -1), 101) == Position(1, 9)
    assert end(Position(1, 4), 201) == Position(2, 9)
    assert end(Position(1, 4), 10_000) == Position(3, 9)
    assert end(Position(2, 9), 201) is None


def test_the_estimated_size_takes_the_entries_of_one_ledger_to_be_equal() -> None:
    ledgers = closed_ledgers(100)
    assert backlog_rules.estimated_bytes_behind(ledgers, Position(1, -1)) == 2000
    assert backlog_rules.estimated_bytes_behind(ledgers, Position(1, 4)) == 1500
    assert backlog_rules.estimated_bytes_behind(ledgers, Position(1, 9)) == 1000
    assert backlog_rules.estimated_bytes_behind(ledgers, Position(2, 9)) == 0
    assert backlog_rules.estimated_bytes_behind(ledgers, Position(0, 3)) == 2000  # its ledger is gone
