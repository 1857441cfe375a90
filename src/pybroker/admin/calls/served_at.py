"""Rules that decide which broker of a cluster handles a REST call: any broker, or the owner of the topic or bundle.

A call that reaches another broker is redirected (307) before its handler runs. For a partitioned topic, any broker runs
the handler, which forwards the call to the owner of each partition (`partition_calls.py`).
"""

from __future__ import annotations

from enum import Enum

from pybroker.admin.calls.route_paths import NAMESPACE

_TOPIC_PARAMETERS = "/{tenant}/{namespace}/{topic}"
_BUNDLE = NAMESPACE + "/{bundle}"
_BROKER = "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces"
# Handled with metadata, which all brokers have, or by the owners of all partitions.
_ANYWHERE_BEHIND_TOPIC = (
    "/partitions",
    "/createMissedPartitions",
    "/partitioned-stats",
    "/partitioned-internalStats",
    "/permissions",
    "/terminate/partitions",
)
_EXPLAIN = "/explain"
_ANYWHERE = ("/lookup/", "/admin/v3/console/", "/ws/", "/admin/v2/proxy-stats")
# Calls about one transaction coordinator, one of its transactions, or a sink with transactions at the coordinator.
_COORDINATOR_PARAMETERS = ("{coordinator}", "{most}", "{sink}")
_TRANSACTIONS = "/admin/v3/transactions/"
# Queries about a bundle that metadata suffices for.
_BUNDLE_FACTS = frozenset({_BUNDLE + "/topicHashPositions"})


class ServedAt(Enum):
    """Rule that selects the broker for the calls of a route."""

    ANY = "any broker"
    TOPIC_OWNER = "owner of the topic"
    BUNDLE_OWNER = "owner of the bundle"
    PRESENT_BUNDLE_OWNER = "owner of the bundle, if it has one"
    NAMED_BROKER = "broker of the path"
    EXPLAINED = "owner of the topic, if it answers"
    """The handler redirects the call, or explains here why it cannot."""
    COORDINATOR = "broker that runs the transaction coordinator"


def served_at(method: str, path: str) -> ServedAt:
    """Return the rule for the calls of a route, given its method and path pattern."""
    if path.startswith(_ANYWHERE):
        return ServedAt.ANY
    if path.startswith(_TRANSACTIONS):
        is_one = any(each in path for each in _COORDINATOR_PARAMETERS) or path.endswith("/coordinatorStats")
        return ServedAt.COORDINATOR if is_one else ServedAt.ANY
    head, topic, behind = path.partition(_TOPIC_PARAMETERS)
    if topic:
        is_produce = head.startswith("/topics")
        if behind.endswith(_EXPLAIN):
            return ServedAt.EXPLAINED
        anywhere = not is_produce and behind.startswith(_ANYWHERE_BEHIND_TOPIC)
        return ServedAt.ANY if anywhere else ServedAt.TOPIC_OWNER
    if path == _BUNDLE + "/unload":
        return ServedAt.PRESENT_BUNDLE_OWNER
    if path.startswith(_BUNDLE) and path not in _BUNDLE_FACTS:
        return ServedAt.BUNDLE_OWNER
    return ServedAt.NAMED_BROKER if method == "GET" and path == _BROKER else ServedAt.ANY
