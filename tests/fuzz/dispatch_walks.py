"""Two drivers of a dispatcher's model: hypothesis, which shrinks what it finds, and a random walk, fifty times as fast.

The quick runs are the same every time. The long ones take FUZZ_EXAMPLES and FUZZ_SEED (or `--hypothesis-seed`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from hypothesis import settings

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "600"))
FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "1"))
QUICK = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, database=None)
LONG = settings(max_examples=FUZZ_EXAMPLES, stateful_step_count=80, deadline=None, database=None)

# The steps of a walk: how often each is drawn, whether it can be taken, and how. The first argument is the model.
Step = tuple[int, Callable[[Any], bool], Callable[[Any, random.Random], None]]
COMMON_STEPS: list[Step] = [
    (
        4,
        lambda s: len(s.left) < 100,
        lambda s, r: s.publish([r.choice((1, 1, 1, 2, 3)) for _ in range(r.randint(1, 6))]),
    ),
    (1, lambda s: bool(s.consumers), lambda s, r: s.leave(r.randrange(4))),
    (6, lambda s: bool(s.consumers), lambda s, r: s.add_permits(r.randrange(4), r.randint(1, 12))),
    (2, lambda s: bool(s.consumers), lambda s, r: s.stall(r.randrange(4), r.random() < 0.7)),
    (6, lambda s: s.read is None, lambda s, r: s.begin_read()),
    (6, lambda s: s.read is not None, lambda s, r: s.end_read(r.choice((1.0, 1.0, 1.0, 0.5, 0.0)))),
    (4, lambda s: s.is_replaying(), lambda s, r: s.read_one_ledger()),
    (2, lambda s: True, lambda s, r: s.pump()),
    (3, lambda s: bool(s.left), lambda s, r: s.ack(r.randrange(200), r.randint(1, 3), r.randint(1, 5))),
    (3, lambda s: any(s.left), lambda s, r: s.ack_oldest()),
    (2, lambda s: any(s.left), lambda s, r: s.ack_partly(r.randrange(200), r.randrange(8))),
    (1, lambda s: bool(s.left), lambda s, r: s.ack_up_to(min(r.randrange(200), r.randrange(200)))),
    (
        4,
        lambda s: bool(s.consumers and s.left),
        lambda s, r: s.nack(r.randrange(4), [r.randrange(200) for _ in range(6)], r.random() < 0.3),
    ),
]


def walk(begin: Callable[[random.Random], Any], steps: list[Step], seed: int, step_count: int) -> None:
    """One random walk over the model that `begin` makes."""
    chance = random.Random(seed)
    machine = begin(chance)
    weights = [weight for weight, _, _ in steps]
    for _, possible, take in chance.choices(steps, weights, k=step_count):
        if possible(machine):
            take(machine, chance)
        elif chance.random() < 0.01:
            machine.reset()
        else:
            continue
        machine.check()


def walk_many(
    begin: Callable[[random.Random], Any], steps: list[Step], first_seed: int, count: int, step_count: int
) -> None:
    """Walks of consecutive seeds; a failure names its seed."""
    for seed in range(first_seed, first_seed + count):
        try:
            walk(begin, steps, seed, step_count)
        except Exception as error:
            error.add_note(f"found by the walk with seed={seed}, step_count={step_count}")
            raise
