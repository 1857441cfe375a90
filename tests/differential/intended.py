"""Differences that are meant, each with its reason: the same list that `docs/differences.md` shows.

A row names scenario and path by pattern (`fnmatch`; write `[[]0]` for the text `[0]`). Invariant, checked by the run:
every row of a scenario that ran still explains at least one difference, so that none outlives its reason.
"""

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Intended:
    scenario: str
    path: str
    reason: str


_PROXY = (
    "Pulsar's standalone mode tells clients to stay at the address that they came by. Here a lookup names the address "
    "that serves the topic, as in a cluster; `advertisedAddress` and `advertisedListeners` say which."
)
_LEAVES = (
    "What a Shared consumer held when it left counts as redelivered, as the documents promise: a dead-letter policy "
    "must see a message that kills its consumers. Pulsar 4.2.4 does not count it."
)
_ANSWERED = (
    "A request with an id is answered: `ConsumerNotFound`. Pulsar says nothing, and the client waits for its timeout."
)
_JAVA_KEY_STORES = "Names of Java key stores and classes mean nothing here."
_BAD_REQUEST = "Pulsar reports a fault of its own for what the caller got wrong."

_MISSING_IS_404 = (
    "What is asked of a namespace that does not exist is answered with 404. Pulsar does it, says that something else is wrong, or "
    "reports a fault of its own."
)

_NOT_STORED = (
    "What makes no sense without stored messages is refused with 405, and 404 when there is no such topic. Pulsar "
    "reports a fault of its own for some of it, and answers as if something were done for the rest."
)

_MARKER_LAST = (
    "Consumers never get a marker, so a reader that is told that one is last would wait for it for ever: the last message "
    "is the one before it."
)

_GOES_ON = (
    "What is stuck stops its own hashes only. Pulsar reads nothing more at its look-ahead limits, for nobody, until the key is "
    "free or the consumer takes: the number says where it stopped in that run."
)

_ENDED_TRANSACTION = (
    "What comes in the name of a transaction that has ended is refused. Pulsar takes it, and it is held or holds others back until "
    "a low-water mark has passed it."
)

_HELD_BY_OTHERS = (
    "A cumulative acknowledgement conflicts with what another transaction holds below it. Pulsar takes it: the other one's abort "
    "then changes nothing."
)

_COUNTED_TWICE = (
    "Pulsar counts the messages of a batch that an abort brings back twice as unacknowledged, from then on."
)

_TAKES_NO_PART = (
    "Nothing is taken in the name of a transaction where its coordinator does not know that it takes part: no end would come "
    "there. Pulsar takes it, and readers wait until a low-water mark has passed it."
)

_SEEK_LETS_GO = (
    "A seek reads again all that is behind it, and forgets what transactions hold of the subscription. Pulsar leaves out what is "
    "held, and after an abort sends all once more."
)

