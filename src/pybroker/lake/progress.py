"""Progress of a pipeline (its read positions) and its lease. The commit that adds the rows also stores them.

They are stored nowhere else, so they agree with the rows after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pybroker.reading.positions import Place

FORMAT_VERSION = 1
MAX_PIPELINE_NAME_LENGTH = 100


class ProgressUnreadable(ValueError):
    """The table contains an invalid position or lease. The text contains the remedy."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to write under a pipeline name. `epoch` increases with each owner; until `until_ms`
    (Unix time) no other process begins.

    Correctness does not depend on the clock: a commit is rejected if the table has changed since its writer loaded it.
    """

    owner: str = ""
    epoch: int = 0
    until_ms: int = 0

    def is_held(self, now_ms: int) -> bool:
        return self.until_ms > now_ms

    def taken_by(self, owner: str, until_ms: int) -> Lease:
        return Lease(owner, self.epoch + 1, until_ms)

    def renewed(self, until_ms: int) -> Lease:
        return replace(self, until_ms=until_ms)

    def released(self) -> Lease:
        """Return this lease with no remaining time, so that another process may take it at once."""
        return replace(self, until_ms=0)


@dataclass(frozen=True, slots=True)
class Progress:
    """The pipeline's lease, and the position of each topic or partition up to which its rows are in the table."""

    positions: Mapping[str, Place] = field(default_factory=dict)
    lease: Lease = field(default_factory=Lease)

    def moved(self, positions: Mapping[str, Place], lease: Lease) -> Progress:
        """Return the progress with new positions and lease. Raises AssertionError if a position would move back."""
        for topic, place in positions.items():
            before = self.positions.get(topic)
            assert before is None or before <= place, f"{topic} would move back from {before} to {place}"
        return Progress({**self.positions, **positions}, lease)


def positions_text(positions: Mapping[str, Place]) -> str:
    """Return the positions as JSON. Equal positions give equal text: `{"t":{"persistent://...":[12,0]},"v":1}`."""
    places = {topic: list(place) for topic, place in sorted(positions.items())}
    return json.dumps({"t": places, "v": FORMAT_VERSION}, separators=(",", ":"), sort_keys=True)


def positions_of(text: str) -> dict[str, Place]:
    try:
        document = json.loads(text)
        if document["v"] != FORMAT_VERSION:
            raise ProgressUnreadable(
                f"the stored positions have version {document['v']}, but this release reads only version "
                f"{FORMAT_VERSION}: use a newer pybroker"
            )
        return {str(topic): Place(int(ledger), int(entry)) for topic, (ledger, entry) in document["t"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ProgressUnreadable):
            raise
        raise ProgressUnreadable(
            f"the positions in the table cannot be read ({error}) and were not changed: "
            "use another --name, which begins at --start, or restore the property from an older snapshot"
        ) from error


def lease_text(lease: Lease) -> str:
    return json.dumps({"epoch": lease.epoch, "owner": lease.owner, "untilMs": lease.until_ms}, separators=(",", ":"))


def lease_of(text: str) -> Lease:
    try:
        document = json.loads(text)
        return Lease(str(document["owner"]), int(document["epoch"]), int(document["untilMs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ProgressUnreadable(
            f"the lease in the table cannot be read ({error}): use another --name, or restore an older snapshot"
        ) from error


def check_pipeline_name(name: str) -> str:
    """Return the name if it is valid in a property, an app id and a file name. Raises ValueError."""
    is_plain = all(character.isascii() and (character.isalnum() or character in "-_") for character in name)
    if not name or len(name) > MAX_PIPELINE_NAME_LENGTH or not is_plain or name.startswith("snap-"):
        raise ValueError(
            f"--name {name!r} is invalid, because it is part of file names: use 1 to "
            f"{MAX_PIPELINE_NAME_LENGTH} letters, digits, '-' and '_', and do not begin with 'snap-'"
        )
    return name
