"""Exclusive, Failover and Shared do what the model of `dispatch_model.py` says."""

from __future__ import annotations

import random

import pytest
from hypothesis.stateful import run_state_machine_as_test
from tests.fuzz.dispatch_model import KINDS, Subscription
from tests.fuzz.dispatch_walks import COMMON_STEPS, FUZZ_EXAMPLES, FUZZ_SEED, LONG, QUICK, Step, walk_many

STEPS: list[Step] = [
    *COMMON_STEPS,
    (1, lambda s: not s.consumers, lambda s, r: s.change_type(r.choice(KINDS), r.choice((0, 1, 8)))),
    (3, lambda s: s.is_failover, lambda s, r: s.start()),
    (
        3,
        lambda s: len(s.consumers) < 4,
        lambda s, r: s.join(r.choice((0, 0, 1)), r.choice((0, 0, 1, 6)), r.randint(0, 8)),
    ),
]


def begin(chance: random.Random) -> Subscription:
    machine = Subscription()
    machine.begin(kind=chance.choice(KINDS), limit=chance.choice((0, 0, 1, 8)))
    return machine


def test_dispatchers_do_what_the_model_says() -> None:
    run_state_machine_as_test(Subscription, settings=QUICK)


def test_dispatchers_do_what_the_model_says_on_random_walks() -> None:
    walk_many(begin, STEPS, FUZZ_SEED, 100, 100)


@pytest.mark.long
def test_dispatchers_do_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(Subscription, settings=LONG)


@pytest.mark.long
def test_dispatchers_do_what_the_model_says_on_many_random_walks() -> None:
    walk_many(begin, STEPS, FUZZ_SEED, 10 * FUZZ_EXAMPLES, 150)