INTENDED: tuple[Intended, ...] = (
    Intended(
        "protocol_connect",
        "*feature_flags.supports_repl_dedup_by_lid_and_eid",
        "A replicator that reads this relies on the broker to drop what it has got already, and there is no replication.",
    ),
    Intended(
        "transactions_coordinators",
        "connect to one that is not there: *",
        "`TransactionCoordinatorNotFound` names those that there are. Pulsar answers `ServiceNotReady`, and a client tries again.",
    ),
    Intended("transactions_of_ended_ones", "* in an ended one*", _ENDED_TRANSACTION),
    Intended("transactions_cumulative_over_others", "one: up to the third: *", _HELD_BY_OTHERS),
    Intended("transactions_cumulative_over_others", "stats: *", _HELD_BY_OTHERS),
    Intended(
        "transactions_unloaded",
        "*: stats: abortedTxnCount",
        "How many transactions of the topic have ended is known when it is loaded again. Pulsar counts from nought.",
    ),
    Intended(
        "transactions_unloaded",
        "abort: after the end: *",
        "Redelivery counts begin when the topic is loaded: what was held all the time comes for the first time since then.",
    ),
    Intended("transactions_without_taking_part", "*", _TAKES_NO_PART),
    Intended("transactions_of_batches", "*: unackedMessages", _COUNTED_TWICE),
    Intended("transactions_of_batches", "what is left: *", _LEAVES),
    Intended(
        "transactions_reader",
        "acknowledged in a transaction: *",
        "A reader's position is not stored, so no transaction can move it: `NotAllowedError`. Pulsar answers success.",
    ),
    Intended("transactions_seek", "*: from the first on*", _SEEK_LETS_GO),
    Intended("transactions_seek", "commit: stats: *", _SEEK_LETS_GO),
    Intended("transactions_seek", "abort: after the end*", _SEEK_LETS_GO),
    Intended("rest_produce_refused", "missing *", _BAD_REQUEST),
    Intended("rest_produce_refused", "no *", _BAD_REQUEST),
    Intended("rest_produce_refused", "bad *", _BAD_REQUEST),
    Intended(
        "rest_produce_refused",
        "partition of none",
        "A partition that does not exist answers 404 as a topic does. Pulsar answers 200 with an error for each message.",
    ),
    Intended("readers_last_message", "marker: last_message_id.*", _MARKER_LAST),
    Intended(
        "producers_waiting_end",
        "stats: waitingPublishers",
        "Who has closed does not wait any more. Pulsar goes on counting it, and an epoch is lost at its turn.",
    ),
    Intended(
        "pulsar_admin_daily_operations",
        "topics terminate *",
        "A topic that is terminated after an unload answers with its last message. "
        "Pulsar answers with the empty ledger that the unload began.",
    ),
    Intended("non_persistent_refusals", "GET /ledger/0/entry/0", _NOT_STORED),
    Intended("non_persistent_refusals", "* /compaction", _NOT_STORED),
    Intended("non_persistent_refusals", "* /offload", _NOT_STORED),
    Intended("non_persistent_refusals", "PUT /backlogSize", _NOT_STORED),
    Intended("non_persistent_refusals", "* /backlog", _NOT_STORED),
    Intended("non_persistent_refusals", "* /internal-info", _NOT_STORED),
    Intended("non_persistent_refusals", "POST /subscription/sub/skip*", _NOT_STORED),
    Intended("non_persistent_refusals", "POST /subscription/sub/resetcursor*", _NOT_STORED),
    Intended("non_persistent_refusals", "POST /subscription/sub/analyzeBacklog", _NOT_STORED),
    Intended("non_persistent_refusals", "missing: *", _NOT_STORED),
    Intended(
        "schemas_over_rest",
        "*metadata: *position",
        "Schemas are in the metadata store, not in ledgers: the ids that Pulsar shows for their places are -1.",
    ),
    Intended("schemas_unknown_in_requests", "*", _BAD_REQUEST),
    Intended("protocol_lookup", "lookup, *: proxy_through_service_url", _PROXY),
    Intended("protocol_pipelined", "*: [[]0].proxy_through_service_url", _PROXY),
    Intended("shared_consumer_leaves", "second after: *.redelivery_count", _LEAVES),
    Intended("protocol_flow_shared_two", "what the closed one had: *.redelivery_count", _LEAVES),
    Intended("key_shared_consumer_leaves", "two: c*", _LEAVES),
    Intended("key_shared_stuck_keys", "messages of the other keys", _GOES_ON),
    Intended("key_shared_stuck_consumer", "of the other half: arrived", _GOES_ON),
    Intended("protocol_reconnect_counts", "Shared, second: *.redelivery_count", _LEAVES),
    Intended("protocol_disconnect_counts", "the one that stays: *.redelivery_count", _LEAVES),
    Intended(
        "protocol_ignored",
        "ACK with a request id, unknown consumer*",
        _ANSWERED,
    ),
    Intended(
        "acknowledgements_of_others",
        "by nobody*",
        _ANSWERED,
    ),
    Intended(
        "deduplication_of_chunks",
        "all parts again: *",
        "No part of a large message that is stored is stored again. Pulsar refuses the last part only, and keeps the others.",
    ),
    Intended(
        "deduplication_cursor",
        "shown: backlogSize",
        "A backlog is what a subscription has not read. Pulsar adds what came since the last snapshot of sequence ids.",
    ),
    Intended("rest_clusters", "get: body.brokerClientTls*StoreType", _JAVA_KEY_STORES),
    Intended("rest_clusters", "get: body.brokerClientSslFactoryPlugin", _JAVA_KEY_STORES),
    Intended(
        "rest_permissions",
        "grant an unknown action: *",
        "400 names the action. Pulsar answers success and stores a null.",
    ),
    Intended(
        "brokers_bundles",
        "bundles after that: *",
        "A bundle is cut at the positions that are named. Pulsar answers success and leaves one with fewer than two topics.",
    ),
    Intended("rest_brokers", "metrics without slash: *", "`/metrics` answers itself and does not redirect."),
    Intended("rest_lookup", "lookup by listener name: status", f"503, as the binary lookup says. {_BAD_REQUEST}"),
    Intended("rest_lookup", "slash in the name: *", f"412, as for every other name that is not valid. {_BAD_REQUEST}"),
    Intended("rest_lookup", "bad domain: *", f"404, as for every other path that does not exist. {_BAD_REQUEST}"),
    Intended(
        "rest_subscriptions",
        "read from behind-third: *",
        "A subscription that is made at an excluded message id begins behind it, as a reset does. Pulsar begins at it.",
    ),
    Intended(
        "policies_life",
        "topic persistence *applied: body.managedLedgerMaxMarkDeleteRate",
        "The rate at which positions are stored here: once in `cursorFlushIntervalMs`.",
    ),
    Intended(
        "policies_delivery",
        "from the namespace dispatcherPauseOnAckStatePersistent: body",
        "What is in force comes from the namespace when the topic has no value of its own, as for every other policy.",
    ),
    Intended(
        "policies_namespace_settings",
        "its namespaces: *",
        "The namespaces that were put into an anti-affinity group are in it. Pulsar 4.2.4 finds none.",
    ),
    Intended("missing_namespaces", "*/antiAffinity: *", _MISSING_IS_404),
    Intended("missing_namespaces", "POST */entryFilters: *", _MISSING_IS_404),
    Intended("missing_namespaces", "DELETE */removeOffloadPolicies: *", _MISSING_IS_404),
    Intended("missing_namespaces", "POST */migration: *", _MISSING_IS_404),
    Intended("missing_namespaces", "POST */permissions/subscription/sub: *", _MISSING_IS_404),
    Intended("missing_namespaces", "GET */topicHashPositions: *", _MISSING_IS_404),
    Intended("missing_namespaces", "GET /resource-quotas/*", _MISSING_IS_404),
    Intended(
        "security_rest",
        "a bad token, *",
        "A token that does not hold is refused by HTTP as by the binary protocol. "
        "With an anonymous role, Pulsar takes its bearer for that.",
    ),
)


def reason_for(scenario: str, path: str) -> Intended | None:
    """The first row that explains a difference at `path`."""
    for row in INTENDED:
        if fnmatch.fnmatchcase(scenario, row.scenario) and fnmatch.fnmatchcase(path, row.path):
            return row
    return None


def markdown() -> str:
    """The table for the documentation."""
    lines = ["| Scenario | Where | Reason |", "|---|---|---|"]
    lines += [f"| `{row.scenario}` | `{row.path}` | {row.reason} |" for row in INTENDED]
    return "\n".join(lines)
