"""The rule that decides when the next ledger begins."""

from __future__ import annotations

import pytest

from pybroker.managed_ledger.rollover import LedgerLimits, RolloverStep, rollover_step

LIMITS = LedgerLimits(
    max_entries_per_ledger=100,
    max_bytes_per_ledger=1000,
    min_rollover_ms=50,
    max_rollover_ms=500,
    inactive_rollover_ms=200,
)


def step(
    entry_count: int = 1, size_bytes: int = 1, age_ms: float = 0, idle_ms: float = 0, *, frees_space: bool = False
) -> RolloverStep:
    return rollover_step(LIMITS, entry_count, size_bytes, age_ms, idle_ms, frees_space=frees_space)


@pytest.mark.parametrize(
    ("entry_count", "size_bytes", "expected"),
    [
        (89, 899, RolloverStep.STAY),
        (90, 1, RolloverStep.PREPARE),
        (1, 900, RolloverStep.PREPARE),
        (90, 999, RolloverStep.PREPARE),
        (1, 1000, RolloverStep.SWITCH),
    ],
)
def test_next_ledger_is_prepared_at_nine_tenths_of_a_limit(
    entry_count: int, size_bytes: int, expected: RolloverStep
) -> None:
    assert step(entry_count, size_bytes) is expected


@pytest.mark.parametrize(
    ("age_ms", "expected"), [(0, RolloverStep.PREPARE), (49, RolloverStep.PREPARE), (50, RolloverStep.SWITCH)]
)
def test_ledger_at_its_entry_limit_is_left_after_the_minimum_age(age_ms: int, expected: RolloverStep) -> None:
    assert step(100, age_ms=age_ms) is expected
    assert step(10_000, age_ms=age_ms) is expected


@pytest.mark.parametrize(("age_ms", "expected"), [(499, RolloverStep.STAY), (500, RolloverStep.SWITCH)])
def test_ledger_is_left_at_its_maximum_age(age_ms: int, expected: RolloverStep) -> None:
    assert step(age_ms=age_ms) is expected


@pytest.mark.parametrize(("idle_ms", "expected"), [(199, RolloverStep.STAY), (200, RolloverStep.SWITCH)])
def test_ledger_without_appends_is_left_after_the_inactive_time(idle_ms: int, expected: RolloverStep) -> None:
    assert step(age_ms=idle_ms, idle_ms=idle_ms) is expected


def test_inactive_time_of_zero_is_no_limit() -> None:
    assert rollover_step(LedgerLimits(), 1, 1, 0, 1e9, frees_space=False) is RolloverStep.STAY


def test_acknowledged_ledger_is_left_when_the_disk_is_full() -> None:
    assert step(frees_space=True) is RolloverStep.SWITCH
