"""Runs tests with the compiled core of `pybroker.wire` and with pure Python: `make test-both`.

1. The unit tests of `wire` and `model`, with each implementation.
2. With `--seeds`: the simulator plays the same seeds with each implementation. The bytes on the simulated network and the
   number of loop iterations must be equal.

Exit code 1 if a test fails, a digest differs, or the core is needed and not compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from pybroker.wire.core import IMPLEMENTATION, PURE_PYTHON_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/unit/wire", "tests/unit/model")
BUILDS = {"compiled": "0", "python": "1"}
PLAY = """
import sys
from tests.simulate.outcome import play_seed
for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    outcome = play_seed(seed)
    print(seed, outcome.digest, outcome.turns, len(outcome.findings), flush=True)
"""


def environment(build: str) -> dict[str, str]:
    return os.environ | {PURE_PYTHON_VARIABLE: BUILDS[build]}


def run_unit_tests(build: str, workers: int) -> bool:
    print(f"unit tests of wire and model, {build}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *TESTS]
    return subprocess.run(command, cwd=ROOT, env=environment(build), check=False).returncode == 0


def play_seeds(first: int, count: int) -> bool:
    """Play the seeds with both implementations at the same time. Return whether their traces are equal."""
    command = [sys.executable, "-c", PLAY, str(first), str(count)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=environment(build), stdout=subprocess.PIPE, text=True)
        for build in BUILDS
    ]
    traces = [process.communicate()[0].splitlines() for process in processes]
    differing = [pair for pair in zip(*traces, strict=False) if pair[0] != pair[1]]
    for compiled, python in differing[:10]:
        print(f"differs: compiled {compiled}, python {python}")
    equal = not differing and all(len(trace) == count for trace in traces)
    print(f"seeds {first} to {first + count - 1}: {'equal' if equal else 'different'} traces", flush=True)
    return equal and not any(process.returncode for process in processes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.both_builds", description=__doc__)
    parser.add_argument("--build", choices=BUILDS, action="append", help="only the unit tests of this implementation")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="first seed of the simulator")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    options = parser.parse_args()
    builds = options.build or [*BUILDS]
    if IMPLEMENTATION != "compiled" and ("compiled" in builds or options.seeds):
        print("The core of pybroker.wire is not compiled: install a C compiler and the package again", file=sys.stderr)
        return 1
    passed = [run_unit_tests(build, options.workers) for build in builds]
    if options.seeds:
        passed.append(play_seeds(options.seed, options.seeds))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
