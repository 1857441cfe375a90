"""Rules of sinks: all transactions of a numbered batch are committed together, and each batch once. Pure.

A sink is the name under which a program (the writer), such as a Spark query, writes batches. It has a mark: its last
committed batch. Batch numbers rise, so a batch at or below the mark is a repeat and has no effect. One log record both
moves the mark and commits the batch's transactions.

Another writer numbers its batches independently, so it is refused until it explicitly takes over.

The number of marks is limited, and each holder (role or address) has a share (`waiting/fair_shares.py`). At the limit,
a new sink replaces the least recently moved mark if that has not moved for the retention time; otherwise it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from pybroker.errors import AuthorizationError, InvalidTxnStatus, TooManyRequests
from pybroker.waiting.fair_shares import UNKNOWN, FairShares, Holder, holder_of_role

HOMES = 16
"""Coordinators that keep marks: the minimum number of coordinators, so that a sink's never changes."""
MAX_NAME = 256
"""Maximum number of characters in the name of a sink, a writer, or a run."""
MAX_BATCH = (1 << 63) - 1


def home_of(sink: str) -> int:
    return crc32c(sink.encode()) % HOMES


class Asking(NamedTuple):
    """The caller of an operation on a sink."""

    owner: str | None
    """The role of the caller; None without authorization."""
    may_all: bool
    """Whether the caller is a superuser, or there is no authorization."""
    holder: Holder = UNKNOWN

    def may(self, owner: str | None) -> bool:
        return owner is None or self.may_all or owner == self.owner


class Label(NamedTuple):
    """The sink and batch of a transaction."""

    sink: str
    batch: int
    writer: str
    run: str
    """The run of the writer. The first transaction of a later run aborts open transactions of earlier runs."""


class Mark(NamedTuple):
    """The last committed batch of a sink."""

    batch: int
    writer: str
    owner: str | None
    """The role that may move the mark; None for any role."""
    marked_ms: int
    """When the batch was committed, by the wall clock."""


class Marks:
    """Last committed batches (marks) of the sinks of one coordinator, in the order of their last commit."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}
        self._holders: dict[str, str] = {}
        self.counts = FairShares()

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[tuple[str, Mark]]:
        return iter(self._marks.items())

    def get(self, sink: str) -> Mark | None:
        return self._marks.get(sink)

    def is_repeat(self, label: Label, asking: Asking, *, takes_over: bool) -> bool:
        """Return whether the batch of `label`, or a later one, was committed. Raises AuthorizationError if the sink
        belongs to another role, and InvalidTxnStatus if it belongs to another writer and `takes_over` is not set.
        """
        mark = self._marks.get(label.sink)
        if mark is None:
            return False
        if not asking.may(mark.owner):
            raise AuthorizationError(f"the sink {label.sink} belongs to another role: use another sink name")
        if mark.writer != label.writer:
            if takes_over:
                return False
            raise InvalidTxnStatus(
                f"the sink {label.sink} belongs to the writer {mark.writer!r}, so the broker could "
                f"mistake batches of {label.writer!r} for repeated batches of {mark.writer!r}: use another name for this "
                "sink, or take over the sink when the other writer has ended permanently"
            )
        return label.batch <= mark.batch

    def makes_room(self, sink: str, holder: Holder, most: int, stands_for_ms: int, now_ms: int) -> str:
        """Return the sink whose mark must be deleted so that `sink` can get one; "" if none must be deleted. Raises
        TooManyRequests if a mark must be deleted, but none may be deleted yet.

        `most`: maximum number of marks. `stands_for_ms`: time for which a mark is kept after its last commit.
        """
        if sink in self._marks or self.counts.may_take(holder, most):
            return ""
        is_full = self.counts.is_full(most)
        for each, mark in self._marks.items():
            if now_ms - mark.marked_ms < stands_for_ms:
                break  # All later marks in the order moved later.
            if is_full or self._holders[each] == holder.name:
                return each
        refusal = self.counts.refusal(
            holder, most, "sinks whose last batch is kept", "maxTransactionSinksPerCoordinator"
        )
        raise TooManyRequests(
            f"the sink {sink} cannot be created: {refusal}. All existing sinks were used within "
            "transactionSinkRetentionInMinutes. Delete sinks that are not needed (DELETE "
            "/admin/v3/transactions/sinks/...)"
        )

    def put(self, sink: str, mark: Mark) -> None:
        """Store the last committed batch of `sink`."""
        holder = self._holders.get(sink)
        self.remove(sink)
        self._marks[sink] = mark
        if holder is None or mark.owner is not None:
            holder = holder_of_role(mark.owner).name
        self._hold(sink, holder)

    def held_by(self, sink: str, name: str) -> None:
        """Count the mark of `sink` for the holder `name` (an address), unless a role owns the mark. Necessary after the
        log was read, because the log does not contain addresses.
        """
        mark = self._marks.get(sink)
        if mark is not None and mark.owner is None and self._holders[sink] == UNKNOWN.name:
            self._drop(sink)
            self._hold(sink, name)

    def of(self, name: str) -> list[str]:
        """Return the sinks whose marks count for the holder `name` (role or address)."""
        return [sink for sink, holder in self._holders.items() if holder == name]

    def remove(self, sink: str) -> None:
        if self._marks.pop(sink, None) is not None:
            self._drop(sink)

    def _hold(self, sink: str, name: str) -> None:
        self._holders[sink] = name
        self.counts.add(name, 1)

    def _drop(self, sink: str) -> None:
        self.counts.add(self._holders.pop(sink), -1)

    def in_order(self) -> None:
        """Sort the marks by their last commit after the log was read, because rewritten marks are at its end."""
        self._marks = dict(sorted(self._marks.items(), key=lambda each: each[1].marked_ms))


class OpenOfSinks:
    """Open transactions of each sink, grouped by writer and run."""

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
        """Return the open transactions of `sink`, oldest first, as the low halves (`least`) of their ids."""
        return sorted(least for leasts in self._by_sink.get(sink, {}).values() for least in leasts)

    def of_others(self, label: Label) -> list[int]:
        """Return the open transactions of the sink of `label` that other writers or other runs opened, oldest first, as
        the low halves (`least`) of their ids.
        """
        own = (label.writer, label.run)
        runs = self._by_sink.get(label.sink, {})
        return sorted(least for run, leasts in runs.items() if run != own for least in leasts)

    def sinks(self) -> Iterable[str]:
        return self._by_sink
