"""Managed ledgers on the local store beside a plain model, with crashes and faults at any operation.

What must hold: everything that was receipted is read back, at its position, in order and unchanged, unless trimming was
allowed to take it; positions rise and are never given twice; no receipted acknowledgement is undone, and the mark-delete
position never goes back but by a reset; of what was under way at a crash whole runs are there, in order, or nothing; counters
are those of the model; nothing comes back that was deleted.

Everything runs on one loop without threads and without time, so that a script that fails always fails. Two drivers take the
same steps: hypothesis, which shrinks what it finds, and a random walk, which is faster and leaves out steps by itself. The quick
runs are the same every time. The long ones take FUZZ_EXAMPLES and FUZZ_SEED (or `--hypothesis-seed`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.fuzz.managed_ledger_scripts import (
    OPENING,
    SCRIPTS,
    SEEDS_OF_A_SCRIPT,
    as_text,
    draw_script,
    failure_of,
    place_of,
    run_script,
    shorten,
    walk,
)
from tests.fuzz.managed_ledger_steps import STEPS, Steps
from tests.fuzz.managed_ledger_world import OPTIONS
from tests.unit.local_store.stores import DIRECTORY

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "600"))
FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "1"))
COMMON: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
QUICK = settings(max_examples=15, stateful_step_count=30, derandomize=True, **COMMON)
LONG = settings(max_examples=FUZZ_EXAMPLES // 20, stateful_step_count=50, **COMMON)


class _Machine(RuleBasedStateMachine):
    """The world under hypothesis; each step of a script is a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Steps | None = None
        self.has_failed = False

    @initialize(seed=st.integers(0, 3 * len(OPTIONS) - 1))
    def start(self, seed: int) -> None:
        self.world = Steps(seed)
        for name, arguments in OPENING:
            self.take(name, arguments)

    def take(self, name: str, arguments: dict[str, int]) -> None:
        assert self.world is not None
        try:
            self.world.take(name, arguments)
        except BaseException:
            self.has_failed = True
            raise

    def teardown(self) -> None:
        if self.world is None:
            return
        if self.has_failed:
            self.world.discard()
        else:
            self.world.close()


def _rule_of(name: str, arguments: dict[str, Sequence[int]]) -> Any:
    def step(self: _Machine, **drawn: int) -> None:
        self.take(name, drawn)

    step.__name__ = name
    return rule(**{key: st.sampled_from(sorted(set(values))) for key, values in arguments.items()})(step)  # type: ignore[call-overload]


ManagedLedgerMachine = type(
    "ManagedLedgerMachine", (_Machine,), {name: _rule_of(name, arguments) for name, (_, arguments) in STEPS.items()}
)


def test_managed_ledgers_equal_model() -> None:
    run_state_machine_as_test(ManagedLedgerMachine, settings=QUICK)


def test_managed_ledgers_equal_model_in_random_scripts() -> None:
    for seed in range(45):
        walk(seed, 40)


@pytest.mark.long
def test_managed_ledgers_equal_model_for_long() -> None:
    run_state_machine_as_test(ManagedLedgerMachine, settings=LONG)


@pytest.mark.long
def test_managed_ledgers_equal_model_in_many_random_scripts() -> None:
    for seed in range(1000 * FUZZ_SEED, 1000 * FUZZ_SEED + FUZZ_EXAMPLES // 3):
        walk(seed, 60)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_equals_model(name: str) -> None:
    for seed in range(SEEDS_OF_A_SCRIPT):
        run_script(seed, [*OPENING, *SCRIPTS[name]])


def test_script_is_deterministic() -> None:
    assert trace_of(7) == trace_of(7)


def trace_of(seed: int) -> tuple[list[tuple[str, str]], dict[str, bytes]]:
    """Every operation of a walk on disk and metadata, and the journal's bytes at its end."""
    operations: list[tuple[str, str]] = []
    world = Steps(seed)
    for name, arguments in draw_script(seed, 30):
        faults = world.life.faults
        world.life.disk.plan = lambda operation, file, faults=faults: (  # type: ignore[assignment, misc]
            operations.append((operation, file)),  # type: ignore[func-returns-value]
            faults(operation, file),
        )
        world.take(name, arguments)
    disk = world.life.disk
    world.close()
    directory = DIRECTORY / "journal"
    return operations, {name: disk.read_whole(name) for name in disk.list_names(directory)}


def test_failing_script_is_shortened_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Steps, turns: int) -> None:
        assert not self.open or turns != 5, "planted"

    monkeypatch.setattr(Steps, "settle", settle)
    script = [*OPENING, ("checkpoint", {"waits": 1}), ("settle", {"turns": 5}), ("look", {})]
    place = place_of(failure_of(0, script))
    shortest = shorten(0, script, place)
    assert shortest == [("open_topic", {"name": 0}), ("settle", {"turns": 5})]
    assert as_text(0, shortest) == (
        "run_script(0, [\n    ('open_topic', {'name': 0}),\n    ('settle', {'turns': 5}),\n])"
    )
