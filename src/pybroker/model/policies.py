"""Documents of clusters, tenants, namespaces and topics: the JSON of REST and of the metadata store.

Attributes are named like the JSON properties. The document of a new namespace equals Pulsar's in every property.
Optional properties with None are absent from the JSON; JSON nulls and unknown properties of a request are ignored. The
REST route of a policy validates its value; `effective_policies` decides which level applies.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from pybroker.model.offload_policies import OffloadPolicies

DEFAULT_BUNDLE_COUNT = 4
MAX_BUNDLE_COUNT = 4096
FIRST_BOUNDARY = "0x00000000"
LAST_BOUNDARY = "0xffffffff"

T = TypeVar("T")


class AuthAction(StrEnum):
    """An action that a permission allows."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


class SubscriptionAuthMode(StrEnum):
    """Which subscriptions a role may use. `Prefix`: only subscriptions whose names begin with the role."""

    NONE = "None"
    PREFIX = "Prefix"

    @classmethod
    def _missing_(cls, value: object) -> SubscriptionAuthMode | None:
        # The Go admin client creates a namespace with empty texts for unset properties.
        return cls.NONE if value == "" else None


class TenantInfo(msgspec.Struct):
    """Administrators of a tenant, and the clusters that its namespaces may use."""

    adminRoles: list[str] = []
    allowedClusters: list[str] = []


class ClusterData(msgspec.Struct):
    """Addresses of a cluster's brokers. Texts that are not set are absent; the three booleans are always present."""

    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None
    proxyServiceUrl: str | None = None
    proxyProtocol: str | None = None
    authenticationPlugin: str | None = None
    authenticationParameters: str | None = None
    peerClusterNames: list[str] | None = None
    brokerClientTlsEnabled: bool = False
    tlsAllowInsecureConnection: bool = False
    brokerClientTlsEnabledWithKeyStore: bool = False
    brokerClientTlsTrustStoreType: str | None = None
    brokerClientTlsTrustStore: str | None = None
    brokerClientTlsTrustStorePassword: str | None = None
    brokerClientTlsKeyStoreType: str | None = None
    brokerClientTlsKeyStore: str | None = None
    brokerClientTlsKeyStorePassword: str | None = None
    brokerClientTrustCertsFilePath: str | None = None
    brokerClientCertificateFilePath: str | None = None
    brokerClientKeyFilePath: str | None = None
    brokerClientSslFactoryPlugin: str | None = None
    brokerClientSslFactoryPluginParams: str | None = None
    listenerName: str | None = None


