"""Findings of `explain`: reasons why messages wait, as values shared by REST, the command line and the console.

Codes are an interface for programs: their text never changes, and each has one meaning. docs/explain.md has a row
for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self


class Code(Enum):
    """All findings, in the order in which they should be fixed: an earlier one makes the later ones irrelevant."""

    meaning: str
    """One sentence with the meaning of the code in every context."""

    def __new__(cls, text: str, meaning: str) -> Self:
        member = object.__new__(cls)
        member._value_ = text
        member.meaning = meaning
        return member

    # --- topics ------------------------------------------------------------------------------------------------------

    TOPIC_DELETING = "topic-deleting", "The topic is being deleted."
    TOPIC_UNLOADING = (
        "topic-unloading",
        "The topic is being closed; its clients look it up again, and it is loaded anew.",
    )
    TOPIC_CHANGING = (
        "topic-changing",
        "What the topic belongs to is being made, grown or deleted; requests wait for that.",
    )
    TOPIC_LOAD_FAILED = "topic-load-failed", "The topic cannot be loaded."
    TOPIC_LOADING = "topic-loading", "The topic is being loaded, or waits for its turn; requests wait for that."
    METADATA_CONFLICT = (
        "metadata-conflict",
        "Somebody else has changed what is stored of the topic: it is closed, so that two do not own it.",
    )
    STORAGE_FAILED = (
        "storage-failed",
        "The topic's messages could not be written; it goes on in a new ledger once there is one.",
    )
    DISK_FULL = "disk-full", "There is no space for more messages: publishing is refused until there is."
    DEDUPLICATION_RECOVERING = (
        "deduplication-recovering",
        "The topic reads again which messages it has stored; until it knows, nobody can publish.",
    )
    TRANSACTIONS_BEGINNING = (
        "transactions-beginning",
        "The first transaction of the topic makes its cursor; until that is stored, nobody can publish.",
    )
    TOPIC_TERMINATED = "topic-terminated", "The topic was terminated: it takes no more messages, for ever."
    BACKLOG_QUOTA = "backlog-quota", "A backlog is larger or older than its quota allows, and so no producer is let in."
    COMPACTION_RUNNING = "compaction-running", "The topic is being compacted, or waits for its turn."
    COMPACTION_FAILED = "compaction-failed", "The last compaction of the topic failed."
    PRODUCERS_REFUSED = "producers-refused", "Producers, or their messages, were refused lately."

    # --- producers ---------------------------------------------------------------------------------------------------

    PRODUCER_FENCED = (
        "producer-fenced",
        "The producer lost the topic to another one, or comes after one that has taken it.",
    )
    PRODUCER_WAITS = "producer-waits", "The producer waits for exclusive access to the topic."
    TOPIC_OCCUPIED = "topic-occupied", "Another producer has exclusive access to the topic."
    SCHEMA_REFUSED = "schema-refused", "The producer's schema was refused."
    PRODUCER_NOT_AUTHORIZED = "producer-not-authorized", "The producer's role may not publish to the topic."
    PRODUCER_LIMIT = (
        "producer-limit",
        "The producer's name is taken, or the topic has as many producers as it may.",
    )
    PRODUCER_REFUSED = "producer-refused", "The producer was refused when it came last."
    DEDUPLICATION_GAP = (
        "deduplication-gap",
        "A message of the producer was not stored: what it sends behind it is refused until its client connects again.",
    )
    SEQUENCE_ID_STALE = (
        "sequence-id-stale",
        "What the producer sends has sequence ids that are stored already, so it is dropped as duplicates.",
    )
    PUBLISH_RATE = (
        "publish-rate",
        "A publish rate is used up; nothing is read from the client until its message may pass.",
    )
    PUBLISH_MEMORY = (
        "publish-memory",
        "So many bytes of messages wait to be stored that nothing more is read from the client.",
    )
    MESSAGES_REFUSED = "messages-refused", "Messages of the producer were refused lately."
    PRODUCER_NOT_CONNECTED = "producer-not-connected", "No producer of that name is connected to the topic."

    # --- subscriptions, keys and consumers ---------------------------------------------------------------------------

    NO_CONSUMERS = "no-consumers", "Messages wait and no consumer is connected."
    READ_FAILED = "read-failed", "Stored messages cannot be read; it is tried again."
    TRANSACTION_END_PENDING = (
        "transaction-end-pending",
        "A transaction is or may be committed and the topic does not know its end yet: readers wait for it.",
    )
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

    # --- messages ----------------------------------------------------------------------------------------------------

    ENTRY_DAMAGED = "entry-damaged", "What is stored of the message cannot be read, now or ever."
    MESSAGE_BEING_STORED = "message-being-stored", "The message is on its way to the disk."
    MESSAGE_UNCOMMITTED = (
        "message-uncommitted",
        "The message is part of an open transaction: nobody gets it before that has committed.",
    )
    BEHIND_TRANSACTION = (
        "behind-transaction",
        "The message stands behind the first message of an open transaction: nobody gets it before that has ended.",
    )
    OUTSIDE_HASH_RANGES = (
        "outside-hash-ranges",
        "The consumer has asked for other ranges of hashes than that of the message's key.",
    )
    WAITS_FOR_KEY = "waits-for-key", "The message waits because nobody may have messages of its key's hash now."
    WAITS_FOR_CONSUMER = "waits-for-consumer", "The message waits for a consumer that can take it."
    WAITS_FOR_REDELIVERY = "waits-for-redelivery", "The message is to be sent again, and nobody can take it now."
    SET_ASIDE = "set-aside", "The message waits for its key's consumer, and is read again once that can take more."
    MESSAGE_PUT_OFF = "message-put-off", "The message is on its way to a consumer, or an entry filter has put it off."
    NOT_REACHED_YET = "not-reached-yet", "The message is fine: others stand before it."
    HELD_BY_TRANSACTION = (
        "held-by-transaction",
        "An open transaction has acknowledged the message: it counts when that commits, and comes again when it aborts.",
    )
    ALREADY_ACKNOWLEDGED = "already-acknowledged", "The message counts as read in the subscription."
    EXPIRED = "expired", "The message was too old and counts as read in the subscription."
    SKIPPED = "skipped", "The message was skipped and counts as read in the subscription."
    FILTERED = "filtered", "The entry filters reject the message."
    MESSAGE_ABORTED = "message-aborted", "The message is part of an aborted transaction: nobody ever gets it."
    MARKER = "marker", "The entry is a marker that brokers write, and no message."
    COMPACTED_AWAY = "compacted-away", "A later message of the same key has replaced it for those who read compacted."
    MESSAGE_TRIMMED = "message-trimmed", "The message's ledger is gone: nobody needed it any more."
    MESSAGE_NEVER_EXISTED = "message-never-existed", "The topic has no such message, and has had none."


class Severity(Enum):
    """The cost of a wrong action, from none to lost messages."""

    LOOK = "look"
    """The action shows data and changes nothing."""
    HARMLESS = "harmless"
    """The action changes a limit or the delivery time of a message. No client is disconnected, and no message is
    lost."""
    DISRUPTIVE = "disruptive"
    """The action disconnects clients or delivers messages again. No message is lost."""
    IRREVERSIBLE = "irreversible"
    """Messages, acknowledgements or a subscription are lost permanently."""


@dataclass(frozen=True, slots=True)
class Action:
    """A REST call that helps or shows more data: its path with the query, and the command that sends the same call.

    `text` states the one effect of the call. `command` contains neither the broker nor credentials: only the program
    that shows the action knows how its user reaches the broker.
    """

    severity: Severity
    text: str
    method: str
    path: str
    command: str
    body: object = None

    @property
    def label(self) -> str:
        """The text, marked for an irreversible action."""
        if self.severity is not Severity.IRREVERSIBLE:
            return self.text
        return f"Irreversible: {self.text[:1].lower()}{self.text[1:]}"

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "severity": self.severity.value,
            "text": self.label,
            "method": self.method,
            "path": self.path,
            "command": self.command,
        }
        if self.body is not None:
            shown["body"] = self.body
        return shown


_SEVERITY_ORDER = {severity: place for place, severity in enumerate(Severity)}


def safest_first(actions: Iterable[Action]) -> list[Action]:
    """Sort actions from harmless to irreversible. Actions of the same severity keep their order."""
    return sorted(actions, key=lambda each: _SEVERITY_ORDER[each.severity])


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason with its evidence: ids, ages, limits. Evidence that is None, or 0 for `more...`, is omitted.

    `waits`: this finding prevents a delivery or publication; False for information only. `since_ms`: since 1970;
    None if unknown.
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
            "evidence": _told(self.evidence),
            "actions": [action.as_json() for action in safest_first(self.actions)],
        }

    def as_short_json(self) -> dict[str, Any]:
        """Return the finding without evidence and suggestions, for long lists."""
        return {"code": self.code.value, "waits": self.waits, "sentence": self.sentence, "since": self.since_ms}


def _told(value: Any) -> Any:
    """Return the value without empty parts."""
    if isinstance(value, Mapping):
        return {
            name: _told(each)
            for name, each in value.items()
            if each is not None and not (each == 0 and name.startswith("more"))
        }
    return [_told(each) for each in value] if isinstance(value, list) else value


_ORDER = {code: place for place, code in enumerate(Code)}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: the first to fix first, those that delay nothing last. Stable."""
    return sorted(findings, key=lambda each: (not each.waits, _ORDER[each.code]))


def is_waiting(findings: Iterable[Finding]) -> bool:
    """Return whether a finding prevents a delivery or publication."""
    return any(finding.waits for finding in findings)
