"""The time within which the id of a new ledger must be stored in a metadata document. After that time, the cluster's
leader may delete the ledger as orphaned.

The owner checks the limit before it stores the document, and again when the document is stored. The second check
protects an owner that was frozen in between: it has not yet reported any entry of that ledger as stored.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.ledgers.ledger_properties import ClusterMark
from pybroker.runtime.clock import Clock


class Moment(NamedTuple):
    """A point in time by two clocks: the wall clock may jump, and the monotonic clock stops while the machine sleeps."""

    wall_ms: int
    monotonic_ms: float


class NamingLimit:
    """The limit for one broker.

    `mark` None: its ledgers are not marked, so they are never deleted and have no limit.
    """

    def __init__(self, clock: Clock, mark: ClusterMark | None) -> None:
        self._clock = clock
        self.mark = mark

    def now(self) -> Moment:
        return Moment(self._clock.wall_ms(), self._clock.monotonic_ms())

    def allows(self, created: Moment) -> bool:
        """Return whether the id of a new ledger may still be stored in a document. `created`: a moment before the
        creation of the ledger.
        """
        if self.mark is None:
            return True
        now = self.now()
        age_ms = max(now.wall_ms - created.wall_ms, now.monotonic_ms - created.monotonic_ms)
        return age_ms < self.mark.named_within_ms
