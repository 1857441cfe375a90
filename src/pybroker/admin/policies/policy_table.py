"""Table of the policies with a single value: REST names, storage, and differences between their routes, as in Pulsar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pybroker.admin.policies.policy_values import (
    Integer,
    Long,
    OldSchemaStrategy,
    SchemaStrategy,
    SubscriptionType,
    at_least_zero,
    check_entry_filters,
    check_message_size,
    check_offload,
    check_persistence,
    check_topic_creation,
)
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.offload_policies import OffloadPolicies
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    DispatchRate,
    EntryFilters,
    InactiveTopicPolicies,
    PersistencePolicies,
    PublishRate,
    SubscribeRate,
    SubscriptionAuthMode,
)

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call


class Mark(Enum):
    """Special entry in a column of the table, where other policies have a value."""

    REFUSED = "a request without a value is answered 400"
    UNCHANGED = "a request without a value changes nothing"
    NO_CONTENT = "a GET is answered 204"


REFUSED: Final = Mark.REFUSED
UNCHANGED: Final = Mark.UNCHANGED
NO_CONTENT: Final = Mark.NO_CONTENT


@dataclass(frozen=True, slots=True)
class Level:
    """Routes and storage of a policy at one level: namespace or topic."""

    path: str
    field: str
    """Field of the level's document."""
    nothing: object = None
    """Value that a request without a body or with `null` sets. None: the request removes the policy."""
    unset: object = None
    """Response to a GET if the policy is not set. None: empty."""
    removed: object = None
    """Value that a DELETE sets."""
    unset_by: object = None
    """Value that removes the policy."""
    set_method: str = "POST"
    can_be_unset: bool = True
    """Whether there is a DELETE."""
    is_set_by_superusers: bool = False
    """Whether only superusers may change it, as in Pulsar."""
    is_in_query: bool = False
    """Whether the value is a query parameter named like the path."""
    fixed_value: object = None
    """Value that every request sets, without regard to its body."""
    shows_default: bool = False
    """Whether GET returns the effective value if the policy is not set."""
    also: tuple[str, ...] = ()
    """Other fields that receive the same value."""
    is_applied: bool = False
    """Whether a namespace supports `applied=true`; topics do if the policy has `applied`."""


@dataclass(frozen=True, slots=True)
class PlainPolicy:
    """One policy of the table: its type, its check, and its levels."""

    value_type: Any
    namespace: Level | None
    topic: Level | None
    applied: Callable[[EffectivePolicies], Any] | None = None
    """Returns the effective value. None: Pulsar has no such call."""
    is_by_cluster: bool = False
    """Whether the namespace's document has a value per cluster."""
    check: Callable[[Call, Any], None] = lambda _, __: None
    """Raises AdminError for an invalid value."""


def _limit(
    namespace: tuple[str, str],
    topic: tuple[str, str],
    applied: Callable[[EffectivePolicies], Any] | None,
    *,
    topic_nothing: object = REFUSED,
    topic_refusal: str = "",
) -> PlainPolicy:
    """Return the table row of a limit for which 0 means unlimited. `namespace`, `topic`: path and field at each level.
    `topic_refusal`: error text for a negative value on a topic.
    """
    shown = None if applied is not None else NO_CONTENT
    return PlainPolicy(
        Integer,
        Level(*namespace, nothing=REFUSED),
        Level(*topic, nothing=topic_nothing, unset=shown),
        applied,
        check=at_least_zero(f"{namespace[0]} must be 0 or more", topic_refusal or f"{topic[0]} must be 0 or more"),
    )


RATES = (
    PlainPolicy(
        DispatchRate,
        Level("dispatchRate", "topicDispatchRate", also=("clusterDispatchRate",)),
        Level("dispatchRate", "dispatchRate", nothing=UNCHANGED),
        lambda effective: effective.dispatch_rate,
        is_by_cluster=True,
    ),
    PlainPolicy(
        DispatchRate,
        Level("subscriptionDispatchRate", "subscriptionDispatchRate"),
        Level("subscriptionDispatchRate", "subscriptionDispatchRate", nothing=UNCHANGED),
        lambda effective: effective.subscription_dispatch_rate,
        is_by_cluster=True,
    ),
    PlainPolicy(
        DispatchRate,
        Level("replicatorDispatchRate", "replicatorDispatchRate"),
        Level("replicatorDispatchRate", "replicatorDispatchRate"),
        lambda effective: effective.replicator_dispatch_rate,
        is_by_cluster=True,
    ),
    PlainPolicy(
        PublishRate,
        Level("publishRate", "publishMaxMessageRate"),
        Level("publishRate", "publishRate", nothing=UNCHANGED, unset=NO_CONTENT),
        is_by_cluster=True,
    ),
    PlainPolicy(
        SubscribeRate,
        Level("subscribeRate", "clusterSubscribeRate"),
        Level("subscribeRate", "subscribeRate", nothing=UNCHANGED),
        lambda effective: effective.subscribe_rate,
        is_by_cluster=True,
    ),
)