class AuthPolicies(msgspec.Struct):
    """Permissions: by role for the namespace, by topic and role, and the roles that may use a subscription."""

    namespace_auth: dict[str, list[AuthAction]] = {}
    destination_auth: dict[str, dict[str, list[AuthAction]]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


class BundlesData(msgspec.Struct):
    """The bundles of a namespace: `numBundles` hash ranges between `numBundles + 1` boundaries."""

    boundaries: list[str] = []
    numBundles: int = 0


class BacklogQuotaType(StrEnum):
    """The kinds of backlog quota: the size in bytes, or the age of the oldest message. A topic has one quota of each
    kind.
    """

    SIZE = "destination_storage"
    AGE = "message_age"


class BacklogQuotaPolicy(StrEnum):
    """The action above the limit: new producers wait or fail, or the oldest messages are skipped."""

    HOLD = "producer_request_hold"
    FAIL = "producer_exception"
    EVICT = "consumer_backlog_eviction"


class BacklogQuota(msgspec.Struct):
    """A backlog quota, in bytes (negative: no limit) or in seconds (0 or less: no limit).

    `limit` is the earlier name of `limitSize`. A limit omitted from a request is 0, as in Pulsar.
    """

    policy: str | None = None
    limit: int | None = None
    limitSize: int = 0
    limitTime: int = 0

    def __post_init__(self) -> None:
        self.limitSize = self.limitSize or self.limit or 0
        self.limit = self.limitSize


class DispatchRate(msgspec.Struct):
    """Messages and bytes dispatched per period; 0 or less means no limit.

    A value omitted from a request is 0, as in Pulsar; a period of 0 means one second.
    """

    dispatchThrottlingRateInMsg: int = 0
    dispatchThrottlingRateInByte: int = 0
    relativeToPublishRate: bool = False
    ratePeriodInSecond: int = 0


class SubscribeRate(msgspec.Struct):
    """Subscribe requests of one consumer per period; 0 or less means no limit."""

    subscribeThrottlingRatePerConsumer: int = -1
    ratePeriodInSecond: int = 30


class PublishRate(msgspec.Struct):
    """Messages and bytes published per second; -1 means no limit."""

    publishThrottlingRateInMsg: int = -1
    publishThrottlingRateInByte: int = -1


class PersistencePolicies(msgspec.Struct):
    """Numbers of bookies for each entry, and the rate at which mark-delete positions are stored."""

    bookkeeperEnsemble: int = 2
    bookkeeperWriteQuorum: int = 2
    bookkeeperAckQuorum: int = 2
    managedLedgerMaxMarkDeleteRate: float = -1.0
    managedLedgerStorageClassName: str | None = None


class RetentionPolicies(msgspec.Struct):
    """Retention of acknowledged messages, in minutes and MB. -1 means no limit; 0 for both means no retention."""

    retentionTimeInMinutes: int = 0
    retentionSizeInMB: int = 0


class DelayedDeliveryPolicies(msgspec.Struct):
    """Delayed delivery: whether it is on, and its precision."""

    active: bool = False
    tickTime: int = 0
    maxDeliveryDelayInMillis: int = 0


class InactiveTopicDeleteMode(StrEnum):
    """When a topic counts as inactive: without subscriptions, or with subscriptions that have no backlog."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


class InactiveTopicPolicies(msgspec.Struct):
    """Whether and when inactive topics are deleted."""

    inactiveTopicDeleteMode: InactiveTopicDeleteMode | None = None
    maxInactiveDurationSeconds: int = 0
    deleteWhileInactive: bool = False


class AutoTopicCreationOverride(msgspec.Struct):
    """Whether a missing topic is created, and of which type. Overrides the broker's setting."""

    allowAutoTopicCreation: bool = False
    topicType: str | None = None
    defaultNumPartitions: int | None = None


class AutoSubscriptionCreationOverride(msgspec.Struct):
    """Whether a missing subscription is created. Overrides the broker's setting."""

    allowAutoSubscriptionCreation: bool = False


class EntryFilters(msgspec.Struct):
    """The names of entry filters, separated by commas."""

    entryFilterNames: str = ""


class NamespacePolicies(msgspec.Struct):
    """The policies of a namespace. Properties of the first block are always in the JSON, properties of the second only
    if they are set.
    """

    auth_policies: AuthPolicies = msgspec.field(default_factory=AuthPolicies)
    replication_clusters: list[str] = []
    allowed_clusters: list[str] = []
    bundles: BundlesData = msgspec.field(default_factory=BundlesData)
    backlog_quota_map: dict[str, BacklogQuota] = {}
    clusterDispatchRate: dict[str, DispatchRate] = {}
    topicDispatchRate: dict[str, DispatchRate] = {}
    subscriptionDispatchRate: dict[str, DispatchRate] = {}
    replicatorDispatchRate: dict[str, DispatchRate] = {}
    clusterSubscribeRate: dict[str, SubscribeRate] = {}
    publishMaxMessageRate: dict[str, PublishRate] = {}
    latency_stats_sample_rate: dict[str, int] = {}
    deleted: bool = False
    encryption_required: bool = False
    subscription_auth_mode: SubscriptionAuthMode = SubscriptionAuthMode.NONE
    offload_threshold: int = -1
    offload_threshold_in_seconds: int = -1
    schema_compatibility_strategy: str = "UNDEFINED"
    is_allow_auto_update_schema: bool | None = None
    schema_validation_enforced: bool = False
    subscription_types_enabled: list[str] = []
    properties: dict[str, str] = {}
    migrated: bool = False

    persistence: PersistencePolicies | None = None
    deduplicationEnabled: bool | None = None
    deduplicationSnapshotIntervalSeconds: int | None = None
    autoTopicCreationOverride: AutoTopicCreationOverride | None = None
    autoSubscriptionCreationOverride: AutoSubscriptionCreationOverride | None = None
    message_ttl_in_seconds: int | None = None
    subscription_expiration_time_minutes: int | None = None
    retention_policies: RetentionPolicies | None = None
    delayed_delivery_policies: DelayedDeliveryPolicies | None = None
    inactive_topic_policies: InactiveTopicPolicies | None = None
    offload_policies: OffloadPolicies | None = None
    entryFilters: EntryFilters | None = None
    max_producers_per_topic: int | None = None
    max_consumers_per_topic: int | None = None
    max_consumers_per_subscription: int | None = None
    max_unacked_messages_per_consumer: int | None = None
    max_unacked_messages_per_subscription: int | None = None
    max_subscriptions_per_topic: int | None = None
    max_topics_per_namespace: int | None = None
    compaction_threshold: int | None = None
    offload_deletion_lag_ms: int | None = None
    schema_auto_update_compatibility_strategy: str | None = None
    resource_group_name: str | None = None
    dispatcherPauseOnAckStatePersistentEnabled: bool | None = None
    allowed_topic_property_keys_for_metrics: list[str] | None = None


class BookieAffinityGroup(msgspec.Struct):
    """Groups of bookies for the entries of a namespace."""

    bookkeeperAffinityGroupPrimary: str | None = None
    bookkeeperAffinityGroupSecondary: str | None = None


class LocalPolicies(msgspec.Struct):
    """Policies of a namespace in one cluster only. REST shows the bundles and the migration flag among the namespace's
    other policies.

    A stored document always has bundles, because a Java broker would otherwise use a single bundle.
    """

    bundles: BundlesData | None = None
    bookieAffinityGroup: BookieAffinityGroup | None = None
    namespaceAntiAffinityGroup: str | None = None
    migrated: bool = False


class SubscriptionPolicies(msgspec.Struct):
    """Policies of one subscription of a topic."""

    dispatchRate: DispatchRate | None = None


class TopicPolicies(msgspec.Struct):
    """Policies of one topic. A policy that is not set comes from its namespace, else from the broker.

    Three names differ from Pulsar's document: see `to_pulsar_topic_policies`.
    """

    backlogQuotaMap: dict[str, BacklogQuota] = {}
    retentionPolicies: RetentionPolicies | None = None
    messageTTLInSeconds: int | None = None
    dispatchRate: DispatchRate | None = None
    subscriptionDispatchRate: DispatchRate | None = None
    subscribeRate: SubscribeRate | None = None
    subscriptionExpirationTimeMinutes: int | None = None
    autoSubscriptionCreationOverride: AutoSubscriptionCreationOverride | None = None
    delayedDeliveryPolicies: DelayedDeliveryPolicies | None = None
    subscriptionPolicies: dict[str, SubscriptionPolicies] = {}
    publishRate: PublishRate | None = None
    replicatorDispatchRate: DispatchRate | None = None
    maxProducerPerTopic: int | None = None
    maxConsumerPerTopic: int | None = None
    maxConsumersPerSubscription: int | None = None
    maxSubscriptionsPerTopic: int | None = None
    maxUnackedMessagesOnConsumer: int | None = None
    maxUnackedMessagesOnSubscription: int | None = None
    maxMessageSize: int | None = None
    subscriptionTypesEnabled: list[str] | None = None
    dispatcherPauseOnAckStatePersistentEnabled: bool | None = None
    deduplicationEnabled: bool | None = None
    deduplicationSnapshotIntervalSeconds: int | None = None
    persistence: PersistencePolicies | None = None
    inactiveTopicPolicies: InactiveTopicPolicies | None = None
    compactionThreshold: int | None = None
    schemaCompatibilityStrategy: str | None = None
    schemaValidationEnforced: bool | None = None
    entryFilters: EntryFilters | None = None
    offloadPolicies: OffloadPolicies | None = None
    replicationClusters: list[str] | None = None
    shadowTopics: list[str] | None = None


def to_pulsar_topic_policies(policies: TopicPolicies) -> dict[str, Any]:
    """Return the policies as JSON values in the form of Pulsar's Java class TopicPolicies, without properties that are
    not set.
    """
    document: dict[str, Any] = _without_nulls(msgspec.to_builtins(policies))
    document["backLogQuotaMap"] = document.pop("backlogQuotaMap")
    if "subscriptionExpirationTimeMinutes" in document:
        document["subscriptionExpirationTimeInMinutes"] = document.pop("subscriptionExpirationTimeMinutes")
    delayed = policies.delayedDeliveryPolicies
    if delayed is not None:
        del document["delayedDeliveryPolicies"]
        document["delayedDeliveryEnabled"] = delayed.active
        document["delayedDeliveryTickTimeMillis"] = delayed.tickTime
        document["delayedDeliveryMaxDelayInMillis"] = delayed.maxDeliveryDelayInMillis
    return document


def from_pulsar_topic_policies(document: Mapping[str, Any]) -> TopicPolicies:
    """Read the policies from JSON values in the form of Pulsar's Java class TopicPolicies. Unknown properties are
    ignored. Raises msgspec.ValidationError if a property has the wrong type.
    """
    renamed: dict[str, Any] = {**document}
    renamed["backlogQuotaMap"] = renamed.pop("backLogQuotaMap", None)
    renamed["subscriptionExpirationTimeMinutes"] = renamed.pop("subscriptionExpirationTimeInMinutes", None)
    renamed["subscriptionTypesEnabled"] = renamed.get("subscriptionTypesEnabled") or None  # empty: unset
    if renamed.get("delayedDeliveryEnabled") is not None:
        renamed["delayedDeliveryPolicies"] = {
            "active": renamed["delayedDeliveryEnabled"],
            "tickTime": renamed.get("delayedDeliveryTickTimeMillis"),
            "maxDeliveryDelayInMillis": renamed.get("delayedDeliveryMaxDelayInMillis"),
        }
    return converted(renamed, TopicPolicies)


def with_global_policies(local: TopicPolicies, of_all_clusters: TopicPolicies) -> TopicPolicies:
    """Combine the policies of a topic: a policy that is set for this cluster (`local`) replaces the policy for all
    clusters.
    """
    unset = TopicPolicies()
    shared = {
        name: getattr(of_all_clusters, name)
        for name in TopicPolicies.__struct_fields__
        if getattr(local, name) == getattr(unset, name)
    }
    return structs.replace(local, **shared)


def encode(value: object) -> bytes:
    return msgspec.json.encode(to_json(value))


def to_json(value: object) -> Any:
    """Return a document as JSON values (dicts, lists, texts), without properties that are not set."""
    return _without_nulls(msgspec.to_builtins(value))


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a JSON document; absent and null properties get their defaults, unknown properties are ignored.

    Numbers and booleans may be strings, because the Go admin client sends them. Raises msgspec.DecodeError if `data` is
    not JSON, and its subclass ValidationError, with a text for the user, if a property has the wrong type.
    """
    return converted(msgspec.json.decode(data), kind)


def converted(document: Any, kind: type[T]) -> T:
    """Convert parsed JSON to `kind`; absent and null properties get their defaults, unknown properties are ignored.
    Raises msgspec.ValidationError, with a text for the user, if a property has the wrong type.
    """
    return msgspec.convert(_without_nulls(document), kind, strict=False)


def copy_of(document: T) -> T:
    return msgspec.convert(msgspec.to_builtins(document), type(document))


def _without_nulls(value: Any) -> Any:
    # Some clients send all known properties, null where unset. Lists are unchanged: a null in a list is an error.
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def even_bundles(count: int) -> BundlesData:
    """Return `count` bundles of almost equal size. Raises ValueError unless 0 < count <= MAX_BUNDLE_COUNT."""
    if not 0 < count <= MAX_BUNDLE_COUNT:
        raise ValueError(f"the number of bundles of a namespace must be from 1 to {MAX_BUNDLE_COUNT}, not {count}")
    size = 2**32 // count
    inner = [f"0x{index * size:08x}" for index in range(1, count)]
    return BundlesData([FIRST_BOUNDARY, *inner, LAST_BOUNDARY], count)


def checked_bundles(bundles: BundlesData, default_count: int = DEFAULT_BUNDLE_COUNT) -> BundlesData:
    """Return the bundles that a request for a new namespace describes: with the given boundaries, else the given number
    of equal bundles, else `default_count` equal bundles.

    Raises ValueError if boundaries are invalid, do not span the whole range, or do not match the number.
    """
    if not bundles.boundaries:
        return even_bundles(bundles.numBundles if bundles.numBundles > 0 else default_count)
    boundaries = sorted({_boundary(text) for text in bundles.boundaries})
    count = len(boundaries) - 1
    if boundaries[0] != 0 or boundaries[-1] != 2**32 - 1 or count > MAX_BUNDLE_COUNT:
        raise ValueError(
            f"bundle boundaries must begin with {FIRST_BOUNDARY}, end with {LAST_BOUNDARY}, and define at most "
            f"{MAX_BUNDLE_COUNT} bundles"
        )
    if bundles.numBundles not in (0, count):
        raise ValueError(
            f"the {len(boundaries)} bundle boundaries define {count} bundles, but numBundles is {bundles.numBundles}"
        )
    return BundlesData([f"0x{boundary:08x}" for boundary in boundaries], count)


def _boundary(text: str) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        raise ValueError(f"{text!r} is not a bundle boundary: use a form such as 0x40000000") from None
    if not 0 <= value < 2**32:
        raise ValueError(f"{text!r} is not a bundle boundary: use a form such as 0x40000000")
    return value


def ordered_actions(actions: Sequence[AuthAction]) -> list[AuthAction]:
    return [action for action in AuthAction if action in actions]
