"""Names of the broker's own topics, and tests for them.

The name alone identifies a system topic, so that a list or a limit needs no lookup. A partition counts like its
partitioned topic. The contents are documented in `broker/policies/change_events.py` and
`broker/maintenance/health_check.py`.
"""

from __future__ import annotations

import re

from pybroker.model.names import PERSISTENT, NamespaceName, TopicName

SYSTEM_NAMESPACE = NamespaceName("pulsar", "system")
CHANGE_EVENTS = "__change_events"
HEALTH_CHECK = "healthcheck"
PENDING_ACK_SUFFIX = "__transaction_pending_ack"
COORDINATOR_ASSIGN = "transaction_coordinator_assign"
TRANSACTION_LOG = "__transaction_log_"
LOG_BESIDE_PULSAR = "__pybroker_transaction_log_"
"""Prefix of the transaction logs in a metadata store that Java brokers share, because the logs of Java coordinators have
Pulsar's name and another format.
"""

BUFFER_SNAPSHOTS = "__transaction_buffer_snapshot"
BUFFER_SNAPSHOT_INDEXES = "__transaction_buffer_snapshot_indexes"

_OF_A_NAMESPACE = frozenset(
    {
        CHANGE_EVENTS,
        BUFFER_SNAPSHOTS,
        "__transaction_buffer_snapshot_segments",
        BUFFER_SNAPSHOT_INDEXES,
    }
)
COMPACTED = frozenset({CHANGE_EVENTS, BUFFER_SNAPSHOTS, BUFFER_SNAPSHOT_INDEXES})
"""Topics of a namespace that brokers compact and read from the beginning. The last message of each key is never deleted."""
_HEARTBEAT = re.compile(r"[^:]+:[0-9]+")  # host:port of a broker: its own namespace in the tenant pulsar


def change_events(namespace: NamespaceName) -> TopicName:
    return TopicName(PERSISTENT, namespace, CHANGE_EVENTS)


def heartbeat_namespace(broker_id: str) -> NamespaceName:
    """Return the namespace of a broker's heartbeat topics. `broker_id` is host:port."""
    return NamespaceName(SYSTEM_NAMESPACE.tenant, broker_id)


def health_check(broker_id: str) -> TopicName:
    """Return the topic of a broker's health check. `broker_id` is host:port."""
    return TopicName(PERSISTENT, heartbeat_namespace(broker_id), HEALTH_CHECK)


def is_heartbeat_namespace(namespace: NamespaceName) -> bool:
    return namespace.tenant == SYSTEM_NAMESPACE.tenant and _HEARTBEAT.fullmatch(namespace.local_name) is not None


def is_transaction_internal(name: TopicName) -> bool:
    """Return whether the topic stores transactions, so that only the broker may create it."""
    if name.local_name.endswith(PENDING_ACK_SUFFIX):
        return True
    return (
        name.is_persistent
        and name.namespace == SYSTEM_NAMESPACE
        and name.local_name.startswith((COORDINATOR_ASSIGN, TRANSACTION_LOG, LOG_BESIDE_PULSAR))
    )


def is_system_topic(name: TopicName) -> bool:
    """Return whether `name` is a system topic, which topic lists omit and limits do not count."""
    if name.namespace == SYSTEM_NAMESPACE or is_heartbeat_namespace(name.namespace):
        return True
    local_name = name.partitioned_name.local_name
    return local_name in _OF_A_NAMESPACE or local_name.endswith(PENDING_ACK_SUFFIX)