LIMITS = (
    _limit(
        ("maxProducersPerTopic", "max_producers_per_topic"),
        ("maxProducers", "maxProducerPerTopic"),
        lambda effective: effective.max_producers,
    ),
    _limit(
        ("maxConsumersPerTopic", "max_consumers_per_topic"),
        ("maxConsumers", "maxConsumerPerTopic"),
        lambda effective: effective.max_consumers,
    ),
    _limit(
        ("maxConsumersPerSubscription", "max_consumers_per_subscription"),
        ("maxConsumersPerSubscription", "maxConsumersPerSubscription"),
        None,
        topic_refusal="Invalid value for maxConsumersPerSubscription",
    ),
    _limit(
        ("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
        ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"),
        None,
    ),
    _limit(
        ("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
        ("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnConsumer"),
        lambda effective: effective.max_unacked_per_consumer,
        topic_nothing=None,
        topic_refusal="maxUnackedNum must be 0 or more",
    ),
    _limit(
        ("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
        ("maxUnackedMessagesOnSubscription", "maxUnackedMessagesOnSubscription"),
        lambda effective: effective.max_unacked_per_subscription,
        topic_nothing=None,
        topic_refusal="maxUnackedNum must be 0 or more",
    ),
    PlainPolicy(
        Integer,
        Level("maxTopicsPerNamespace", "max_topics_per_namespace", nothing=REFUSED, unset=0),
        None,
        check=at_least_zero("maxTopicsPerNamespace must be 0 or more"),
    ),
    PlainPolicy(
        Integer,
        None,
        Level("maxMessageSize", "maxMessageSize", nothing=REFUSED, unset=NO_CONTENT),
        check=check_message_size,
    ),
)

LIFE = (
    PlainPolicy(
        Integer,
        Level("messageTTL", "message_ttl_in_seconds", nothing=REFUSED),
        Level("messageTTL", "messageTTLInSeconds", is_in_query=True),
        lambda effective: effective.message_ttl_s,
        check=at_least_zero("Invalid value for message TTL, message TTL must >= 0", "Invalid value for message TTL"),
    ),
    PlainPolicy(
        Integer,
        Level("subscriptionExpirationTime", "subscription_expiration_time_minutes", nothing=REFUSED),
        Level("subscriptionExpirationTime", "subscriptionExpirationTimeMinutes", is_in_query=True),
        lambda effective: effective.subscription_expiration_minutes,
        check=at_least_zero("Invalid value for subscription expiration time"),
    ),
    PlainPolicy(
        InactiveTopicPolicies,
        Level("inactiveTopicPolicies", "inactive_topic_policies"),
        Level("inactiveTopicPolicies", "inactiveTopicPolicies"),
        lambda effective: effective.inactive_topics,
    ),
    PlainPolicy(
        AutoTopicCreationOverride,
        Level("autoTopicCreation", "autoTopicCreationOverride"),
        None,
        check=check_topic_creation,
    ),
    PlainPolicy(
        AutoSubscriptionCreationOverride,
        Level("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
        Level("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
        lambda effective: effective.auto_subscription_creation,
    ),
    PlainPolicy(
        PersistencePolicies,
        Level("persistence", "persistence", nothing=REFUSED),
        Level("persistence", "persistence", nothing=REFUSED),
        lambda effective: effective.persistence,
        check=check_persistence,
    ),
    PlainPolicy(
        Long,
        Level("compactionThreshold", "compaction_threshold", nothing=REFUSED, set_method="PUT"),
        Level("compactionThreshold", "compactionThreshold", nothing=REFUSED),
        lambda effective: effective.compaction_threshold,
        check=at_least_zero("compactionThreshold must be 0 or more", "Invalid value for compactionThreshold"),
    ),
    PlainPolicy(
        OffloadPolicies,
        None,
        Level("offloadPolicies", "offloadPolicies", nothing=OffloadPolicies()),
        lambda effective: effective.offload,
        check=check_offload,
    ),
)

DELIVERY = (
    PlainPolicy(
        DelayedDeliveryPolicies,
        Level("delayedDelivery", "delayed_delivery_policies", is_set_by_superusers=True),
        Level("delayedDelivery", "delayedDeliveryPolicies"),
        lambda effective: effective.delayed_delivery,
    ),
    PlainPolicy(
        list[SubscriptionType],
        Level("subscriptionTypesEnabled", "subscription_types_enabled", nothing=REFUSED, removed=[]),
        Level("subscriptionTypesEnabled", "subscriptionTypesEnabled", nothing=REFUSED, unset=NO_CONTENT, removed=[]),
    ),
    PlainPolicy(
        EntryFilters,
        Level("entryFilters", "entryFilters"),
        Level("entryFilters", "entryFilters"),
        lambda effective: EntryFilters(",".join(effective.entry_filter_names)),
        check=check_entry_filters,
    ),
    PlainPolicy(
        bool,
        Level(
            "dispatcherPauseOnAckStatePersistent",
            "dispatcherPauseOnAckStatePersistentEnabled",
            fixed_value=True,
            unset=False,
        ),
        Level(
            "dispatcherPauseOnAckStatePersistent",
            "dispatcherPauseOnAckStatePersistentEnabled",
            fixed_value=True,
            unset=False,
        ),
        lambda effective: effective.dispatcher_pause_on_ack_state,
    ),
    PlainPolicy(
        bool,
        Level("deduplication", "deduplicationEnabled", nothing=REFUSED),
        Level("deduplicationEnabled", "deduplicationEnabled"),
        lambda effective: effective.deduplication,
    ),
    PlainPolicy(
        Integer,
        Level("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds", can_be_unset=False),
        Level("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
        check=at_least_zero("interval must be greater than or equal to 0", "interval must be 0 or more"),
    ),
    PlainPolicy(
        list[str],
        Level("allowedTopicPropertyKeysForMetrics", "allowed_topic_property_keys_for_metrics"),
        None,
    ),
)

SCHEMAS_AND_SECURITY = (
    PlainPolicy(
        SchemaStrategy,
        Level(
            "schemaCompatibilityStrategy",
            "schema_compatibility_strategy",
            nothing="UNDEFINED",
            set_method="PUT",
            can_be_unset=False,
        ),
        Level("schemaCompatibilityStrategy", "schemaCompatibilityStrategy", set_method="PUT", unset_by="UNDEFINED"),
        lambda effective: effective.schema_strategy,
    ),
    PlainPolicy(
        OldSchemaStrategy,
        Level(
            "schemaAutoUpdateCompatibilityStrategy",
            "schema_auto_update_compatibility_strategy",
            unset=NO_CONTENT,
            set_method="PUT",
            can_be_unset=False,
        ),
        None,
    ),
    PlainPolicy(
        bool,
        Level(
            "schemaValidationEnforced",
            "schema_validation_enforced",
            nothing=REFUSED,
            can_be_unset=False,
            is_applied=True,
        ),
        Level(
            "schemaValidationEnforced",
            "schemaValidationEnforced",
            nothing=REFUSED,
            unset=False,
            can_be_unset=False,
        ),
        lambda effective: effective.schema_validation_enforced,
    ),
    PlainPolicy(
        bool,
        Level(
            "isAllowAutoUpdateSchema",
            "is_allow_auto_update_schema",
            nothing=REFUSED,
            shows_default=True,
            can_be_unset=False,
        ),
        None,
        lambda effective: effective.is_allow_auto_update_schema,
    ),
    PlainPolicy(
        bool,
        Level("encryptionRequired", "encryption_required", nothing=REFUSED, can_be_unset=False),
        None,
    ),
    PlainPolicy(
        SubscriptionAuthMode,
        Level(
            "subscriptionAuthMode",
            "subscription_auth_mode",
            nothing=SubscriptionAuthMode.NONE,
            can_be_unset=False,
        ),
        None,
    ),
)

TABLE: tuple[PlainPolicy, ...] = (*RATES, *LIMITS, *LIFE, *DELIVERY, *SCHEMAS_AND_SECURITY)
