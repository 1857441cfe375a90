"""What requests may set policies to: types of bodies and checks that namespaces and topics share, with Pulsar's codes.

Raises AdminError. Whether two policies fit each other is checked where both are at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta

from pybroker.broker.backlog import retention_refusal
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
    from pybroker.admin.call import Call

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


def at_least_zero(name: str) -> Callable[[Call, int], None]:
    """A check of a number that cannot be negative."""

    def check(_: Call, value: int) -> None:
        if value < 0:
            raise AdminError(412, f"{name} must be 0 or more")

    return check


def check_message_size(call: Call, size_bytes: int) -> None:
    """A topic takes no larger messages than its broker."""
    if not 0 <= size_bytes <= call.config.max_message_size:
        raise AdminError(
            412,
            f"maxMessageSize of a topic must be 0 or more, and no more than the broker's {call.config.max_message_size}",
        )


def check_persistence(_: Call, persistence: PersistencePolicies) -> None:
    """The numbers of copies fit each other."""
    ensemble, written = persistence.bookkeeperEnsemble, persistence.bookkeeperWriteQuorum
    acknowledged = persistence.bookkeeperAckQuorum
    if not 0 < ensemble <= MAX_ENSEMBLE:
        raise AdminError(400, f"bookkeeperEnsemble must be 1 to {MAX_ENSEMBLE}")
    if not ensemble >= written >= acknowledged > 0:
        raise AdminError(
            400,
            f"bookkeeperEnsemble ({ensemble}) >= bookkeeperWriteQuorum ({written}) >= "
            f"bookkeeperAckQuorum ({acknowledged}) > 0 must hold",
        )


def check_topic_creation(call: Call, override: AutoTopicCreationOverride) -> None:
    """What is made must be known when anything is made."""
    count, most = override.defaultNumPartitions, call.config.max_num_partitions_per_partitioned_topic
    if not override.allowAutoTopicCreation:
        return
    if override.topicType not in {PARTITIONED, NON_PARTITIONED}:
        raise AdminError(412, f"Invalid autoTopicCreation: unknown topicType {override.topicType!r}")
    if override.topicType == NON_PARTITIONED and count is not None:
        raise AdminError(412, "Invalid autoTopicCreation: defaultNumPartitions is for topicType partitioned")
    if override.topicType == PARTITIONED and (count is None or count <= 0):
        raise AdminError(412, "Invalid autoTopicCreation: topicType partitioned needs defaultNumPartitions above 0")
    if count is not None and 0 < most < count:
        raise AdminError(406, f"defaultNumPartitions is more than maxNumPartitionsPerPartitionedTopic ({most})")


def check_entry_filters(call: Call, filters: EntryFilters) -> None:
    """Only filters that the broker has loaded can be named."""
    names = split_names(filters.entryFilterNames)
    if not names:
        raise AdminError(400, "entryFilterNames can't be empty: delete the policy instead")
    for name in names:
        if not call.broker.entry_filters.has(name):
            raise AdminError(400, f"Entry filter {name!r} not found")


def check_offload(_: Call, policies: OffloadPolicies) -> None:
    """There is somewhere to move ledgers to."""
    refusal = offload_refusal(policies)
    if refusal:
        raise AdminError(412, refusal)


def check_clusters(call: Call, tenant: str, clusters: Sequence[str]) -> None:
    """The clusters exist, and the tenant may use them."""
    info = call.resources.tenant(tenant)
    for cluster in clusters:
        if call.resources.cluster(cluster) is None:
            raise AdminError(403, f"Invalid cluster id: {cluster}")
        if info is not None and cluster not in info.allowedClusters:
            raise AdminError(403, f"Cluster [{cluster}] is not in the list of allowed clusters of tenant [{tenant}]")


def checked_retention(retention: RetentionPolicies | None) -> RetentionPolicies | None:
    """`retention` as it is; 400 when nobody can mean it."""
    refusal = "" if retention is None else retention_refusal(retention)
    if refusal:
        raise AdminError(400, refusal)
    return retention


def checked_quota(quota: BacklogQuota | None) -> BacklogQuota | None:
    """`quota` as it is; 400 when it does not say what happens above it."""
    if quota is not None and quota.policy not in set(BacklogQuotaPolicy):
        raise AdminError(400, f"The backlog quota's policy must be one of {', '.join(BacklogQuotaPolicy)}")
    return quota


def quota_type(call: Call) -> BacklogQuotaType:
    """What the query's `backlogQuotaType` means, the size by default; 404 for anything else."""
    text = call.query("backlogQuotaType") or BacklogQuotaType.SIZE
    try:
        return BacklogQuotaType(text)
    except ValueError:
        raise AdminError(404, f"No such backlogQuotaType: {text!r}") from None
