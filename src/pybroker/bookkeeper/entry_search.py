"""The search for one entry during recovery, on all bookies of its write set."""

from __future__ import annotations

from enum import Enum

from pybroker.bookkeeper.errors import NoSuchEntry, NoSuchLedger
from pybroker.bookkeeper.quorums import Quorums

_MISSING = frozenset({NoSuchEntry.code, NoSuchLedger.code})


class Verdict(Enum):
    """What the answers so far prove."""

    OPEN = "open"
    FOUND = "found"
    MISSING = "missing"
    UNDECIDED = "undecided"
    """All bookies answered, and too few of them know whether the entry exists."""


class EntrySearch:
    """Decides whether an entry is part of the ledger. One valid replica is enough, even if no client was told that it is stored.

    That it is missing is decided only after all bookies answered or failed, so that the entry is found wherever a
    reachable bookie has it.
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
        """Take an answer without a valid entry."""
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
