"""The subject of a request in its present state, shown beside the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.inspection.common_parameters import consumer_json, key_json
from pybroker.broker.inspection.hashes import HashOfKey, hash_of_key, look_up
from pybroker.broker.snapshots.subscription_snapshot import subscription_snapshot

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase


def subscription_subject(subscription: SubscriptionBase) -> dict[str, Any]:
    snapshot = subscription_snapshot(subscription)
    return {
        "kind": "subscription",
        "type": snapshot.type_name,
        "consumers": snapshot.consumer_count,
        "backlogEntries": snapshot.backlog_entries,
    }


def place_of(subscription: Subscription, key: bytes) -> HashOfKey | None:
    """Return the present consumer of a key; None for types that do not look at keys, and without consumers."""
    key_order = subscription.key_order
    if key_order is None or not subscription.consumers:
        return None
    return look_up(key_order, hash_of_key(key_order, key))


def key_subject(key: bytes, at: HashOfKey | None) -> dict[str, Any]:
    if at is None:
        return {"kind": "key", **key_json(key), "hash": None}
    return {
        "kind": "key",
        **key_json(key),
        "hash": at.sticky_hash,
        "consumer": consumer_json(at.owner),
        "state": at.state,
        "waitingEntries": at.listed,
    }
