"""The BookKeeper client beside a model of bookies that fail in every way (tests/support/ledger_story.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ledger_story import STEPS, Step, random_steps, tell

from pybroker.bookkeeper import AppendOutcome

STORIES = 150
STEP_COUNT = 60


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first_seed", range(0, STORIES, 50))
def test_random_stories_lose_no_confirmed_entry(first_seed: int) -> None:
    outcomes: set[AppendOutcome] = set()
    for seed in range(first_seed, first_seed + 50):
        outcomes.update(tell(seed, random_steps(seed, STEP_COUNT)).outcomes.values())
    assert outcomes == set(AppendOutcome)


@given(st.integers(0, 1 << 32), st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1 << 16)), max_size=50))
def test_drawn_stories_lose_no_confirmed_entry(seed: int, steps: list[Step]) -> None:
    tell(seed, steps)
