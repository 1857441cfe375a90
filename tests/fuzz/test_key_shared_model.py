"""Key_Shared in all modes does what the model of `key_shared_model.py` says."""

from __future__ import annotations

import random

import pytest
from hypothesis.stateful import run_state_machine_as_test
from tests.fuzz.dispatch_walks import COMMON_STEPS, FUZZ_EXAMPLES, FUZZ_SEED, LONG, QUICK, Step, walk_many
from tests.fuzz.key_shared_model import MODES, KeySharedSubscription

# More traffic than for the other types: what counts here happens while much is unacknowledged and owners change.
STEPS: list[Step] = [
    *COMMON_STEPS,
    (6, lambda s: len(s.left) < 150, lambda s, r: s.publish([r.choice((1, 1, 1, 2)) for _ in range(6)])),
    (16, lambda s: bool(s.consumers), lambda s, r: s.add_permits(r.randrange(4), r.randint(1, 12))),
    (8, lambda s: True, lambda s, r: s.pump()),
    (8, lambda s: s.read is None, lambda s, r: s.begin_read()),
    (12, lambda s: s.is_replaying(), lambda s, r: s.read_one_ledger()),
    (6, lambda s: bool(s.consumers), lambda s, r: s.stall(r.randrange(4), r.random() < 0.8)),
    (4, lambda s: s.read is None and bool(s.delayed), lambda s, r: s.some_are_due(r.randint(1, 5))),
    (1, lambda s: not s.consumers, lambda s, r: s.change_type(r.choice(MODES), r.choice((0, 0, 8)))),
    (1, lambda s: len(s.consumers) > 1, lambda s, r: s.leave(r.randrange(4))),
    (
        5,
        lambda s: len(s.consumers) < 4,
        lambda s, r: s.join(
            r.choice((0, 0, 0, 6)), r.randint(0, 8), set(r.sample(range(4), r.randint(0, 2))), r.randrange(10)
        ),
    ),
]


def begin(chance: random.Random) -> KeySharedSubscription:
    machine = KeySharedSubscription()
    machine.begin(
        chance.choice(MODES),
        chance.choice((0, 0, 8)),
        chance.choice((0, 0, 3)),
        chance.choice((0, 0, 6)),
        chance.choice((0, 0, 0, 1, 1500, 2500, 5000)),
        chance.random() < 0.3,
    )
    return machine


def test_key_shared_does_what_the_model_says() -> None:
    run_state_machine_as_test(KeySharedSubscription, settings=QUICK)


def test_key_shared_does_what_the_model_says_on_random_walks() -> None:
    walk_many(begin, STEPS, FUZZ_SEED, 60, 200)


@pytest.mark.long
def test_key_shared_does_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(KeySharedSubscription, settings=LONG)


@pytest.mark.long
def test_key_shared_does_what_the_model_says_on_many_random_walks() -> None:
    walk_many(begin, STEPS, FUZZ_SEED, 2 * FUZZ_EXAMPLES, 200)
