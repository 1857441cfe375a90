"""Where each fact lives in the metadata store.

Segments never hold a slash: names are validated or percent-encoded before.
"""

from __future__ import annotations

from urllib.parse import unquote

from pybroker.model.names import NamespaceName, TopicName

CLUSTERS = "/admin/clusters"
TENANTS = "/admin/tenants"
POLICIES = "/admin/policies"
TOPIC_POLICIES = "/admin/topic-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
MANAGED_LEDGERS = "/managed-ledgers"


def cluster(name: str) -> str:
    """A cluster's ClusterData."""
    return f"{CLUSTERS}/{name}"


def tenant(name: str) -> str:
    """A tenant's TenantInfo."""
    return f"{TENANTS}/{name}"


def tenant_policies(name: str) -> str:
    """The parent of a tenant's namespaces."""
    return f"{POLICIES}/{name}"


def policies(namespace: NamespaceName) -> str:
    """A namespace's NamespacePolicies; a namespace exists as long as this does."""
    return f"{POLICIES}/{namespace.tenant}/{namespace.local_name}"


def topic_policies(topic: TopicName) -> str:
    """A topic's TopicPolicies; missing while nothing is set for it alone."""
    return f"{TOPIC_POLICIES}/{topic.storage_path}"


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
    """The parent of what is kept for each durable cursor of a topic."""
    return f"{managed_ledger(topic)}/cursors"


def topic_of_segment(namespace: NamespaceName, domain: str, segment: str) -> TopicName:
    """The topic whose path ends in `segment`, a child of `managed_ledgers` or `partitioned_topics`."""
    return TopicName(domain, namespace, unquote(segment))
