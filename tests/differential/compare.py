"""Two traces side by side; pure.

Invariant: a difference is reported under the label of the step where it is, and steps that only one broker took are
differences too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.differential.normalise import Json, flatten

ABSENT = "<absent>"


@dataclass(frozen=True)
class Difference:
    path: str
    ours: Json
    reference: Json


def by_path(steps: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    """All leaves of a trace; a label that comes again is numbered."""
    leaves: dict[str, Json] = {}
    seen: dict[str, int] = {}
    for label, value in steps:
        seen[label] = seen.get(label, 0) + 1
        name = label if seen[label] == 1 else f"{label} #{seen[label]}"
        leaves |= {f"{name}: {path}" if path else name: leaf for path, leaf in flatten(value).items()}
    return leaves


def differences(ours: Iterable[tuple[str, Json]], reference: Iterable[tuple[str, Json]]) -> list[Difference]:
    """What is not equal, in the order of the reference's trace, then what only we have."""
    left, right = by_path(ours), by_path(reference)
    paths = [*right, *(path for path in left if path not in right)]
    pairs = ((path, left.get(path, ABSENT), right.get(path, ABSENT)) for path in paths)
    return [Difference(*each) for each in pairs if not _same(each[1], each[2])]


def _same(left: Json, right: Json) -> bool:
    return type(left) is type(right) and left == right  # 1 and True and 1.0 are three different JSON values
