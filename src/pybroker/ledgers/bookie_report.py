"""The condition of the bookies on which a broker stores ledgers, as `explain`, metrics and health checks show it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pybroker.model.counters import LATENCY_BOUNDS_MS, Buckets

SLOW_APPEND_MS = 1000
"""An append that is not confirmed after this time counts as waiting for bookies."""


class BookieCondition(Enum):
    """Whether new entries can be stored on a bookie."""

    USABLE = "usable"
    QUARANTINED = "quarantined"
    """The bookie failed often. It is only chosen for new ensembles if too few other bookies exist."""
    READ_ONLY = "read-only"
    UNREACHABLE = "unreachable"
    """The bookie is registered, but has not answered since its connection failed."""
    UNREGISTERED = "unregistered"
    """The bookie's session with ZooKeeper has ended: the bookie stopped, or has no connection to ZooKeeper."""


class BookieReport(NamedTuple):
    """The condition of one bookie. `since_ms`: the time at which the condition began; None if it already existed when
    the broker started.
    """

    bookie_id: str
    condition: BookieCondition
    since_ms: int | None
    failure: str = ""
    """The reason of the last failure."""
    failure_count: int = 0
    """Lost connections, timeouts and refusals since the broker started."""


class BookiesReport(NamedTuple):
    """The conditions of all known bookies. `needed`: the number of bookies that a new ledger needs."""

    bookies: tuple[BookieReport, ...]
    needed: int

    @property
    def unusable(self) -> list[BookieReport]:
        return [each for each in self.bookies if each.condition is not BookieCondition.USABLE]

    @property
    def writable_count(self) -> int:
        writable = (BookieCondition.USABLE, BookieCondition.QUARANTINED)
        return sum(each.condition in writable for each in self.bookies)

    @property
    def refusal(self) -> str | None:
        """Return the reason why no ledger can be created; None if there are enough bookies."""
        if self.writable_count >= self.needed:
            return None
        return (
            f"a new ledger needs {self.needed} bookies (managedLedgerDefaultEnsembleSize), and {self.writable_count} of"
            f" {len(self.bookies)} are writable"
        )


class AppendWait(NamedTuple):
    """Entries of one open ledger that are not confirmed. `since_ms`: when the oldest was sent, by the monotonic clock."""

    ledger_id: int
    entry_count: int
    since_ms: float
    ensemble: tuple[str, ...]
    ack_quorum: int


class OperationTimes:
    """Durations of one operation in milliseconds, since the broker started."""

    def __init__(self) -> None:
        self.succeeded = Buckets(LATENCY_BOUNDS_MS)
        self.failed = Buckets(LATENCY_BOUNDS_MS)


class ClientStatistics(NamedTuple):
    """Counters of the broker's BookKeeper client. The names in `operations` are Pulsar's, such as ADD_ENTRY."""

    operations: dict[str, OperationTimes]
    pending_adds: int
    ensemble_changes: int
    quarantines: int
