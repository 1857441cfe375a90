"""Differences that are meant, each with its reason: the same list that `docs/differences.md` shows.

A row names scenario and path by pattern (`fnmatch`; write `[[]0]` for the text `[0]`). Invariant, checked by the run:
every row of a scenario that ran still explains at least one difference, so that none outlives its reason.
"""

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Intended:
    scenario: str
    path: str
    reason: str


INTENDED: tuple[Intended, ...] = ()


def reason_for(scenario: str, path: str) -> Intended | None:
    """The first row that explains a difference at `path`."""
    for row in INTENDED:
        if fnmatch.fnmatchcase(scenario, row.scenario) and fnmatch.fnmatchcase(path, row.path):
            return row
    return None


def markdown() -> str:
    """The table for the documentation."""
    lines = ["| Scenario | Where | Reason |", "|---|---|---|"]
    lines += [f"| `{row.scenario}` | `{row.path}` | {row.reason} |" for row in INTENDED]
    return "\n".join(lines)
