"""Paths of the metadata store. A docstring "Path of X" names the value at the returned path; "Parent of X" means that
the values are below the returned path.

Shared documents have the paths of Apache Pulsar, so that Java brokers and pybroker can use one metadata store. Values for
which Pulsar has no path are below `/pybroker`, which Java brokers ignore.

Segments never contain a slash: names are validated or encoded before.
"""

from __future__ import annotations

import re
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from pybroker.model.names import NamespaceName, TopicName

CLUSTERS = "/admin/clusters"
POLICIES = "/admin/policies"  # Tenants are its children, namespaces their children.
LOCAL_POLICIES = "/admin/local-policies"
TOPIC_POLICIES = "/pybroker/topic-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
RESOURCE_GROUPS = "/admin/resourcegroups"
LEDGERS = "/ledgers"
"""Parent of what bookies and their clients store."""
MANAGED_LEDGERS = "/managed-ledgers"
SCHEMAS = "/pybroker/schemas"  # Java brokers cannot read a topic's schema if another form is below `/schemas`.
RESOURCE_QUOTAS = "/loadbalance/resource-quota"
DEFAULT_RESOURCE_QUOTA = f"{RESOURCE_QUOTAS}/default"  # The ResourceQuota of bundles without their own.
DYNAMIC_CONFIGURATION = "/admin/configuration"
JOURNAL_MARK = "/local-store/journal-end"  # The progress of this directory's ledger store at the last metadata change.
BACKUP_LINEAGE = "/local-store/backup-lineage"  # Identifies the history of this directory; a restore starts a new one.
PRODUCER_NAMES = "/counters/producer-name"  # In an embedded store, its version counts the starts.
PRODUCER_NAME_START = f"{PRODUCER_NAMES}/-"  # In a shared store, each start has a child with the next number.

# Characters that are no part of a path in ZooKeeper, `/`, names of one or two dots, and each `%` that would be decoded.
_ENCODED = re.compile(r"%(?=[0-9A-Fa-f]{2})|/|^\.\.?$|[\x00-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\uffff]")


def cluster(name: str) -> str:
    """Path of a cluster's ClusterData."""
    return f"{CLUSTERS}/{name}"


def failure_domains(cluster_name: str) -> str:
    """Parent of a cluster's failure domains."""
    return f"{CLUSTERS}/{cluster_name}/failureDomain"


def failure_domain(cluster_name: str, name: str) -> str:
    """Path of a FailureDomain of the cluster."""
    return f"{failure_domains(cluster_name)}/{_segment(name)}"


def isolation_policies(cluster_name: str) -> str:
    """Path of the isolation policies of a cluster: one value with all NamespaceIsolationData by policy name."""
    return f"{CLUSTERS}/{cluster_name}/namespaceIsolationPolicies"


def migration(cluster_name: str) -> str:
    """Path of the ClusterPolicies of a cluster, which state whether and where the cluster was migrated."""
    return f"{CLUSTERS}/{cluster_name}/policies"


def tenant(name: str) -> str:
    """Path of a tenant's TenantInfo, and parent of the tenant's namespaces."""
    return f"{POLICIES}/{name}"


def policies(namespace: NamespaceName) -> str:
    """Path of the NamespacePolicies. A namespace exists if this value exists."""
    return f"{POLICIES}/{namespace.tenant}/{namespace.local_name}"


def local_policies(namespace: NamespaceName) -> str:
    """Path of the LocalPolicies. Without this value, the bundles and the migration flag of the NamespacePolicies apply."""
    return f"{LOCAL_POLICIES}/{namespace.tenant}/{namespace.local_name}"


def resource_quotas(namespace: NamespaceName) -> str:
    """Parent of the ResourceQuotas of a namespace's bundles."""
    return f"{RESOURCE_QUOTAS}/{namespace}"


def resource_quota(namespace: NamespaceName, bundle: str) -> str:
    """Path of the ResourceQuota of a bundle."""
    return f"{resource_quotas(namespace)}/{bundle}"


def topic_policies(topic: TopicName) -> str:
    """Path of the TopicPolicies. There is no value if no policies are set for the topic itself."""
    return f"{TOPIC_POLICIES}/{topic.storage_path}"


def schemas(namespace: NamespaceName) -> str:
    """Parent of the schemas of a namespace's topics."""
    return f"{SCHEMAS}/{namespace}"


def schema(topic: TopicName) -> str:
    """Parent of the versions of a topic's schema. All partitions of a topic share the schema, and so do the persistent
    and the non-persistent topic of the same name.
    """
    return f"{SCHEMAS}/{schema_name(topic)}"


def schema_version(schema_path: str, version: int) -> str:
    """Path of one version of a schema. The paths sort by version."""
    return f"{schema_path}/{version:020d}"


def schema_name(topic: TopicName) -> str:
    """Return the name of a topic's schema, `tenant/namespace/encoded-topic`, as in Pulsar."""
    return f"{topic.namespace}/{quote(topic.partitioned_name.local_name, safe='')}"


def java_encoded(name: str) -> str:
    """Encode the name of a topic or cursor as a path segment, as Java's URLEncoder does."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def java_decoded(segment: str) -> str:
    """Return the name that `java_encoded` or `TopicName.storage_path` has encoded."""
    return unquote_plus(segment)


def resource_group(name: str) -> str:
    return f"{RESOURCE_GROUPS}/{_segment(name)}"


def name_of_segment(segment: str) -> str:
    """Return the name of the resource group or failure domain whose path ends in `segment`."""
    return unquote(segment)


def partitioned_topics(namespace: NamespaceName, domain: str) -> str:
    """Parent of the partitioned topics of a namespace and domain."""
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}"


def partitioned_topic(topic: TopicName) -> str:
    """Path of a topic's PartitionedTopicMetadata."""
    return f"{partitioned_topics(topic.namespace, topic.domain)}/{java_encoded(topic.local_name)}"


def partitioned_topic_of_segment(namespace: NamespaceName, domain: str, segment: str) -> TopicName:
    """Return the topic whose path ends in `segment`, a child of `partitioned_topics`."""
    return TopicName(domain, namespace, java_decoded(segment))


def managed_ledgers(namespace: NamespaceName, domain: str) -> str:
    """Parent of the managed ledgers of a namespace and domain: its children are the topics that exist."""
    return f"{MANAGED_LEDGERS}/{namespace}/{domain}"


def managed_ledger(topic: TopicName) -> str:
    """Path of a topic's managed ledger info. When the topic is deleted, this value and all values below it are deleted."""
    return f"{MANAGED_LEDGERS}/{topic.storage_path}"


def cursors(topic: TopicName) -> str:
    """Parent of the durable cursors of a topic."""
    return f"{managed_ledger(topic)}/cursors"


def topic_of_segment(namespace: NamespaceName, domain: str, segment: str) -> TopicName:
    """Return the topic whose path ends in `segment`, a child of `managed_ledgers`."""
    return TopicName(domain, namespace, java_decoded(segment))


def _segment(name: str) -> str:
    """Return `name` with the few characters encoded that a path cannot contain. Pulsar does not encode these names."""
    return _ENCODED.sub(lambda found: quote(found[0], safe="").replace(".", "%2E"), name)
