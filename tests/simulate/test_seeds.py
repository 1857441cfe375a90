"""Seeds: a few that are new to nobody, and every script that once found something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulate.outcome import play, play_seed
from tests.simulate.script import Script

from pybroker.wire.core import PURE_PYTHON_VARIABLE

FAILED_ONCE = Path(__file__).with_name("failed_once.jsonl")
SCRIPTS = [json.loads(line) for line in FAILED_ONCE.read_text().splitlines()]
SEEDS_A_TEST = 10


@pytest.mark.parametrize("first", range(0, 60, SEEDS_A_TEST))
def test_what_clients_are_promised_holds_for_the_first_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert not play_seed(seed).findings, f"python -m tests.simulate --seeds 1 --seed {seed}"


@pytest.mark.parametrize("known", SCRIPTS, ids=[known["name"] for known in SCRIPTS])
def test_what_a_script_once_found_does_not_come_back(known: dict[str, object]) -> None:
    assert not play(Script.from_json(json.dumps(known["script"]))).findings


def test_a_seed_is_the_same_to_the_byte_in_any_process_compiled_or_not() -> None:
    command = "from tests.simulate.outcome import play_seed; print(*(play_seed(seed).digest for seed in range(8)))"
    said = [
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": hashes, PURE_PYTHON_VARIABLE: pure},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hashes, pure in (("1", "0"), ("2", "1"))
    ]
    assert said[0] == said[1]
    assert len(set(said[0].split())) == 8
