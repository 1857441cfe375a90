"""Rules of ensembles and quorums: which bookies store an entry, and when their responses prove that the entry is stored
or missing.

Entry e is stored on the bookies of the ensemble with the indexes (e + i) mod E, i < W. It is confirmed when A of them
have stored it and all earlier entries are confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pybroker.bookkeeper.errors import NoSuchEntry, NoSuchLedger


@dataclass(frozen=True, slots=True)
class Quorums:
    """Sizes of the ensemble, the write quorum and the ack quorum."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError(
                f"Invalid quorums: ensemble size {self.ensemble_size} must be at least write quorum "
                f"{self.write_quorum}, write quorum at least ack quorum {self.ack_quorum}, and ack quorum at "
                "least 1"
            )

    def write_sets(self) -> tuple[tuple[int, ...], ...]:
        """Return the write sets of a ledger. The write set of entry e is at index e mod `ensemble_size`. It contains
        the ensemble indexes of the bookies that store the entry, in the order in which readers try them.
        """
        size = self.ensemble_size
        return tuple(tuple((first + i) % size for i in range(self.write_quorum)) for first in range(size))

    @property
    def missing_proof(self) -> int:
        """The number of bookies in a write set that must lack an entry to prove that the entry was never confirmed."""
        return self.write_quorum - self.ack_quorum + 1


class FenceCoverage:
    """Counts the bookies of an ensemble on which the ledger is fenced, until no entry can be confirmed any more."""

    def __init__(self, quorums: Quorums) -> None:
        self._quorums = quorums
        self._fenced: set[int] = set()

    def fenced(self, index: int) -> None:
        self._fenced.add(index)

    def is_covered(self) -> bool:
        """Return whether the ledger is fenced on so many bookies that no entry can reach its ack quorum any more."""
        return all(
            sum(index not in self._fenced for index in write_set) < self._quorums.ack_quorum
            for write_set in self._quorums.write_sets()
        )


def replaced_indexes(old: Sequence[str], new: Sequence[str]) -> tuple[int, ...]:
    assert len(old) == len(new), "an ensemble keeps its size"
    return tuple(index for index, (before, after) in enumerate(zip(old, new, strict=True)) if before != after)


_MISSING = frozenset({NoSuchEntry.code, NoSuchLedger.code})


class Verdict(Enum):
    """The conclusion from the responses of bookies so far: whether the entry exists."""

    OPEN = "open"
    FOUND = "found"
    MISSING = "missing"
    UNDECIDED = "undecided"
    """All bookies responded or failed, and too few of them know whether the entry exists."""


class EntrySearch:
    """Decides whether an entry is part of the ledger. One valid replica is enough, even if no client was told that the
    entry is stored.

    The entry counts as missing only after all bookies responded or failed, so that it is found if any reachable bookie
    has it.
    """

    def __init__(self, quorums: Quorums) -> None:
        self._unanswered = quorums.write_quorum
        self._missing_proof = quorums.missing_proof
        self._missing = 0
        self._is_found = False

    def found(self) -> None:
        self._unanswered -= 1
        self._is_found = True

    def answered(self, code: int) -> None:
        """Count a bookie's response that contains no valid entry; `code`: its result code."""
        self._unanswered -= 1
        if code in _MISSING:
            self._missing += 1

    @property
    def verdict(self) -> Verdict:
        if self._is_found:
            return Verdict.FOUND
        if self._unanswered > 0:
            return Verdict.OPEN
        return Verdict.MISSING if self._missing >= self._missing_proof else Verdict.UNDECIDED
