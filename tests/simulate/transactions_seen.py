"""The transactions of a run as the tape shows them: who asked for which end, and what is known to have become of each."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field

from tests.simulate import tape
from tests.simulate.tape import Event, Tape

NEVER = 1 << 60
GRAIN_S = 0.002
"""Times that are stored are whole milliseconds."""
Id = tuple[int, int]
Place = tuple[str, str | None]
"""A topic, or with a name a subscription of it."""


class Became(enum.StrEnum):
    """What clients know of an end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """One of the two: its client was cut off before it was told."""


@dataclass
class SeenTxn:
    """One transaction, from its begin to the end of the tape."""

    id: Id
    opened: Event
    ends: list[Event] = field(default_factory=list)
    """Who asked for an end, who was answered what, and who was not."""
    forged: set[Place] = field(default_factory=set)
    """Who takes part and was told of an end by somebody who may not say so, before any end was known."""
    became: Became = Became.UNKNOWN
    known_at: int = NEVER
    """The place on the tape where that is known."""
    contradiction: Event | None = None
    """An answer that says that it ended in the other way."""

    @property
    def first_asked(self) -> int:
        """Before that place on the tape only its time-out can have ended it."""
        return next((event.index for event in self.ends if event.what == tape.TXN_ENDING), NEVER)

    @property
    def commit_asked(self) -> int:
        """Before that place nobody may see anything of it."""
        return next(
            (event.index for event in self.ends if event.what == tape.TXN_ENDING and event.facts["is_commit"]), NEVER
        )

    @property
    def times_out_s(self) -> float:
        """Not before that."""
        return float(self.opened.facts["asked_s"] + self.opened.facts["timeout_s"] - GRAIN_S)

    def is_surely_open(self, at: Event) -> bool:
        return at.index < self.first_asked and at.at_s < self.times_out_s

    def is_committed_at(self, topic: str, subscription: str | None = None) -> bool:
        return self.became is Became.COMMITTED and (topic, subscription) not in self.forged

    def is_aborted_at(self, topic: str, subscription: str | None = None) -> bool:
        return self.became is Became.ABORTED and (topic, subscription) not in self.forged

    def judge(self) -> None:
        """Find out what is known, once all events are there."""
        for event in self.ends:
            found = _said(event)
            if found is None:
                continue
            if self.became is Became.UNKNOWN:
                self.became, self.known_at = found, event.index
            elif self.became is not found:
                self.contradiction = event
        if self.became is not Became.UNKNOWN:
            return
        commits = [event for event in self.ends if event.facts["is_commit"]]
        # Who was the first to ask for a commit, and was told that there is no such transaction any more, came too late.
        is_too_late = len(commits) > 1 and commits[1].facts.get("error") == "TransactionNotFound"
        if not commits or is_too_late:
            self.became = Became.ABORTED


def _said(event: Event) -> Became | None:
    """What an answer says about the end, if it does."""
    if event.what != tape.TXN_ENDED:
        return None
    is_commit, error = event.facts["is_commit"], event.facts["error"]
    if error == "":
        return Became.COMMITTED if is_commit else Became.ABORTED
    if error == "InvalidTxnStatus":  # It is on its way to the other end.
        return Became.ABORTED if is_commit else Became.COMMITTED
    return None


class TransactionsSeen:
    """Of one run."""

    def __init__(self, what: Tape) -> None:
        self.by_id: dict[Id, SeenTxn] = {}
        self.twice: list[Event] = []
        """Ids that were given before."""
        self.acked: dict[tuple[str, str], set[Id]] = defaultdict(set)
        """By subscription, in which transactions somebody acknowledged something there."""
        for event in what.of(tape.TXN_OPENED):
            if event.facts["txn"] in self.by_id:
                self.twice.append(event)
            self.by_id[event.facts["txn"]] = SeenTxn(event.facts["txn"], event)
        for event in what.of(tape.TXN_ENDING, tape.TXN_NOT_ANSWERED, tape.TXN_ENDED):
            if (txn := self.by_id.get(event.facts["txn"])) is not None:
                txn.ends.append(event)
        for txn in self.by_id.values():
            txn.judge()
        for event in what.of(tape.TXN_FORGED):
            txn = self.by_id.get(event.facts["txn"])
            if txn is not None and event.index < txn.known_at:
                txn.forged.add((event.facts["topic"], event.facts["subscription"]))
        for event in what.of(tape.ACKED):
            if event.facts["txn"] is not None:
                self.acked[event.facts["topic"], event.facts["subscription"]].add(event.facts["txn"])

    def of(self, event: Event) -> SeenTxn | None:
        """The transaction that an event is about; None for none."""
        id_ = event.facts.get("txn")
        return None if id_ is None else self.by_id.get(id_)

    def releases(self, topic: str, subscription: str) -> int:
        """How often at most messages of that subscription came back because what had acknowledged them was aborted."""
        return sum(
            not self.by_id[id_].is_committed_at(topic, subscription)
            for id_ in self.acked.get((topic, subscription), ())
        )
