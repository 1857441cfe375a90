"""The memory budget on random walks: nobody waits for ever or in vain, turns are kept, everything is given back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.budget_model import BudgetWalk

NUMBERS = st.integers(0, 1000)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=80))
def test_a_budget_holds_on_any_walk(steps: list[tuple[int, int, int]]) -> None:
    BudgetWalk().run(steps)
