"""Settings that are stored without effect. A request that sets one causes a warning in the response and in the log.

docs/reference/differences.md lists the same settings ("Not here yet").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pybroker.config import KEYS
from pybroker.model.policies import NamespacePolicies, PersistencePolicies

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call

Asks = Callable[["Call", Any], bool]
"""Returns whether a request with this decoded body (or None) sets an unsupported setting."""

_V2 = "/admin/v2"
_CLUSTER = _V2 + "/clusters/{cluster}"
_NAMESPACE = _V2 + "/namespaces/{tenant}/{namespace}"
_TOPIC = _V2 + "/{domain}/{tenant}/{namespace}/{topic}"
_QUOTAS = _V2 + "/resource-quotas"
FOREIGN_ACTIONS = frozenset({"functions", "sources", "sinks", "packages"})
SHADOW_PREFIX = "PULSAR.SHADOW"


@dataclass(frozen=True, slots=True)
class Unserved:
    """One unsupported feature: its name in docs/reference/differences.md and in warnings, the calls that set it, and
    the policy members that store it.
    """

    subject: str
    calls: dict[tuple[str, str], Asks]
    fields: frozenset[str] = frozenset()
    """Policy members that only these calls read."""


def _given(_call: Call, body: Any) -> bool:
    return body is not None and body is not False


def _always(_call: Call, _body: Any) -> bool:
    return True


def _is_alone(call: Call, _body: Any) -> bool:
    return call.broker.membership is None


def _other_clusters(call: Call, clusters: Iterable[str] | None) -> bool:
    return any(cluster != call.config.cluster_name for cluster in clusters or ())


def _in_document(asks: Asks) -> dict[tuple[str, str], Asks]:
    return {("PUT", _NAMESPACE): lambda call, body: body is not None and asks(call, body)}


def _is_other_cluster(call: Call, _body: Any) -> bool:
    return call.name("cluster") != call.config.cluster_name


def _wants_copies(_call: Call, persistence: PersistencePolicies | None) -> bool:
    if persistence is None:
        return False
    copies = max(persistence.bookkeeperEnsemble, persistence.bookkeeperWriteQuorum, persistence.bookkeeperAckQuorum)
    return (
        copies > 1 or persistence.managedLedgerMaxMarkDeleteRate > 0 or bool(persistence.managedLedgerStorageClassName)
    )


def _wants_offload(_call: Call, policies: NamespacePolicies) -> bool:
    return policies.offload_policies is not None or policies.offload_threshold >= 0


def _grants_foreign(_call: Call, actions: Iterable[str] | None) -> bool:
    return not FOREIGN_ACTIONS.isdisjoint(map(str, actions or ()))


def _without_effect(call: Call, _body: Any) -> bool:
    key = KEYS.get(call.name("name"))
    return key is None or not key.supported


TABLE: tuple[Unserved, ...] = (
    Unserved(
        "replication to other clusters",
        {
            ("POST", _NAMESPACE + "/replication"): _other_clusters,
            ("POST", _TOPIC + "/replication"): _other_clusters,
            **_in_document(lambda call, body: _other_clusters(call, body.replication_clusters)),
        },
    ),
    Unserved(
        "allowed clusters of a namespace",
        {
            ("POST", _NAMESPACE + "/allowedClusters"): _other_clusters,
            **_in_document(lambda call, body: _other_clusters(call, body.allowed_clusters)),
        },
        frozenset({"allowed_clusters"}),
    ),
    Unserved(
        "dispatch rates to other clusters",
        {
            ("POST", _NAMESPACE + "/replicatorDispatchRate"): _given,
            ("POST", _TOPIC + "/replicatorDispatchRate"): _given,
            **_in_document(lambda _, body: bool(body.replicatorDispatchRate)),
        },
        frozenset({"replicator_dispatch_rate"}),
    ),
    Unserved(
        "replicated subscriptions",
        {
            ("POST", _TOPIC + "/subscription/{subscription}/replicatedSubscriptionStatus"): _given,
            ("PUT", _TOPIC + "/subscription/{subscription}"): lambda call, _: call.flag("replicated"),
        },
    ),
    Unserved(
        "documents of other clusters, and peers",
        {
            ("PUT", _CLUSTER): _is_other_cluster,
            ("POST", _CLUSTER): _is_other_cluster,
            ("POST", _CLUSTER + "/peers"): lambda _, body: bool(body),
        },
    ),
    Unserved("failure domains", {("POST", _CLUSTER + "/failureDomains/{domain}"): _is_alone}),
    Unserved("isolation policies", {("POST", _CLUSTER + "/namespaceIsolationPolicies/{policy}"): _is_alone}),
    Unserved(
        "migration of clusters and namespaces",
        {
            ("POST", _CLUSTER + "/migrate"): lambda call, _: call.flag("migrated"),
            ("POST", _NAMESPACE + "/migration"): _given,
            **_in_document(lambda _, body: body.migrated),
        },
        frozenset({"migrated"}),
    ),
    Unserved("anti-affinity of namespaces", {("POST", _NAMESPACE + "/antiAffinity"): _is_alone}),
    Unserved(
        "affinity to bookies",
        {("POST", _NAMESPACE + "/persistence/bookieAffinity"): _given},
        frozenset({"bookieAffinityGroup"}),
    ),
    Unserved(
        "resource quotas of bundles",
        {
            ("POST", _QUOTAS): _given,
            ("POST", _QUOTAS + "/{tenant}/{namespace}/{bundle}"): _given,
        },
    ),
    Unserved(
        "offload to other storage",
        {
            ("POST", _NAMESPACE + "/offloadPolicies"): _given,
            ("PUT", _NAMESPACE + "/offloadThreshold"): lambda _, body: body >= 0,
            ("PUT", _NAMESPACE + "/offloadThresholdInSeconds"): lambda _, body: body >= 0,
            ("PUT", _NAMESPACE + "/offloadDeletionLagMs"): _given,
            ("POST", _TOPIC + "/offloadPolicies"): _given,
            ("PUT", _TOPIC + "/offload"): _always,
            **_in_document(_wants_offload),
        },
        frozenset({"offload", "offload_threshold", "offload_threshold_in_seconds", "offload_deletion_lag_ms"}),
    ),
    Unserved(
        "shadow topics",
        {
            ("PUT", _TOPIC + "/shadowTopics"): _given,
            ("PUT", _TOPIC): lambda _, body: any(name.startswith(SHADOW_PREFIX) for name in body or ()),
        },
        frozenset({"shadowTopics"}),
    ),
    Unserved(
        "copies on several storage nodes",
        {
            ("POST", _NAMESPACE + "/persistence"): _wants_copies,
            ("POST", _TOPIC + "/persistence"): _wants_copies,
            **_in_document(lambda call, body: _wants_copies(call, body.persistence)),
        },
        frozenset(
            {
                "persistence",
                "bookkeeperEnsemble",
                "bookkeeperWriteQuorum",
                "bookkeeperAckQuorum",
                "managedLedgerMaxMarkDeleteRate",
                "managedLedgerStorageClassName",
            }
        ),
    ),
    Unserved(
        "samples of latency",
        _in_document(lambda _, body: bool(body.latency_stats_sample_rate)),
        frozenset({"latency_stats_sample_rate"}),
    ),
    Unserved(
        "rights to functions, sources, sinks and packages",
        {
            ("POST", _NAMESPACE + "/permissions/{role}"): _grants_foreign,
            ("POST", _TOPIC + "/permissions/{role}"): _grants_foreign,
            ("POST", _V2 + "/namespaces/grantPermissionsOnTopics"): lambda call, body: any(
                _grants_foreign(call, each.actions) for each in body or ()
            ),
        },
    ),
    Unserved(
        "configuration keys without effect",
        {("POST", _V2 + "/brokers/configuration/{name}/{value}"): _without_effect},
    ),
)


def of(method: str, path: str) -> tuple[tuple[str, Asks], ...]:
    return tuple((row.subject, asks) for row in TABLE if (asks := row.calls.get((method, path))) is not None)
