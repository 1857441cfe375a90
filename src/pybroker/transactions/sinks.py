"""Sinks: whoever writes batch after batch, each in several transactions that commit together, and each batch once. Pure.

A sink has a mark: the last of its batches that was committed. Batches rise, so a batch at or below the mark is a repeat, and is
without effect, whatever transactions it comes with. The mark is moved by the same record that commits the batch's transactions,
so neither can be without the other.

A mark belongs to a writer, a name of whoever counts the batches (a query with its checkpoint): another writer begins to count anew,
so that its batches would be taken for repeats, and lost. It is refused instead, until it says that it takes over.

Marks are kept in the order in which they were moved. There are at most so many; beyond that the one that has stood still for the
longest makes room, if that was long enough, else a new sink is refused. While there is room, no mark is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from pybroker.errors import AuthorizationError, InvalidTxnStatus, TooManyRequests

HOMES = 16
"""Coordinators that keep marks: as many as there are at least, so that a sink's never changes."""
MAX_NAME = 256
"""Characters of the name of a sink, a writer and a run."""
MAX_BATCH = (1 << 63) - 1


def home_of(sink: str) -> int:
    """The coordinator that keeps this sink's mark, and has all of its transactions."""
    return crc32c(sink.encode()) % HOMES


class Asking(NamedTuple):
    """Who asks for something of a sink."""

    owner: str | None
    """Its role; None where nobody is asked for a role."""
    may_all: bool
    """A super user, or nobody is asked for a role."""

    def may(self, owner: str | None) -> bool:
        """Whether it may use what that role has made."""
        return owner is None or self.may_all or owner == self.owner


class Label(NamedTuple):
    """What a transaction of a sink is for."""

    sink: str
    batch: int
    writer: str
    run: str
    """A run of the writer: a later run leaves nothing open of the one before."""


class Mark(NamedTuple):
    """The last batch of a sink that was committed."""

    batch: int
    writer: str
    owner: str | None
    """The role that may move it; None: everybody."""
    marked_ms: int
    """When the batch was committed, by the wall clock."""


class Marks:
    """Owned by the state of a coordinator. Invariant: in the order in which they were moved."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[tuple[str, Mark]]:
        return iter(self._marks.items())

    def get(self, sink: str) -> Mark | None:
        """None for a sink of which no batch was committed, or that was forgotten."""
        return self._marks.get(sink)

    def is_repeat(self, label: Label, asking: Asking, *, takes_over: bool) -> bool:
        """Whether the batch, or a later one, was committed. Raises AuthorizationError and InvalidTxnStatus for who may not ask."""
        mark = self._marks.get(label.sink)
        if mark is None:
            return False
        if not asking.may(mark.owner):
            raise AuthorizationError(f"the sink {label.sink} is another role's: use another name for this one")
        if mark.writer != label.writer:
            if takes_over:
                return False
            raise InvalidTxnStatus(
                f"the sink {label.sink} belongs to the writer {mark.writer!r}, and batches of {label.writer!r} would be taken for "
                "its: use another name for this sink, or take it over when the other one has ended for good"
            )
        return label.batch <= mark.batch

    def makes_room(self, sink: str, most: int, stands_for_ms: int, now_ms: int) -> str:
        """The sink to be forgotten for this one, empty for none. Raises TooManyRequests when there is no room."""
        if sink in self._marks or len(self._marks) < most:
            return ""
        oldest, mark = next(iter(self._marks.items()))
        if now_ms - mark.marked_ms < stands_for_ms:
            raise TooManyRequests(
                f"the coordinator of the sink {sink} keeps the last batches of {len(self._marks)} sinks, as many as may be "
                "(maxTransactionSinksPerCoordinator), and all of them were used within transactionSinkRetentionInMinutes: delete "
                "those that have ended (DELETE /admin/v3/transactions/sinks/...)"
            )
        return oldest

    def put(self, sink: str, mark: Mark) -> None:
        """It is moved, behind all others."""
        self.remove(sink)
        self._marks[sink] = mark

    def remove(self, sink: str) -> None:
        """It is forgotten, if it was known."""
        self._marks.pop(sink, None)

    def in_order(self) -> None:
        """The whole log was read: what was written again stands where it was written, so the order is made anew."""
        self._marks = dict(sorted(self._marks.items(), key=lambda each: each[1].marked_ms))


class OpenOfSinks:
    """Which transactions were opened for which sink and have not ended, apart for each run of a writer: a run that opens thousands
    looks at those of others only. Owned by the state of a coordinator.
    """

    def __init__(self) -> None:
        self._by_sink: dict[str, dict[tuple[str, str], dict[int, None]]] = {}

    def add(self, label: Label, least: int) -> None:
        runs = self._by_sink.setdefault(label.sink, {})
        runs.setdefault((label.writer, label.run), {})[least] = None

    def remove(self, label: Label, least: int) -> None:
        runs = self._by_sink[label.sink]
        leasts = runs[label.writer, label.run]
        del leasts[least]
        if not leasts:
            del runs[label.writer, label.run]
        if not runs:
            del self._by_sink[label.sink]

    def of(self, sink: str) -> list[int]:
        """By their `least`, the oldest first."""
        return sorted(least for leasts in self._by_sink.get(sink, {}).values() for least in leasts)

    def of_others(self, label: Label) -> list[int]:
        """The same without those of this run of this writer."""
        own = (label.writer, label.run)
        runs = self._by_sink.get(label.sink, {})
        return sorted(least for run, leasts in runs.items() if run != own for least in leasts)

    def sinks(self) -> Iterable[str]:
        """Those that have any."""
        return self._by_sink
