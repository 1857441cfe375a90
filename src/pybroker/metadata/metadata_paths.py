"""Where each fact lives in the metadata store.

Segments never hold a slash: names are validated or percent-encoded before.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from pybroker.model.names import NamespaceName, TopicName

CLUSTERS = "/admin/clusters"
TENANTS = "/admin/tenants"
POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
TOPIC_POLICIES = "/admin/topic-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
RESOURCE_GROUPS = "/admin/resourcegroups"
MANAGED_LEDGERS = "/managed-ledgers"
SCHEMAS = "/schemas"
RESOURCE_QUOTAS = "/admin/resource-quotas"  # Its own value is the default of all bundles.
DYNAMIC_CONFIGURATION = "/admin/configuration"
JOURNAL_MARK = "/local-store/journal-end"  # The progress of this directory's ledger store at the last metadata change.
BACKUP_LINEAGE = "/local-store/backup-lineage"  # Identifies the history of this directory; a restore starts a new one.
PRODUCER_NAMES = "/counters/producer-name"  # Its version counts the starts.


def cluster(name: str) -> str:
    """A cluster's ClusterData."""
    return f"{CLUSTERS}/{name}"


def failure_domains(cluster_name: str) -> str:
    """All FailureDomains of a cluster, by name."""
    return f"{CLUSTERS}/{cluster_name}/failure-domains"


def isolation_policies(cluster_name: str) -> str:
    """All NamespaceIsolationData of a cluster, by name."""
    return f"{CLUSTERS}/{cluster_name}/isolation-policies"


def migration(cluster_name: str) -> str:
    """A cluster's ClusterPolicies: where it moved to."""
    return f"{CLUSTERS}/{cluster_name}/migration"


def tenant(name: str) -> str:
    """A tenant's TenantInfo."""
    return f"{TENANTS}/{name}"


def tenant_policies(name: str) -> str:
    """The parent of a tenant's namespaces."""
    return f"{POLICIES}/{name}"


def policies(namespace: NamespaceName) -> str:
    """A namespace's NamespacePolicies; a namespace exists as long as this does."""
    return f"{POLICIES}/{namespace.tenant}/{namespace.local_name}"


def local_policies(namespace: NamespaceName) -> str:
    """A namespace's LocalPolicies; missing while there are none."""
    return f"{LOCAL_POLICIES}/{namespace.tenant}/{namespace.local_name}"


def resource_quotas(namespace: NamespaceName) -> str:
    """The parent of the ResourceQuotas of a namespace's bundles."""
    return f"{RESOURCE_QUOTAS}/{namespace}"


def topic_policies(topic: TopicName) -> str:
    """A topic's TopicPolicies; missing while nothing is set for it alone."""
    return f"{TOPIC_POLICIES}/{topic.storage_path}"


def schemas(namespace: NamespaceName) -> str:
    """The parent of the schemas of a namespace's topics."""
    return f"{SCHEMAS}/{namespace}"


def schema(topic: TopicName) -> str:
    """The parent of the versions of a topic's schema: one for all its partitions, and for both domains."""
    return f"{SCHEMAS}/{schema_name(topic)}"


def schema_version(schema_path: str, version: int) -> str:
    """One version; their names sort as the versions do."""
    return f"{schema_path}/{version:020d}"


def schema_name(topic: TopicName) -> str:
    """Return the name of a topic's schema: `tenant/ns/encoded-name`."""
    return f"{topic.namespace}/{quote(topic.partitioned_name.local_name, safe='')}"


def resource_group(name: str) -> str:
    """The rates of a resource group."""
    return f"{RESOURCE_GROUPS}/{quote(name, safe='')}"


def resource_group_of_segment(segment: str) -> str:
    """Return the group whose path ends in `segment`, a child of RESOURCE_GROUPS."""
    return unquote(segment)


def partitioned_topics(namespace: NamespaceName, domain: str) -> str:
    """The parent of the partitioned topics of a namespace and domain."""
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}"


def partitioned_topic(topic: TopicName) -> str:
    """How many partitions a partitioned topic has."""
    return f"{PARTITIONED_TOPICS}/{topic.storage_path}"


def managed_ledgers(namespace: NamespaceName, domain: str) -> str:
    """The parent of the managed ledgers of a namespace and domain: its children are the topics that exist."""
    return f"{MANAGED_LEDGERS}/{namespace}/{domain}"


def managed_ledger(topic: TopicName) -> str:
    """A topic's managed ledger: its ledgers in order. Removed as a tree with all that lies below."""
    return f"{MANAGED_LEDGERS}/{topic.storage_path}"


def cursors(topic: TopicName) -> str:
    """Return the parent path of the durable cursors of a topic."""
    return f"{managed_ledger(topic)}/cursors"


def topic_of_segment(namespace: NamespaceName, domain: str, segment: str) -> TopicName:
    """Return the topic whose path ends in `segment`, a child of `managed_ledgers` or `partitioned_topics`."""
    return TopicName(domain, namespace, unquote(segment))
