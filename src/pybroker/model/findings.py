"""Findings of `explain`: reasons why messages wait, as values shared by REST, the command line and the console.

Codes are an interface for programs: their text never changes, and each has one meaning. The page of
finding codes in the documentation is made of them (`tools/docs_pages.py`).
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
        "The topic is being closed; its clients look it up again, and it is loaded again.",
    )
    TOPIC_CHANGING = (
        "topic-changing",
        "The namespace or partitioned topic of the topic is being created, extended or deleted; requests wait for the end.",
    )
    TOPIC_LOAD_FAILED = "topic-load-failed", "The topic cannot be loaded."
    TOPIC_LOADING = "topic-loading", "The topic is being loaded, or waits for a load slot; requests wait for the end."
    METADATA_CONFLICT = (
        "metadata-conflict",
        "Another process has changed the topic's metadata: the topic is closed, so that it has only one owner.",
    )
    STORAGE_FAILED = (
        "storage-failed",
        "The topic's messages could not be written; it continues when a new ledger is ready.",
    )
    DISK_FULL = "disk-full", "There is no space for more messages: publishing is refused until space is available."
    DEDUPLICATION_RECOVERING = (
        "deduplication-recovering",
        "The topic reads its stored messages to restore deduplication; publishing is blocked until then.",
    )
    TRANSACTIONS_BEGINNING = (
        "transactions-beginning",
        "The first transaction of the topic creates its cursor; publishing is blocked until the cursor is stored.",
    )
    TOPIC_TERMINATED = "topic-terminated", "The topic was terminated: it accepts no more messages."
    BACKLOG_QUOTA = "backlog-quota", "A backlog is larger or older than its quota allows, so producers are refused."
    COMPACTION_RUNNING = "compaction-running", "The topic is being compacted, or waits for compaction."
    COMPACTION_FAILED = "compaction-failed", "The last compaction of the topic failed."
    PRODUCERS_REFUSED = "producers-refused", "Producers, or their messages, were refused recently."

    # --- producers ---------------------------------------------------------------------------------------------------

    PRODUCER_FENCED = (
        "producer-fenced",
        "The producer lost the topic to another producer, or came after the topic was taken over.",
    )
    PRODUCER_WAITS = "producer-waits", "The producer waits for exclusive access to the topic."
    TOPIC_OCCUPIED = "topic-occupied", "Another producer has exclusive access to the topic."
    SCHEMA_REFUSED = "schema-refused", "The producer's schema was refused."
    PRODUCER_NOT_AUTHORIZED = "producer-not-authorized", "The producer's role may not publish to the topic."
    PRODUCER_LIMIT = (
        "producer-limit",
        "The producer's name is taken, or the topic has reached its limit of producers.",
    )
    PRODUCER_REFUSED = "producer-refused", "The last attempt of the producer to connect to the topic was refused."
    DEDUPLICATION_GAP = (
        "deduplication-gap",
        "A message of the producer was not stored: later messages are refused until its client reconnects.",
    )
    SEQUENCE_ID_STALE = (
        "sequence-id-stale",
        "The producer's messages have sequence ids that are already stored, so they are dropped as duplicates.",
    )
    PUBLISH_RATE = (
        "publish-rate",
        "A publish rate is used up; the connection is not read until the rate allows the message.",
    )
    PUBLISH_MEMORY = (
        "publish-memory",
        "Too many bytes of messages wait to be stored; the connection is not read.",
    )
    MESSAGES_REFUSED = "messages-refused", "Messages of the producer were refused recently."
    PRODUCER_NOT_CONNECTED = "producer-not-connected", "No producer of that name is connected to the topic."

    # --- subscriptions, keys and consumers ---------------------------------------------------------------------------

    NO_CONSUMERS = "no-consumers", "Messages wait and no consumer is connected."
    READ_FAILED = "read-failed", "Stored messages cannot be read; the read is repeated."
    TRANSACTION_END_PENDING = (
        "transaction-end-pending",
        "A transaction is or may be committed and the topic does not know its end yet: readers wait for it.",
    )
    TRANSACTION_OPEN = (
        "transaction-open",
        "A transaction is open: messages from its first message on are not delivered until it has ended.",
    )
    MEMORY_BUDGET = "memory-budget", "The memory budget of the broker is used up; delivery waits for memory."
    UNACKED_LIMIT_BROKER = (
        "unacked-limit-broker",
        "The broker has reached its limit of unacknowledged messages, and the subscription exceeds its share.",
    )
    CONSUMER_SILENT = (
        "consumer-silent",
        "A connected consumer holds messages, and has long neither acknowledged nor requested any.",
    )
    UNACKED_LIMIT_SUBSCRIPTION = (
        "unacked-limit-subscription",
        "The subscription has reached its limit of unacknowledged messages.",
    )
    UNACKED_LIMIT_CONSUMER = "unacked-limit-consumer", "A consumer has reached its limit of unacknowledged messages."
    CONNECTION_FULL = (
        "connection-full",
        "A consumer has permits, but its connection is full: the client does not read.",
    )
    CONNECTION_HELD = (
        "connection-held",
        "The broker does not read from a client's connection: its messages, acknowledgements and permits wait.",
    )
    NO_PERMITS = (
        "no-permits",
        "A consumer's receiver queue is full: its client requests more after processing the messages that it holds.",
    )
    KEY_DRAINS = (
        "key-drains",
        "A key moved to another consumer, which waits until the previous consumer has acknowledged its messages of the key.",
    )
    HASH_WITHOUT_OWNER = "hash-without-owner", "No consumer has requested the hash range that a key belongs to."
    NEWCOMER_WAITS = (
        "newcomer-waits",
        "A new consumer waits until all messages read before it joined are acknowledged (classic Key_Shared).",
    )
    LOOK_AHEAD_FULL = (
        "look-ahead-full",
        "The look-ahead buffer of waiting messages is full, so nothing new is read for any consumer.",
    )
    ENTRY_FILTER = "entry-filter", "An entry filter has deferred messages."
    DISPATCH_RATE = "dispatch-rate", "A dispatch rate is used up."
    CONSUMER_STARTING = (
        "consumer-starting",
        "A consumer has just become the active one and waits for the failover delay.",
    )
    READING = "reading", "Messages are being read from the store for longer than usual."
    CONSUMER_NOT_CONNECTED = "consumer-not-connected", "No consumer of that name is connected to the subscription."
    CONSUMER_STANDS_BY = "consumer-stands-by", "Another consumer is the active one, and receives all messages."
    HELD_BY_CONSUMER = "held-by-consumer", "A consumer has messages that it has not acknowledged."
    CHUNKS_MISSING = (
        "chunks-missing",
        "A consumer has some chunks of a message, and the others have not been published.",
    )
    DELAYED = "delayed", "Messages wait for their delivery time."

    # --- messages ----------------------------------------------------------------------------------------------------

    ENTRY_DAMAGED = "entry-damaged", "The stored message is damaged and cannot be read."
    MESSAGE_BEING_STORED = "message-being-stored", "The message is being written to the disk."
    MESSAGE_UNCOMMITTED = (
        "message-uncommitted",
        "The message is part of an open transaction: it is delivered only after the commit.",
    )
    BEHIND_TRANSACTION = (
        "behind-transaction",
        "The message is behind the first message of an open transaction: it is delivered only after the end of the transaction.",
    )
    OUTSIDE_HASH_RANGES = (
        "outside-hash-ranges",
        "The message's key is outside the hash ranges that the consumer has requested.",
    )
    WAITS_FOR_KEY = "waits-for-key", "The message waits because no consumer may receive messages of its key's hash now."
    WAITS_FOR_CONSUMER = "waits-for-consumer", "The message waits for a consumer that can receive it."
    WAITS_FOR_REDELIVERY = (
        "waits-for-redelivery",
        "The message must be redelivered, and no consumer can receive it now.",
    )
    SET_ASIDE = "set-aside", "The message is parked until its key's consumer can receive more, and is then read again."
    MESSAGE_PUT_OFF = "message-put-off", "The message is being sent to a consumer, or an entry filter has deferred it."
    NOT_REACHED_YET = "not-reached-yet", "The message has no problem: other messages precede it."
    HELD_BY_TRANSACTION = (
        "held-by-transaction",
        "An open transaction has acknowledged the message: a commit confirms this, an abort redelivers the message.",
    )
    ALREADY_ACKNOWLEDGED = "already-acknowledged", "The message is acknowledged in the subscription."
    EXPIRED = "expired", "The message expired and counts as acknowledged in the subscription."
    SKIPPED = "skipped", "The message was skipped and counts as acknowledged in the subscription."
    FILTERED = "filtered", "The entry filters reject the message."
    MESSAGE_ABORTED = "message-aborted", "The message is part of an aborted transaction: it is never delivered."
    MARKER = "marker", "The entry is a marker written by a broker, not a message."
    COMPACTED_AWAY = (
        "compacted-away",
        "A later message of the same key has replaced it for readers of the compacted topic.",
    )
    MESSAGE_TRIMMED = "message-trimmed", "The message's ledger was deleted because it was no longer needed."
    MESSAGE_NEVER_EXISTED = "message-never-existed", "The topic does not have this message, and never had it."


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
