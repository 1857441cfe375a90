"""Clusters of brokers keep their promises, whatever is killed, frozen and separated; and the same seed is the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulate.cluster.cluster_outcome import play_cluster, play_cluster_seed
from tests.simulate.script import Script

from pybroker.wire.core import PURE_PYTHON_VARIABLE

FAILED_ONCE = Path(__file__).with_name("failed_once.jsonl")
SCRIPTS = [json.loads(line) for line in FAILED_ONCE.read_text().splitlines()]
SEEDS_OF_A_TEST = 6


@pytest.mark.parametrize("first", range(0, 12, SEEDS_OF_A_TEST))
def test_first_cluster_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_OF_A_TEST):
        findings = play_cluster_seed(seed).findings
        assert not findings, f"python -m tests.simulate --cluster --seeds 1 --seed {seed}"


@pytest.mark.long
def test_further_cluster_seeds() -> None:
    for seed in range(12, 400, 5):  # `make simulate ARGS=--cluster` plays the others
        assert not play_cluster_seed(seed).findings, f"python -m tests.simulate --cluster --seeds 1 --seed {seed}"


@pytest.mark.parametrize("known", SCRIPTS, ids=[known["name"] for known in SCRIPTS])
def test_script_that_once_failed(known: dict[str, object]) -> None:
    assert not play_cluster(Script.from_json(json.dumps(known["script"]))).findings


def test_cluster_seed_is_the_same_in_any_process_compiled_or_not() -> None:
    command = (
        "from tests.simulate.cluster.cluster_outcome import play_cluster_seed as play;"
        " print(*(play(seed).digest for seed in (0, 2)))"  # with topic policies: 2
    )
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
    assert len(set(said[0].split())) == 2
