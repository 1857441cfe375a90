"""Differences that are meant, each with its reason: the same list that `docs/contributing/differential.md` shows.

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
    "Pulsar's standalone mode tells clients to stay at the address that they connected to. Here a lookup returns the address "
    "that serves the topic, as in a cluster; `advertisedAddress` and `advertisedListeners` define it."
)
_LEAVES = (
    "Messages that a Shared consumer held when it closed count as redelivered, as the documents promise: a dead-letter policy "
    "must catch a message that crashes its consumers. Pulsar 4.2.4 does not count them."
)
_ANSWERED = "A request with an id is answered: `ConsumerNotFound`. Pulsar does not answer, and the client waits for its timeout."
_JAVA_KEY_STORES = "Names of Java key stores and classes have no meaning here."
_BAD_REQUEST = "Pulsar answers an internal error for a bad request."

_INVALID_CREDENTIALS = "Invalid credentials are refused. Pulsar treats the client as anonymous."

_DELETED_CLUSTER = (
    "A deleted cluster takes its failure domains and migration with it. Pulsar leaves them to the next of that name."
)

_MISSING_IS_404 = (
    "Calls for a namespace that does not exist are answered with 404. Pulsar carries them out, reports another error, or "
    "answers an internal error."
)

_NOT_STORED = (
    "Calls that need stored messages are refused with 405, and with 404 when there is no such topic. Pulsar "
    "answers an internal error for some of them, and a success without effect for the others."
)

_MARKER_LAST = (
    "Consumers never receive a marker, so a reader would wait forever for a marker that is reported as last: the last "
    "message is the one before it."
)

_GOES_ON = (
    "A stuck key or consumer blocks its own hashes only. At its look-ahead limits, Pulsar reads nothing more for any consumer "
    "until the key is free or the consumer receives again: the number shows where it stopped in that run."
)

_ENDED_TRANSACTION = (
    "Messages and acknowledgements of a transaction that has ended are refused. Pulsar accepts them, and they stay pending or "
    "block others until a low-water mark has passed them."
)

_HELD_BY_OTHERS = (
    "A cumulative acknowledgement conflicts with pending acks of another transaction below its position. Pulsar accepts it: "
    "the abort of the other transaction then has no effect."
)

_COUNTED_TWICE = "After an abort returns messages of a batch, Pulsar counts them twice as unacknowledged, from then on."

_TAKES_NO_PART = (
    "Messages and acknowledgements of a transaction are refused where its coordinator does not know the participant: the end "
    "of the transaction would never arrive there. Pulsar accepts them, and readers wait until a low-water mark has passed it."
)

_SEEK_LETS_GO = (
    "After a seek the subscription reads all later messages again, and its pending transaction acks are discarded. Pulsar skips "
    "messages with pending acks, and sends all of them once more after an abort."
)

_BATCH_OF_ONE = (
    "A batch is stored as a batch, even if it has one message. Pulsar's client stores that message outside a batch."
)

INTENDED: tuple[Intended, ...] = (
    Intended("websocket_refusals", "producer encryptionKeys=a", _BAD_REQUEST),
    Intended("websocket_several_topics", "v3 *", _BAD_REQUEST),
    Intended("websocket_several_topics", "batch: messageId*", _BATCH_OF_ONE),
    Intended("websocket_several_topics", "of p: messageId*", _BATCH_OF_ONE),
    Intended("websocket_rights", "wrong token", _INVALID_CREDENTIALS),
    Intended("tokens_of_requests", "invalid, *", _INVALID_CREDENTIALS),
    Intended(
        "protocol_connect",
        "*feature_flags.supports_repl_dedup_by_lid_and_eid",
        "A replicator that reads this relies on the broker to drop duplicates, and there is no replication.",
    ),
    Intended(
        "transactions_coordinators",
        "connect to one that is not there: *",
        "`TransactionCoordinatorNotFound` lists the existing coordinators. Pulsar answers `ServiceNotReady`, and a client retries.",
    ),
    Intended("transactions_of_ended_ones", "* in an ended one*", _ENDED_TRANSACTION),
    Intended("transactions_cumulative_over_others", "one: up to the third: *", _HELD_BY_OTHERS),
    Intended("transactions_cumulative_over_others", "stats: *", _HELD_BY_OTHERS),
    Intended(
        "transactions_unloaded",
        "*: stats: abortedTxnCount",
        "The number of ended transactions of the topic survives a reload. Pulsar counts from zero.",
    ),
    Intended(
        "transactions_unloaded",
        "abort: after the end: *",
        "Redelivery counts begin when the topic is loaded: messages that were pending since then are delivered for the first time.",
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
        "A producer that has closed is removed from the queue. Pulsar still counts it, and its turn costs an epoch.",
    ),
    Intended(
        "pulsar_admin_daily_operations",
        "topics terminate *",
        "A topic that is terminated after an unload answers with its last message. "
        "Pulsar answers with the empty ledger that the unload created.",
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
        "Schemas are in the metadata store, not in ledgers: the ids of their positions are -1.",
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
        "No chunk of a stored message is stored again. Pulsar refuses the last chunk only, and stores the others.",
    ),
    Intended(
        "deduplication_cursor",
        "shown: backlogSize",
        "A backlog counts entries that a subscription has not read. Pulsar adds entries since the last snapshot of sequence ids.",
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
        "A bundle is split at the positions in the request. Pulsar answers success and leaves one with fewer than two topics.",
    ),
    Intended("rest_brokers", "metrics without slash: *", "`/metrics` answers directly and does not redirect."),
    Intended("rest_lookup", "lookup by listener name: status", f"503, as the binary lookup answers. {_BAD_REQUEST}"),
    Intended("rest_lookup", "slash in the name: *", f"412, as for every other invalid name. {_BAD_REQUEST}"),
    Intended("rest_lookup", "bad domain: *", f"404, as for every other path that does not exist. {_BAD_REQUEST}"),
    Intended(
        "rest_subscriptions",
        "read from behind-third: *",
        "A subscription that is created at an excluded message id begins after it, as a reset does. Pulsar begins at it.",
    ),
    Intended(
        "policies_life",
        "topic persistence *applied: body.managedLedgerMaxMarkDeleteRate",
        "The rate at which positions are stored here: once per `cursorFlushIntervalMs`.",
    ),
    Intended(
        "policies_delivery",
        "from the namespace dispatcherPauseOnAckStatePersistent: body",
        "The applied value comes from the namespace when the topic has none, as for every other policy.",
    ),
    Intended(
        "policies_namespace_settings",
        "its namespaces: *",
        "An anti-affinity group that is sent as a JSON text is stored without its quotation marks. Pulsar 4.2.4 stores them, and "
        "then finds none of the group's namespaces.",
    ),
    Intended(
        "metadata_local_policies",
        "created again: affinity: *",
        "A namespace without local policies has no affinity group, as one with other local policies. Pulsar answers 404 until "
        "its first lookup or local policy.",
    ),
    Intended(
        "metadata_boundaries",
        "boundaries *: bundles: *",
        "Boundaries without a number of bundles are used. Pulsar ignores them, and creates the default number of even bundles.",
    ),
    Intended(
        "metadata_boundaries",
        "other number: *",
        "Boundaries that do not fit the number of bundles are refused with 400. Pulsar ignores the number.",
    ),
    Intended(
        "metadata_names",
        "topics: body*",
        "Topics are listed in the order of their names. Pulsar lists them in the order of their encoded names.",
    ),
    Intended("metadata_clusters", "domains again: *", _DELETED_CLUSTER),
    Intended("metadata_clusters", "migration again: *", _DELETED_CLUSTER),
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
        "HTTP refuses an invalid token, as the binary protocol does. "
        "With an anonymous role, Pulsar treats the client as that role.",
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
