from __future__ import annotations

from pybroker.cluster.membership.clock_differences import LIMIT_MS, ClockDifferences

NOW_MS = 1_000_000


def test_report_from_the_future_or_two_from_the_past_show_clock_difference() -> None:
    found = ClockDifferences()
    found.add("ahead", NOW_MS + 60_000, NOW_MS, is_new=False)
    assert found.found_ms == {"ahead": 60_000}
    found.add("behind", NOW_MS - 60_000, NOW_MS, is_new=True)
    assert "behind" not in found.found_ms, "this broker may have read it late"
    found.add("behind", NOW_MS - 30_000, NOW_MS + 30_000, is_new=True)
    assert found.found_ms["behind"] == -60_000
    found.add("behind", NOW_MS + 40_000, NOW_MS + 40_000, is_new=True)
    found.add("ahead", NOW_MS + 70_000, NOW_MS + 70_000, is_new=True)
    assert found.found_ms == {}


def test_old_report_small_difference_and_repeated_reading_show_nothing() -> None:
    found = ClockDifferences()
    for _ in range(3):
        found.add("old", NOW_MS - 600_000, NOW_MS, is_new=False)
        found.add("late", NOW_MS - 600_000, NOW_MS, is_new=True)
        found.add("close", NOW_MS + LIMIT_MS, NOW_MS, is_new=True)
        found.add("never", 0, NOW_MS, is_new=True)
    assert found.found_ms == {}


def test_broker_that_left_is_forgotten() -> None:
    found = ClockDifferences()
    found.add("ahead", NOW_MS + 60_000, NOW_MS, is_new=True)
    found.keep(["other"])
    assert found.found_ms == {}
