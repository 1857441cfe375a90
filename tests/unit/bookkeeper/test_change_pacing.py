"""The pace of ensemble changes while no bookie confirms entries."""

from __future__ import annotations

from pybroker.bookkeeper.change_pacing import ChangePacing


def test_changes_without_progress_wait_longer_each_time_and_only_the_first_is_logged() -> None:
    pacing = ChangePacing(200, 3000)
    waits, logged = [], []
    for _ in range(7):
        waits.append(pacing.wait_ms(5))
        if waits[-1]:
            pacing.waited()
            assert pacing.wait_ms(5) == 0
        logged.append(pacing.changed())
    assert waits == [0, 200, 400, 800, 1600, 3000, 3000]
    assert logged == [True] + [False] * 6
    assert pacing.has_unlogged
    assert pacing.confirmed() == 7
    assert not pacing.has_unlogged


def test_confirmed_entry_makes_the_next_change_immediate() -> None:
    pacing = ChangePacing(200, 3000)
    assert pacing.wait_ms(5) == 0
    assert pacing.changed()
    assert pacing.wait_ms(6) == 0
    assert pacing.changed()
    assert pacing.wait_ms(6) == 200
