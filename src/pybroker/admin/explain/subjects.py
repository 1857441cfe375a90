"""What is asked about, as it stands now: shown beside the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.admin.inspection.asked import consumer_json, key_json
from pybroker.broker.inspection.hashes import hash_of_key
from pybroker.dispatch.key_shared import KeySharedDispatcher

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.dispatch.consumer_state import ConsumerState


def subscription_subject(subscription: SubscriptionBase) -> dict[str, Any]:
    return {
        "kind": "subscription",
        "type": subscription.type_name,
        "consumers": len(subscription.consumers),
        "backlogEntries": subscription.backlog_entries,
    }


class KeyPlace(NamedTuple):
    """Where messages of a key go now. The range around its hash is not looked up: of a thousand consumers that takes long."""

    sticky_hash: int
    owner: ConsumerState | None
    state: str
    listed: int


def place_of(subscription: Subscription, key: bytes) -> KeyPlace | None:
    """That of a key; None where the type looks at no keys, or nobody is connected."""
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, KeySharedDispatcher) or not subscription.consumers:
        return None
    sticky_hash = hash_of_key(dispatcher, key)
    owner = dispatcher.owners.selector.owner(sticky_hash)
    holder = dispatcher.draining.holder(sticky_hash)
    waiting = dispatcher.waiting.waiting.get(sticky_hash)
    if holder is not None and holder is not owner:
        state = "draining"
    elif owner is None:
        state = "unowned"
    else:
        state = "waiting" if waiting is not None or sticky_hash in dispatcher.set_aside else "owned"
    return KeyPlace(sticky_hash, owner, state, 0 if waiting is None else waiting.count)


def key_subject(key: bytes, at: KeyPlace | None) -> dict[str, Any]:
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
