"""Appends that wait for a checkpoint: in order by owner, owners in turn."""

from pybroker.ledgers.ledger_store import AppendRun
from pybroker.local_store.deferred_appends import DeferredAppends


class Nobody:
    """A listener that must not be called."""

    def append_completed(self, runs: list[AppendRun], error: Exception | None) -> None:
        raise AssertionError


OWNERS = [Nobody() for _ in range(4)]
"""The ledgers 1, 11 and 21 belong to the first owner, and so on."""


def run(ledger_id: int, entry_id: int) -> AppendRun:
    return AppendRun(OWNERS[ledger_id % 10], ledger_id, entry_id, [b"x"], [1], 1, None)  # type: ignore[arg-type]


def places(runs: list[AppendRun]) -> list[tuple[int, int]]:
    return [(each.ledger_id, each.first_entry_id) for each in runs]


def held(*of_ledgers: int) -> DeferredAppends:
    """Return runs of these ledgers, in this order, with ascending entry ids."""
    runs = DeferredAppends()
    for entry_id, ledger_id in enumerate(of_ledgers):
        runs.hold(run(ledger_id, entry_id))
    return runs


def test_ledgers_take_turns_and_keep_their_own_order() -> None:
    runs = held(1, 1, 1, 2, 3, 2)
    assert runs.count == 6
    assert places(list(runs.release(lambda _: True))) == [(1, 0), (2, 3), (3, 4), (1, 1), (2, 5), (1, 2)]
    assert not runs.count


def test_a_ledger_that_may_not_go_stops_no_other_and_is_asked_once() -> None:
    runs = held(1, 1, 2, 2)
    asked = []

    def may_go(each: AppendRun) -> bool:
        asked.append(each.ledger_id)
        return each.ledger_id == 2

    assert places(list(runs.release(may_go))) == [(2, 2), (2, 3)]
    assert asked == [1, 2, 2]
    assert runs.holds(OWNERS[1])  # type: ignore[arg-type]
    assert not runs.holds(OWNERS[2])  # type: ignore[arg-type]


def test_turns_go_on_where_they_ended() -> None:
    runs = held(1, 1, 2, 2)
    left = 1

    def may_go(_: AppendRun) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    assert places(list(runs.release(may_go))) == [(1, 0)]
    left = 2
    assert places(list(runs.release(may_go))) == [(2, 2), (1, 1)]


def test_all_runs_of_a_ledger_or_of_all_are_taken() -> None:
    runs = held(1, 2, 1, 3)
    assert places(runs.take(1)) == [(1, 0), (1, 2)]
    assert runs.take(1) == []
    assert runs.count == 2
    assert places(runs.take_all()) == [(2, 1), (3, 3)]
    assert not runs.count


def test_who_goes_on_in_another_ledger_does_not_overtake_himself() -> None:
    runs = held(1, 2, 11, 1)
    assert runs.holds(OWNERS[1])  # type: ignore[arg-type]
    assert places(list(runs.release(lambda each: each.ledger_id != 1))) == [(2, 1)]
    assert places(list(runs.release(lambda _: True))) == [(1, 0), (11, 2), (1, 3)]


def test_the_runs_of_a_ledger_are_taken_from_among_those_of_its_owner() -> None:
    runs = held(1, 11, 1, 21)
    assert places(runs.take(1)) == [(1, 0), (1, 2)]
    assert runs.count == 2
    assert places(list(runs.release(lambda _: True))) == [(11, 1), (21, 3)]
    assert not runs.count
