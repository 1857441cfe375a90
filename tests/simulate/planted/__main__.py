"""`make simulate-bugs`: plants each bug, plays seeds until the judge finds it, and says how many that took.

    python -m tests.simulate.planted [--only NAME] [--few N --drawn-from TEXT]

The exit code is 1 when one is not found.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.simulate.planted.table import PLANTED, Planted
from tests.support.planting import BrokenPlant, planted, require_no_program_error


def seeds_to_find(bug: Planted) -> tuple[int, str]:
    """How many seeds it took, and what was said then; 0 when the bug was not found. Raises BrokenPlant where the plant is none."""
    with planted(bug.plant) as patch:
        for seed in range(bug.seeds):
            findings = bug.play(seed)
            if findings:
                patch.require_whole()
                for finding in findings:
                    require_no_program_error(": ".join(finding))
                return seed + 1, ": ".join(findings[0])
        patch.require_whole()
    return 0, "NOT FOUND"


def some(count: int, text: str) -> list[Planted]:
    """`count` bugs that `text` stands for, half of them races."""
    chance = random.Random(text)
    races = [bug for bug in PLANTED if bug.is_race]
    plain = [bug for bug in PLANTED if not bug.is_race]
    return [*chance.sample(races, (count + 1) // 2), *chance.sample(plain, count // 2)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="bugs whose name holds this")
    parser.add_argument("--few", type=int, default=0, help="so many bugs")
    parser.add_argument("--drawn-from", default=time.strftime("%Y-%m-%d"), help="what --few draws by; the date")
    asked = parser.parse_args()
    bugs = some(asked.few, asked.drawn_from) if asked.few else [bug for bug in PLANTED if asked.only in bug.name]
    if asked.few:
        print(f"{asked.few} of {len(PLANTED)} planted bugs, drawn from {asked.drawn_from}")
    missed = 0
    for bug in bugs:
        began_s = time.process_time()
        try:
            seeds, said = seeds_to_find(bug)
        except BrokenPlant as error:
            seeds, said = 0, f"BROKEN PLANT: {error}"
        missed += not seeds
        kind = "race " if bug.is_race else "plain"
        print(f"{seeds:4d} seeds {time.process_time() - began_s:6.1f} s {kind} {bug.name}: {said[:150]}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
