"""Types and checks of policy values in REST requests. The checks raise AdminError with Pulsar's status and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta

from pybroker.admin.calls.queries import Query
from pybroker.broker.topic.backlog_rules import retention_refusal
from pybroker.errors import AdminError
from pybroker.model.effective_policies import split_names
from pybroker.model.offload_policies import OffloadPolicies, offload_refusal
from pybroker.model.policies import (
    AutoTopicCreationOverride,
    BacklogQuota,
    BacklogQuotaPolicy,
    BacklogQuotaType,
    EntryFilters,
    PersistencePolicies,
    RetentionPolicies,
)

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call

MAX_SIGNED_32 = (1 << 31) - 1
MAX_SIGNED_64 = (1 << 63) - 1
MAX_ENSEMBLE = 5
PARTITIONED, NON_PARTITIONED = "partitioned", "non-partitioned"

Integer: TypeAlias = Annotated[int, Meta(ge=-MAX_SIGNED_32 - 1, le=MAX_SIGNED_32)]
Long: TypeAlias = Annotated[int, Meta(ge=-MAX_SIGNED_64 - 1, le=MAX_SIGNED_64)]
SchemaStrategy: TypeAlias = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
OldSchemaStrategy: TypeAlias = Literal[
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
]
SubscriptionType: TypeAlias = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]


def at_least_zero(of_namespace: str, of_topic: str = "") -> Callable[[Call, int], None]:
    """Return a check that rejects negative numbers. The arguments are Pulsar's error texts for namespaces and for
    topics.
    """

    def check(call: Call, value: int) -> None:
        if value < 0:
            raise AdminError(412, of_topic if of_topic and call.is_of_topic else of_namespace)

    return check


def check_message_size(call: Call, size_bytes: int) -> None:
    if not 0 <= size_bytes <= call.config.max_message_size:
        raise AdminError(
            412,
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level",
        )


def check_persistence(_: Call, persistence: PersistencePolicies) -> None:
    ensemble, written = persistence.bookkeeperEnsemble, persistence.bookkeeperWriteQuorum
    acknowledged = persistence.bookkeeperAckQuorum
    if not 0 < ensemble <= MAX_ENSEMBLE:
        raise AdminError(400, f"Bookkeeper-Ensemble must be <= {MAX_ENSEMBLE} and > 0.")
    if not ensemble >= written >= acknowledged > 0:
        # Pulsar's text, although the last number must be above 0, too.
        raise AdminError(
            400, f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({written}) >= AckQuorum ({acknowledged})"
        )


def check_topic_creation(call: Call, override: AutoTopicCreationOverride) -> None:
    """Check a policy of automatic topic creation: if creation is enabled, a topic type is required."""
    count, most = override.defaultNumPartitions, call.config.max_num_partitions_per_partitioned_topic
    if not override.allowAutoTopicCreation:
        return
    if override.topicType not in {PARTITIONED, NON_PARTITIONED}:
        raise _bad_topic_creation(f"Unknown topic type [{override.topicType or 'null'}]")
    if override.topicType == NON_PARTITIONED and count is not None:
        raise _bad_topic_creation("[defaultNumPartitions] is not allowed to be set when the type is non-partition.")
    if override.topicType == PARTITIONED and count is None:
        raise _bad_topic_creation("[defaultNumPartitions] cannot be null when the type is partitioned.")
    if override.topicType == PARTITIONED and count is not None and count < 1:
        raise _bad_topic_creation("[defaultNumPartitions] cannot be less than 1 for partition type.")
    if count is not None and 0 < most < count:
        raise AdminError(406, f"defaultNumPartitions exceeds maxNumPartitionsPerPartitionedTopic ({most})")


def _bad_topic_creation(detail: str) -> AdminError:
    return AdminError(412, f"Invalid configuration for autoTopicCreationOverride. the detail is {detail}")


def check_entry_filters(call: Call, filters: EntryFilters) -> None:
    names = split_names(filters.entryFilterNames)
    if not names:
        raise AdminError(400, "entryFilterNames can't be empty. To remove entry filters use the remove method.")
    for name in names:
        if not call.broker.broker_context.entry_filters.has(name):
            raise AdminError(
                400,
                (
                    f"The entry filter {name!r} is not loaded by this broker. Add it to entryFilterNames and restart "
                    "the broker"
                ),
            )


def check_offload(_: Call, policies: OffloadPolicies) -> None:
    refusal = offload_refusal(policies)
    if refusal:
        raise AdminError(412, refusal)


def check_clusters(call: Call, tenant: str, clusters: Sequence[str]) -> None:
    """Check that the clusters exist and that the tenant may use them."""
    info = call.resources.tenant(tenant)
    for cluster in clusters:
        if call.resources.cluster(cluster) is None:
            raise AdminError(403, f"Invalid cluster id: {cluster}")
        if info is not None and cluster not in info.allowedClusters:
            raise AdminError(403, f"Cluster [{cluster}] is not in the list of allowed clusters of tenant [{tenant}]")


def checked_retention(retention: RetentionPolicies | None) -> RetentionPolicies | None:
    """Return `retention` unchanged. Raises AdminError 400 if a limit is below -1, or only one limit is 0."""
    refusal = "" if retention is None else retention_refusal(retention)
    if refusal:
        raise AdminError(400, refusal)
    return retention


def checked_quota(quota: BacklogQuota | None) -> BacklogQuota | None:
    """Return `quota` unchanged. Raises AdminError 400 if its policy is missing or unknown."""
    if quota is not None and quota.policy not in set(BacklogQuotaPolicy):
        raise AdminError(400, f"The backlog quota's policy must be one of {', '.join(BacklogQuotaPolicy)}")
    return quota


QUOTA_TYPE = Query("backlogQuotaType", "type of the quota", str, BacklogQuotaType.SIZE, tuple(BacklogQuotaType))


def quota_type(call: Call) -> BacklogQuotaType:
    """Return the query parameter `backlogQuotaType`; the size quota (`destination_storage`) if it is absent. Raises
    AdminError 404 for an unknown type.
    """
    text = call.query("backlogQuotaType") or BacklogQuotaType.SIZE
    try:
        return BacklogQuotaType(text)
    except ValueError:
        raise AdminError(404, f"backlogQuotaType {text!r} does not exist") from None
