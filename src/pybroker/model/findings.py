"""Findings of `pybroker explain`: reasons why messages wait, for REST, the command line and the console.

Codes are an interface for programs: their text never changes, and each has one meaning. The documentation of the codes
is generated from them (`tools/docs_pages.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from pybroker.model.finding_evidence import evidence_shown

GUIDE = "Find out why messages wait"
"""Title of the how-to guide that explains all codes. A title, because an installed broker has no documentation files and
knows no address of them.
"""


class Code(Enum):
    """All codes, in the order in which their causes should be fixed: while an earlier code applies, later codes do not
    matter.
    """

    meaning: str
    """One sentence with the meaning of the code in every context: why messages wait, or why nothing has to wait."""
    advice: str
    """The remedy, for a reader who has never seen this broker."""

    def __new__(cls, text: str, meaning: str, advice: str) -> Self:
        member = object.__new__(cls)
        member._value_ = text
        member.meaning = meaning
        member.advice = advice
        return member

    # --- topics ------------------------------------------------------------------------------------------------------

    TOPIC_DELETING = (
        "topic-deleting",
        "The topic is being deleted.",
        "Wait until the deletion is complete. If the deletion does not end, search the broker's log for the topic's name.",
    )
    TOPIC_UNLOADING = (
        "topic-unloading",
        "The topic is being closed. Its clients then look it up again, and a broker loads it again.",
        "Wait a few seconds: clients reconnect by themselves. If the unload does not end, search the broker's log for the topic.",
    )
    TOPIC_CHANGING = (
        "topic-changing",
        (
            "The topic's namespace or partitioned topic is being created, extended or deleted; requests wait until the "
            "operation is complete."
        ),
        "Wait: the requests continue when the operation is complete.",
    )
    TOPIC_LOAD_FAILED = (
        "topic-load-failed",
        "The topic cannot be loaded.",
        "Read the error in the finding's text and remove its cause. Clients retry by themselves; no restart is needed.",
    )
    TOPIC_LOADING = (
        "topic-loading",
        "The topic is being loaded, or waits for a load slot (maxConcurrentTopicLoadRequest); requests wait until it is loaded.",
        "Wait: requests continue when the topic is loaded. If that takes minutes, check the load of the broker's disk.",
    )
    METADATA_UNREACHABLE = (
        "metadata-unreachable",
        "The broker has no connection to the metadata store that the brokers of its cluster share.",
        (
            "Check the servers of the metadata store and the network between them and the broker. The broker connects again by "
            "itself; loaded topics continue meanwhile."
        ),
    )
    BROKER_NOT_REGISTERED = (
        "broker-not-registered",
        "This broker is not registered in its cluster, so no bundle is assigned to it.",
        "Remove the cause, which is the error in the text of this finding. The broker tries to register each second.",
    )
    LOAD_MANAGER_CONFLICT = (
        "load-manager-conflict",
        "A broker of the cluster uses another load manager, so Java brokers may send all clients to the newest broker.",
        "Set the same loadManagerClassName on all brokers of the cluster, and restart the brokers that you change.",
    )
    REGISTRATION_UNUSABLE = (
        "registration-unusable",
        "The registration of a broker in the metadata store cannot be used. While it exists, all lookups at Java brokers may fail.",
        "Restart the named broker. If that broker no longer exists, delete its registration in the metadata store.",
    )
    BUNDLE_NOT_SERVED = (
        "bundle-not-served",
        "No broker serves the topic's bundle now, because a broker's session with the metadata store is lost or ends soon.",
        (
            "Wait: clients look the topic up again by themselves. After a broker was killed, this takes as long as the session "
            "time-out (metadataStoreSessionTimeoutMillis). If it takes longer, check the connection to the metadata store."
        ),
    )
    BUNDLE_UNLOADING = (
        "bundle-unloading",
        "The topic's namespace bundle is being unloaded or transferred to another broker; clients reconnect afterwards.",
        (
            "Wait a few seconds. If the unload does not end, a topic of the bundle cannot be closed: search the "
            "owner's log for the bundle."
        ),
    )
    BUNDLE_WITHOUT_OWNER = (
        "bundle-without-owner",
        "The topic's namespace bundle has no owner, and no broker can acquire it now.",
        (
            "Read the reason in the finding's text. If isolation policies exclude all registered brokers, start one of the brokers "
            "that they name, or change the policies. If the leader does not respond, restart it: its session then ends."
        ),
    )
    OWNER_NOT_ANSWERING = (
        "owner-not-answering",
        "The broker that owns the topic's namespace bundle does not respond: it hangs or was killed, or the network fails.",
        (
            "If the process was killed, wait: another broker takes the bundle when the session of the owner ends "
            "(metadataStoreSessionTimeoutMillis). If the process hangs and its session does not end, restart the broker. "
            "Otherwise repair the network between the brokers."
        ),
    )
    OWNER_WITHOUT_EXPLAIN = (
        "owner-without-explain",
        "The broker that owns the topic's namespace bundle is a Java broker of Apache Pulsar, which cannot explain topics.",
        (
            "Read the statistics of the topic: `pybroker stats TOPIC`. To explain the topic, transfer its bundle to a "
            "pybroker with `pulsar-admin namespaces unload --destinationBroker`."
        ),
    )
    BUNDLE_OWNER_CONFLICT = (
        "bundle-owner-conflict",
        "This broker serves the topic, but the ownership document of its bundle is missing or contains another broker.",
        (
            "Wait a few seconds: this broker reads the document again and closes the topics of the bundle; clients then find the "
            "new owner. If the finding stays, unload the bundle. Find the program that changes nodes below /namespace in the "
            "metadata store: only brokers may do that."
        ),
    )
    METADATA_CONFLICT = (
        "metadata-conflict",
        "Another process has changed the topic's metadata. The broker closes the topic, because a topic may have only one owner.",
        "Check that only one broker process uses this data directory or metadata store. The topic is loaded again by itself.",
    )
    RECOVERY_LACKS_BOOKIES = (
        "recovery-lacks-bookies",
        "The topic cannot be opened while bookies cannot be used: its last ledger or one of its cursors must be recovered first.",
        (
            "Start the named bookies, or repair the network between them and the broker. The topic is then loaded by itself. "
            "`pybroker ledger list --topic TOPIC` lists the bookies of each of its ledgers."
        ),
    )
    BOOKIES_TOO_FEW = (
        "bookies-too-few",
        "No ledger can be created: fewer bookies are writable than managedLedgerDefaultEnsembleSize.",
        (
            "Start the named bookies, free space on read-only bookies, or add bookies. Publishing resumes by itself. "
            "Do not lower the ensemble size before you know why bookies are missing."
        ),
    )
    BOOKIES_NOT_USABLE = (
        "bookies-not-usable",
        "Some bookies cannot be used; enough other bookies are writable, so no message waits.",
        (
            "Start the named bookies, or free space on read-only bookies, before more bookies fail. BookKeeper's AutoRecovery "
            "replicates the ledgers of lost bookies."
        ),
    )
    ACK_QUORUM_UNREACHABLE = (
        "ack-quorum-unreachable",
        "Published messages wait, because fewer bookies of the topic's ledger respond than its ack quorum requires.",
        (
            "Start the named bookies, or repair the network between them and the broker. Publishing resumes by itself, with other "
            "bookies if there are enough; messages that wait longer than the clients' send time-out are reported as failed."
        ),
    )
    STORAGE_FAILED = (
        "storage-failed",
        "A write of the topic's messages failed. The broker refuses messages for the topic until it has created a new ledger.",
        "Check the broker's disk and its log for the error of the write. The broker retries by itself.",
    )
    DISK_FULL = (
        "disk-full",
        "There is no space for more messages: publishing is refused until space is available.",
        (
            "Free disk space: acknowledge or skip old messages, reduce retention, delete "
            "unused subscriptions and topics, or enlarge the disk."
        ),
    )
    DEDUPLICATION_RECOVERING = (
        "deduplication-recovering",
        "The topic reads its stored messages to restore deduplication; publishing is blocked until then.",
        "Wait: publishing resumes by itself. A topic with few messages since its last snapshot recovers faster.",
    )
    TRANSACTIONS_BEGINNING = (
        "transactions-beginning",
        "The broker creates the cursor that the topic's first transaction needs. All publishing to the topic waits until then.",
        "Wait: publishing resumes by itself. If it does not, check the broker's log and its disk.",
    )
    TOPIC_TERMINATED = (
        "topic-terminated",
        "The topic was terminated: it accepts no more messages.",
        "Publish to another topic: a terminated topic cannot be opened again. Consumers may still read its messages.",
    )
    BACKLOG_QUOTA = (
        "backlog-quota",
        "A backlog is larger or older than its quota allows, so producers are refused.",
        (
            "Make the consumers of the named subscription acknowledge faster, raise the "
            "quota, or delete the subscription if it is unused."
        ),
    )
    COMPACTION_RUNNING = (
        "compaction-running",
        "The topic is being compacted, or waits for compaction.",
        "Nothing has to be done: compaction does not stop producers or consumers.",
    )
    COMPACTION_FAILED = (
        "compaction-failed",
        "The last compaction of the topic failed.",
        "Read the error, remove its cause, and compact the topic again.",
    )
    PRODUCERS_REFUSED = (
        "producers-refused",
        "Producers, or their messages, were refused recently.",
        "Read the errors in the table. For details of one producer, run explain with --producer NAME.",
    )
    CLOCK_SKEW = (
        "clock-skew",
        "The clocks of two brokers of the cluster differ. Ownership and sessions do not depend on these clocks.",
        (
            "Synchronise the clocks of all machines (NTP). Until then, publish times, message expiry, delayed delivery, retention "
            "and the expiry of tokens follow the clock of the broker that serves the topic."
        ),
    )
    # --- producers ---------------------------------------------------------------------------------------------------

    PRODUCER_FENCED = (
        "producer-fenced",
        "Another producer has taken exclusive access to the topic, so this producer may not publish.",
        "Do nothing if the other producer should publish. Otherwise stop the other producer, and then start this producer again.",
    )
    PRODUCER_WAITS = (
        "producer-waits",
        "The producer waits for exclusive access to the topic.",
        "Close the producer that has exclusive access, or disconnect it: the waiting producer then continues by itself.",
    )
    TOPIC_OCCUPIED = (
        "topic-occupied",
        "Another producer has exclusive access to the topic, so no other producer can connect.",
        "Do nothing if the other producer should publish. Otherwise stop its program, or disconnect it.",
    )
    SCHEMA_REFUSED = (
        "schema-refused",
        "The producer's schema was refused.",
        "Use a schema that is compatible with the topic's schema, or change the schema compatibility policy of the namespace.",
    )
    PRODUCER_NOT_AUTHORIZED = (
        "producer-not-authorized",
        "The producer's role may not publish to the topic.",
        "Grant the producer's role the permission to produce on the namespace or topic, or use another role.",
    )
    PRODUCER_LIMIT = (
        "producer-limit",
        "The producer's name is taken, or the topic has reached its limit of producers.",
        "Close producers that are not needed, use another producer name, or raise the limit (maxProducersPerTopic).",
    )
    PRODUCER_REFUSED = (
        "producer-refused",
        "The last attempt of the producer to connect to the topic was refused.",
        "Read the error in the finding's text and correct the client's configuration. The client retries by itself.",
    )
    DEDUPLICATION_GAP = (
        "deduplication-gap",
        "A message of the producer was not stored: later messages are refused until the producer's client reconnects.",
        "Wait: the client reconnects and sends the message again. If it does not, restart the producer's program.",
    )
    SEQUENCE_ID_STALE = (
        "sequence-id-stale",
        "The producer's messages have sequence ids that are already stored, so they are dropped as duplicates.",
        (
            "Continue with a sequence id above the last stored sequence id. Usually a program restarted "
            "with the same producer name and its sequence ids began at 0."
        ),
    )
    PUBLISH_RATE = (
        "publish-rate",
        (
            "A publish rate limit is reached: the broker does not read from the producer's connection until the "
            "rate allows the message."
        ),
        "Publish more slowly, or raise the rate. Publishing resumes by itself when the rate allows it.",
    )
    PUBLISH_MEMORY = (
        "publish-memory",
        "Too many bytes of published messages wait to be stored: the broker does not read from the producer's connection.",
        (
            "Wait: reading resumes when messages are stored. If this lasts, check the "
            "broker's disk, or raise maxMessagePublishBufferSizeInMB."
        ),
    )
    MESSAGES_REFUSED = (
        "messages-refused",
        "Messages of the producer were refused recently.",
        "Read the error in the finding's text. The client received this error for each refused message.",
    )
    PRODUCER_NOT_CONNECTED = (
        "producer-not-connected",
        "No producer of that name is connected to the topic.",
        "Check the producer's name, and start its program. If the program cannot connect, its log contains the reason.",
    )
    # --- subscriptions, keys and consumers ---------------------------------------------------------------------------

    NO_CONSUMERS = (
        "no-consumers",
        "Messages wait and no consumer is connected.",
        "Start a consumer for this subscription. Delete the subscription if it is unused: it keeps messages on the disk.",
    )
    CURSOR_WRITES_WAIT = (
        "cursor-writes-wait",
        "Acknowledgements cannot be stored, because the bookies of the cursor's ledger do not respond.",
        (
            "Start the named bookies, or repair the network between them and the broker. Clients that wait for a confirmation of "
            "their acknowledgements then get it. If the broker restarts before that, it delivers the messages of these "
            "acknowledgements again."
        ),
    )
    READ_FAILED = (
        "read-failed",
        "Stored messages cannot be read; the broker retries the read.",
        "Read the error in the finding's text. If the stored data is damaged, restore a backup or skip the damaged messages.",
    )
    TRANSACTION_END_PENDING = (
        "transaction-end-pending",
        (
            "A transaction is ending, or its state is unknown. Until the topic has stored the end of the transaction, consumers "
            "receive no messages after the first message of the transaction."
        ),
        (
            "Wait: delivery continues when the transaction coordinator has notified the topic. If this lasts, run `pybroker "
            "transactions list`, and search the broker's log for `transaction_log`."
        ),
    )
    TRANSACTION_OPEN = (
        "transaction-open",
        "A transaction is open: messages from its first message on are not delivered until it has ended.",
        (
            "End the transaction in the program that began it. If that program has ended, abort the transaction (`pybroker "
            "transactions abort`), or wait for its timeout. Only a Java broker can end a transaction that a Java broker "
            "opened: if none runs, stop the pybrokers and run a Java broker until the timeout."
        ),
    )
    MEMORY_BUDGET = (
        "memory-budget",
        "The memory budget of the broker is used up; delivery waits for memory.",
        "Wait: delivery resumes by itself. If this is frequent, raise brokerMemoryLimitMB or reduce the number of clients.",
    )
    CURSOR_STATE_TOO_LARGE = (
        "cursor-state-too-large",
        (
            "The acknowledgements of the subscription have so many gaps that they are too large for an entry of a bookie. They "
            "are not stored, and messages after the last acknowledged message are not delivered."
        ),
        (
            "Acknowledge the oldest messages of the subscription, or skip them: each acknowledgement closes a gap. "
            "Delivery, and storing acknowledgements, then resume by themselves. After a restart of the broker, messages whose "
            "acknowledgement was not stored are delivered again."
        ),
    )
    UNACKED_LIMIT_BROKER = (
        "unacked-limit-broker",
        (
            "The broker sends no messages to this subscription: all subscriptions together have reached "
            "maxUnackedMessagesPerBroker, and this subscription has more than its share of unacknowledged messages "
            "(maxUnackedMessagesPerSubscriptionOnBrokerBlocked, a fraction of maxUnackedMessagesPerBroker)."
        ),
        "Acknowledge messages in the subscriptions with most unacknowledged messages, or raise maxUnackedMessagesPerBroker.",
    )
    CONSUMER_SILENT = (
        "consumer-silent",
        (
            "A connected consumer has unacknowledged messages, and has not acknowledged or requested messages "
            "for explainSilentConsumerMs."
        ),
        "Check whether the consumer's program hangs. Restart it, or disconnect it so that its messages are delivered again.",
    )
    UNACKED_LIMIT_SUBSCRIPTION = (
        "unacked-limit-subscription",
        "The consumers of the subscription have received as many messages without acknowledging them as the limit allows.",
        (
            "Make the consumers acknowledge the messages that they have processed, or raise the limit "
            "(maxUnackedMessagesPerSubscription)."
        ),
    )
    UNACKED_LIMIT_CONSUMER = (
        "unacked-limit-consumer",
        "A consumer has received as many messages without acknowledging them as the limit allows.",
        (
            "Make the consumer acknowledge the messages that it has processed, or raise the limit "
            "(maxUnackedMessagesPerConsumer)."
        ),
    )
    CONNECTION_FULL = (
        "connection-full",
        "A consumer has permits, but its connection is full: the client does not read.",
        "Check the consumer's program and its network: it does not read the messages that the broker has sent.",
    )
    CONNECTION_HELD = (
        "connection-held",
        "The broker does not read from a client's connection, so the client's messages, acknowledgements and permits wait.",
        "Remove the reason that the finding's text names. The broker then reads from the client again by itself.",
    )
    NO_PERMITS = (
        "no-permits",
        (
            "A consumer's receiver queue is full: its client requests more messages when its program has "
            "processed the messages in the queue."
        ),
        "Make the consumer process its messages faster, add consumers, or check whether its program has stopped calling receive.",
    )
    KEY_DRAINS = (
        "key-drains",
        "A key moved to another consumer, which must wait until the previous consumer has acknowledged its messages of the key.",
        (
            "Make the previous consumer acknowledge its messages of these keys. If that consumer cannot, disconnect "
            "it: other consumers then receive the messages."
        ),
    )
    HASH_WITHOUT_OWNER = (
        "hash-without-owner",
        "A key is outside the hash ranges that the connected consumers have requested, so no consumer may receive its messages.",
        "Start a consumer whose hash ranges include the hash (sticky mode), or use the auto-split mode, which leaves no gaps.",
    )
    NEWCOMER_WAITS = (
        "newcomer-waits",
        "A new consumer waits until all messages that were read before it joined are acknowledged (classic Key_Shared).",
        "Acknowledge the earlier messages, or wait. Without the classic mode, Key_Shared blocks only single keys.",
    )
    LOOK_AHEAD_FULL = (
        "look-ahead-full",
        "The buffer for messages of blocked keys and consumers is full, so the broker reads no new messages for any consumer.",
        "Free the blocked keys first: acknowledge their messages, or disconnect the consumer that has not acknowledged them.",
    )
    ENTRY_FILTER = (
        "entry-filter",
        "An entry filter has deferred messages; the broker calls the filter again for these messages.",
        "Wait: the broker calls the filter again by itself. If the filter defers the messages forever, correct the filter.",
    )
    DISPATCH_RATE = (
        "dispatch-rate",
        "A dispatch rate limit is reached.",
        "Wait: delivery resumes when the rate allows more messages. If this is too slow, raise the rate.",
    )
    CONSUMER_STARTING = (
        "consumer-starting",
        "A consumer has just become the active consumer and waits for the failover delay.",
        "Wait: the consumer receives messages after the delay (activeConsumerFailoverDelayTimeMillis).",
    )
    READING = (
        "reading",
        "Messages are being read from the store for longer than usual.",
        "Wait. If this is frequent, check the load of the broker's disk.",
    )
    CONSUMER_NOT_CONNECTED = (
        "consumer-not-connected",
        "No consumer of that name is connected to the subscription.",
        "Check the consumer's name, and start its program. If the program cannot connect, its log contains the reason.",
    )
    CONSUMER_STANDS_BY = (
        "consumer-stands-by",
        "Another consumer is the active consumer, and receives all messages.",
        (
            "Nothing has to be done: this consumer takes over when the active consumer disconnects. Use "
            "a Shared subscription to use all consumers at once."
        ),
    )
    HELD_BY_CONSUMER = (
        "held-by-consumer",
        "A consumer has messages that it has not acknowledged.",
        (
            "Do nothing while the consumer processes the messages. Otherwise make its program acknowledge "
            "them, or disconnect it."
        ),
    )
    CHUNKS_MISSING = (
        "chunks-missing",
        "A consumer has some chunks of a message, and the others have not been published.",
        (
            "Check whether the producer of the large message still runs. If the missing chunks are not published, the consumer's "
            "client discards the incomplete message after a timeout (an option of the client)."
        ),
    )
    DELAYED = (
        "delayed",
        "Messages wait for their delivery time.",
        "Nothing has to be done: the messages are delivered when they are due.",
    )
    # --- messages ----------------------------------------------------------------------------------------------------

    ENTRY_DAMAGED = (
        "entry-damaged",
        "The stored message is damaged and cannot be read.",
        (
            "Restore the ledger from a backup, or acknowledge the message (`pybroker ack`): delivery then continues with "
            "the next message."
        ),
    )
    MESSAGE_BEING_STORED = (
        "message-being-stored",
        "The message is being written to the disk.",
        "Wait: the message is delivered when it is stored. If this lasts, check the broker's disk.",
    )
    MESSAGE_UNCOMMITTED = (
        "message-uncommitted",
        "The message is part of an open transaction: it is delivered only after the commit.",
        "Commit or abort the transaction in the program that began it.",
    )
    BEHIND_TRANSACTION = (
        "behind-transaction",
        "The message is after the first message of an open transaction: it is delivered when that transaction has ended.",
        (
            "End the open transaction in the program that began it. If that program has ended, abort the transaction "
            "(`pybroker transactions abort`). If a Java broker opened it, follow the finding transaction-open of the subscription."
        ),
    )
    OUTSIDE_HASH_RANGES = (
        "outside-hash-ranges",
        "The message's key is outside the hash ranges that the consumer has requested.",
        "Start a consumer whose hash ranges include the hash of the message's key.",
    )
    WAITS_FOR_KEY = (
        "waits-for-key",
        "The message's key is blocked: its previous consumer must acknowledge earlier messages, or the key has no consumer.",
        "Follow the finding key-drains or hash-without-owner of this key. When the key is free, the message is delivered.",
    )
    WAITS_FOR_CONSUMER = (
        "waits-for-consumer",
        "The message waits for a consumer that can receive it.",
        "Follow the finding about the consumer. When the consumer can receive messages, the message is delivered.",
    )
    WAITS_FOR_REDELIVERY = (
        "waits-for-redelivery",
        "The message was returned for redelivery, and no consumer can receive it now.",
        "Follow the finding about the consumers. When a consumer can receive messages, the message is delivered again.",
    )
    SET_ASIDE = (
        "set-aside",
        "The message waits for many earlier messages of its key. The broker reads it again when these messages are delivered.",
        (
            "Follow the finding about the key's consumer. When this consumer can receive messages, the broker reads "
            "and delivers the message."
        ),
    )
    MESSAGE_PUT_OFF = (
        "message-put-off",
        "The message is being sent to a consumer, or an entry filter has deferred it.",
        "Wait: the message is delivered soon, or the filter decides again by itself.",
    )
    NOT_REACHED_YET = (
        "not-reached-yet",
        "The message has no problem: the broker delivers earlier messages first.",
        "Wait: earlier messages are delivered first. If the backlog does not shrink, explain the subscription.",
    )
    HELD_BY_TRANSACTION = (
        "held-by-transaction",
        (
            "An open transaction has acknowledged the message: a commit makes the acknowledgement final, an abort delivers "
            "the message again."
        ),
        "Commit or abort the transaction in the program that began it.",
    )
    ALREADY_ACKNOWLEDGED = (
        "already-acknowledged",
        "The message is acknowledged in the subscription.",
        "Nothing has to be done. To receive the message again, seek the subscription to it.",
    )
    EXPIRED = (
        "expired",
        "The message expired and counts as acknowledged in the subscription.",
        (
            "Raise the message TTL (policy messageTTL) if messages must not expire. To receive the message again, raise the "
            "TTL first, and then seek the subscription to it."
        ),
    )
    SKIPPED = (
        "skipped",
        "The message was skipped and counts as acknowledged in the subscription.",
        "Nothing has to be done. To receive the message again, seek the subscription to it.",
    )
    FILTERED = (
        "filtered",
        "The entry filters reject the message.",
        "Change the entry filters if the subscription should receive these messages.",
    )
    MESSAGE_ABORTED = (
        "message-aborted",
        "The message is part of an aborted transaction: it is never delivered.",
        "Publish the message again if it is needed.",
    )
    MARKER = (
        "marker",
        "The entry is a marker written by a broker, not a message.",
        "Nothing has to be done: clients never receive markers.",
    )
    COMPACTED_AWAY = (
        "compacted-away",
        "For consumers that read compacted, a later message of the same key has replaced the message.",
        "Nothing has to be done. A consumer that does not read compacted receives every stored message.",
    )
    MESSAGE_TRIMMED = (
        "message-trimmed",
        "The message's ledger was deleted because it was no longer needed.",
        "The message cannot be restored. Set a retention policy to keep acknowledged messages longer.",
    )
    MESSAGE_NEVER_EXISTED = (
        "message-never-existed",
        "The topic does not have this message, and never had it.",
        "Check the message id and the topic's name: ids are valid in one topic, or one partition, only.",
    )


class Severity(Enum):
    """The harm of an action that is applied in the wrong situation."""

    LOOK = "look"
    """The action changes nothing."""
    HARMLESS = "harmless"
    """The action changes a limit or a delivery time. No client is disconnected, no message is lost."""
    DISRUPTIVE = "disruptive"
    """The action disconnects clients or delivers messages again. No message is lost."""
    IRREVERSIBLE = "irreversible"
    """Messages, acknowledgements or a subscription are lost permanently."""

    @property
    def cost(self) -> str:
        return _COSTS[self]


_COSTS = {
    Severity.LOOK: "Changes nothing.",
    Severity.HARMLESS: "No client is disconnected and no message is lost.",
    Severity.DISRUPTIVE: "Clients reconnect or receive messages again; no message is lost.",
    Severity.IRREVERSIBLE: "Cannot be undone.",
}


@dataclass(frozen=True, slots=True)
class Action:
    """A REST call that helps or shows more data: its path with the query, and the command that sends the same call.

    `text` states the effect of the call. `command` contains neither the broker's address nor credentials, which the
    program that shows the action adds.
    """

    severity: Severity
    text: str
    method: str
    path: str
    command: str
    body: object = None

    @property
    def label(self) -> str:
        if self.severity is not Severity.IRREVERSIBLE:
            return self.text
        return f"Irreversible: {self.text[:1].lower()}{self.text[1:]}"

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "severity": self.severity.value,
            "text": self.label,
            "cost": self.severity.cost,
            "method": self.method,
            "path": self.path,
            "command": self.command,
        }
        if self.body is not None:
            shown["body"] = self.body
        return shown


def shell_command(words: Iterable[str]) -> str:
    """Return a command line that is safe to paste into bash and zsh, whatever characters its words contain."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    data = word.encode("utf-8", "surrogateescape")
    escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in data)
    return f"$'{escaped}'"


