"""The simulator finds bugs: some of those that are planted for it, others each day. `make simulate-bugs` plants all."""

from __future__ import annotations

import time

import pytest
from tests.simulate.planted.__main__ import seeds_to_find, some
from tests.simulate.planted.table import PLANTED, Planted

TODAY = time.strftime("%Y-%m-%d", time.gmtime())


@pytest.mark.parametrize("bug", some(6, TODAY), ids=lambda bug: f"{bug.name} drawn for {TODAY}")
def test_a_planted_bug_is_found(bug: Planted) -> None:
    seeds, _ = seeds_to_find(bug)
    assert seeds, f"make simulate-bugs ARGS='--only {bug.name}'"


def test_half_of_the_planted_bugs_are_races_and_no_two_are_alike() -> None:
    assert len(PLANTED) >= 90
    assert 2 * sum(bug.is_race for bug in PLANTED) >= len(PLANTED)
    assert len({bug.name for bug in PLANTED}) == len(PLANTED)
