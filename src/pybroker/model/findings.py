"""What `explain` finds: why something waits, as values that REST, the command line and the console show alike.

A code is a promise to programs: its text never changes, and it has one meaning. docs/explain.md has a row for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self


class Code(Enum):
    """Every finding there is, in the order in which they are to be mended: who stands first keeps those behind from mattering."""

    meaning: str
    """One sentence that says what it means wherever it is found."""

    def __new__(cls, text: str, meaning: str) -> Self:
        member = object.__new__(cls)
        member._value_ = text
        member.meaning = meaning
        return member

    # --- subscriptions, keys and consumers ---------------------------------------------------------------------------

    SUBSCRIPTION_CLOSED = "subscription-closed", "The subscription is being closed or deleted."
    NO_CONSUMERS = "no-consumers", "Messages wait and no consumer is connected."
    READ_FAILED = "read-failed", "Stored messages cannot be read; it is tried again."
    TRANSACTION_OPEN = (
        "transaction-open",
        "A transaction is open: nothing from its first message on is delivered until it has ended.",
    )
    MEMORY_BUDGET = "memory-budget", "Others have what memory the broker may use; delivery waits for its turn."
    UNACKED_LIMIT_BROKER = (
        "unacked-limit-broker",
        "The broker holds as many unacknowledged messages as it may, and the subscription more than its share.",
    )
    CONSUMER_SILENT = (
        "consumer-silent",
        "A connected consumer holds messages, and has long neither acknowledged any nor asked for more.",
    )
    UNACKED_LIMIT_SUBSCRIPTION = (
        "unacked-limit-subscription",
        "The subscription holds as many unacknowledged messages as it may.",
    )
    UNACKED_LIMIT_CONSUMER = "unacked-limit-consumer", "A consumer holds as many unacknowledged messages as it may."
    CONNECTION_FULL = (
        "connection-full",
        "A consumer has room for messages, but its connection is full: it does not read.",
    )
    CONNECTION_HELD = (
        "connection-held",
        "What a client sends is not looked at for now: its messages, acknowledgements and requests for more wait.",
    )
    NO_PERMITS = (
        "no-permits",
        "A consumer's receiver queue is full: its client asks for more when it has processed what it holds.",
    )
    KEY_DRAINS = (
        "key-drains",
        "A key moved to another consumer, which gets it when the one before has acknowledged what it holds of it.",
    )
    HASH_WITHOUT_OWNER = "hash-without-owner", "No consumer has asked for the range of hashes that a key falls into."
    NEWCOMER_WAITS = (
        "newcomer-waits",
        "A consumer that joined gets nothing before all is acknowledged that was read until then (classic Key_Shared).",
    )
    LOOK_AHEAD_FULL = (
        "look-ahead-full",
        "As many messages as may wait for keys and consumers do, so nothing new is read for anybody.",
    )
    ENTRY_FILTER = "entry-filter", "An entry filter has put messages off."
    DISPATCH_RATE = "dispatch-rate", "A dispatch rate is used up."
    CONSUMER_STARTING = (
        "consumer-starting",
        "A consumer has just become the active one and waits until the one before is surely done.",
    )
    READING = "reading", "Messages are being read from the store for longer than usual."
    CONSUMER_NOT_CONNECTED = "consumer-not-connected", "No consumer of that name is connected to the subscription."
    CONSUMER_STANDS_BY = "consumer-stands-by", "Another consumer is the active one, and gets everything."
    HELD_BY_CONSUMER = "held-by-consumer", "A consumer has messages that it has not acknowledged."
    CHUNKS_MISSING = (
        "chunks-missing",
        "A consumer has some chunks of a large message, and the others have not been published.",
    )
    DELAYED = "delayed", "Messages wait for their time."


@dataclass(frozen=True, slots=True)
class Action:
    """One call that helps, or shows more: its REST path, query included, and the like command where there is one."""

    text: str
    method: str
    path: str
    body: object = None
    command: str | None = None

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"text": self.text, "method": self.method, "path": self.path}
        if self.body is not None:
            shown["body"] = self.body
        if self.command is not None:
            shown["command"] = self.command
        return shown


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason, in words and with its evidence.

    `waits`: something that could be delivered or published is not, because of this; false for what is good to know and
    holds nothing up. `since_ms`: since 1970; None where nobody knows.
    """

    code: Code
    sentence: str
    waits: bool = True
    since_ms: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[Action] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            **self.as_short_json(),
            "evidence": dict(self.evidence),
            "actions": [action.as_json() for action in self.actions],
        }

    def as_short_json(self) -> dict[str, Any]:
        """Without evidence and suggestions: for lists of much."""
        return {"code": self.code.value, "waits": self.waits, "sentence": self.sentence, "since": self.since_ms}


_ORDER = {code: place for place, code in enumerate(Code)}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The one to mend first stands first; what holds nothing up stands last. Those alike keep their order."""
    return sorted(findings, key=lambda each: (not each.waits, _ORDER[each.code]))


def is_waiting(findings: Iterable[Finding]) -> bool:
    """Whether something that could be delivered or published is not."""
    return any(finding.waits for finding in findings)