_SEVERITY_ORDER = {severity: place for place, severity in enumerate(Severity)}


def safest_first(actions: Iterable[Action]) -> list[Action]:
    """Sort actions by severity, least harmful first. Stable."""
    return sorted(actions, key=lambda each: _SEVERITY_ORDER[each.severity])


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why messages wait, with its evidence: ids, ages, limits. The JSON omits evidence that is None, and
    evidence that is 0 if its name begins with `more`.

    `waits`: the finding prevents a delivery or publication; False for information. `since_ms` is in milliseconds since
    1970, None if unknown.
    """

    code: Code
    sentence: str
    waits: bool = True
    since_ms: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[Action] = ()
    more_command: str = ""
    """The command that lists all evidence, where the finding lists only a part."""

    def as_json(self) -> dict[str, Any]:
        """Return the finding with actions and evidence. The evidence is also included as table and facts."""
        evidence = _told(self.evidence)
        return {
            **self.as_short_json(),
            "why": self.code.meaning,
            "guide": GUIDE,
            "advice": self.code.advice,
            "evidence": evidence,
            **evidence_shown(evidence),
            "moreCommand": self.more_command or None,
            "actions": [action.as_json() for action in safest_first(self.actions)],
        }

    def as_short_json(self) -> dict[str, Any]:
        """Return the finding without evidence and actions, for long lists."""
        return {"code": self.code.value, "waits": self.waits, "sentence": self.sentence, "since": self.since_ms}


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _told(each)
            for name, each in value.items()
            if each is not None and not (each == 0 and name.startswith("more"))
        }
    return [_told(each) for each in value] if isinstance(value, list) else value


_ORDER = {code: place for place, code in enumerate(Code)}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings in the order in which they should be fixed. Findings that delay nothing are last. Stable."""
    return sorted(findings, key=lambda each: (not each.waits, _ORDER[each.code]))


def is_waiting(findings: Iterable[Finding]) -> bool:
    return any(finding.waits for finding in findings)
