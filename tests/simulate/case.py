"""A run made ready for judging: who disturbed what and when, and what the tape says of each topic and subscription."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulate import tape
from tests.simulate.running import KEEPER, Run
from tests.simulate.tape import Event
from tests.simulate.transactions_seen import NEVER, TransactionsSeen

Key = tuple[str, str]
"""Topic and subscription."""


class Finding(NamedTuple):
    """A promise that was broken; `index` is the place on the tape where one sees it."""

    rule: str
    text: str
    index: int = -1  # type: ignore[assignment]


@dataclass
class Window:
    """Between these places on the tape somebody changed what others see, by right; `end` is NEVER when nobody knows."""

    topic: str | None
    subscription: str | None
    how: str
    begin: int
    end: int = NEVER
    is_done: bool = False
    """Whether it was answered that it is done."""

    def concerns(self, topic: str, subscription: str) -> bool:
        if self.topic not in (None, topic):
            return False
        if self.subscription is None:
            return True
        return self.subscription == subscription


TOPIC_ENDS = ("delete topic", "truncate")
"""What takes messages away from everybody."""
REMOVALS = ("delete topic", "delete subscription", "unsubscribe")
"""After these a subscription of that name is another."""


class Case:
    """Built once for each run; every rule reads it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tape = run.tape
        self.windows = _windows(self.tape)
        self.transactions = TransactionsSeen(self.tape)
        self.got: dict[Key, list[Event]] = defaultdict(list)
        self.of_consumer: dict[str, list[Event]] = defaultdict(list)
        """Everything that one consumer saw and did between two subscribes."""
        for event in self.tape.of(
            tape.ATTACHED, tape.DETACHED, tape.GOT, tape.ACKED, tape.ACK_STORED, tape.NACKED, tape.ACTIVE
        ):
            if "consumer" not in event.facts:
                continue
            self.of_consumer[event.facts["consumer"]].append(event)
            if event.what == tape.GOT:
                self.got[event.facts["topic"], event.facts["subscription"]].append(event)
        self.attached = {
            event.facts["consumer"]: event for event in self.tape.of(tape.ATTACHED) if "consumer" in event.facts
        }
        self.sent: dict[str, Event] = {}
        """Of each message, when it was sent first."""
        for event in self.tape.of(tape.SENT):
            for value in event.facts["values"]:
                self.sent.setdefault(value, event)
        self.end_of_actions = next(
            (event.index for event in self.tape.of(tape.FAULT) if event.facts["how"] == "all over"),
            len(self.tape.events),
        )

    def is_disturbed(self, topic: str, subscription: str, since: int, until: int = NEVER) -> bool:
        """Whether anybody moved or dropped that subscription, or took messages from its topic, in between."""
        return any(
            window.begin <= until and window.end >= since and window.concerns(topic, subscription)
            for window in self.windows
        )

    def is_topic_ended(self, topic: str, since: int, until: int = NEVER) -> bool:
        return any(
            window.how in TOPIC_ENDS and window.topic == topic and window.begin <= until and window.end >= since
            for window in self.windows
        )

    def last_removal(self, topic: str, subscription: str) -> int:
        """When it was surely gone for the last time; -1 when nobody tried."""
        return max(
            (window.end for window in self.windows if window.how in REMOVALS and window.concerns(topic, subscription)),
            default=-1,
        )

    def kept(self, topic: str) -> list[Event] | None:
        """What the keeper's subscription held at rest, in order; None for a topic that has none."""
        stats = self.run.drained.stats.get(topic)
        if stats is None or KEEPER not in stats["subscriptions"]:
            return None
        return self.got[topic, KEEPER]

    def has_crash(self) -> bool:
        return any(event.facts["how"] in ("kill", "power_cut") for event in self.tape.of(tape.FAULT))

    def must_be_seen(self, value: str, topic: str) -> bool:
        """Whether a message is of no transaction, or of one that is known to be committed there."""
        txn = self.transactions.of(self.sent[value])
        return txn is None or txn.is_committed_at(topic)

    def topic_facts(self, topic: str) -> dict[str, object]:
        return self.run.script.topics.get(self.short_name(topic), {})

    @staticmethod
    def short_name(topic: str) -> str:
        """What the script calls this topic or partition."""
        return topic.rpartition("/")[2].partition("-partition-")[0]


def _windows(what: tape.Tape) -> list[Window]:
    by_token: dict[str, Window] = {}
    for event in what.of(tape.DISTURBING, tape.DISTURBED):
        facts = event.facts
        if event.what == tape.DISTURBING:
            by_token[facts["token"]] = Window(facts["topic"], facts["subscription"], facts["how"], event.index)
        else:
            by_token[facts["token"]].end = event.index
            by_token[facts["token"]].is_done = facts["is_done"]
    return list(by_token.values())
