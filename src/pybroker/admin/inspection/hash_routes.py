"""`.../hash`, `.../drainingHashes`, `.../waiting`: keys and hashes of Key_Shared subscriptions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_with_nulls
from pybroker.admin.calls.existing import while_served
from pybroker.admin.calls.route_paths import SUBSCRIPTION
from pybroker.admin.calls.routing import route
from pybroker.admin.inspection.common_parameters import (
    KEY,
    PAGE,
    after_of,
    consumer_json,
    key_json,
    key_order_of,
    page_limit,
    required_key,
    single_subscription,
)
from pybroker.broker.inspection import hashes
from pybroker.broker.inspection.page_entries import read_entries
from pybroker.broker.inspection.pages import cursor_text
from pybroker.model.position import Position
from pybroker.runtime.time_slices import in_slices
from pybroker.wire.entry_metadata import sticky_key
from pybroker.wire.entry_view import entry_view, is_slow_to_open

if TYPE_CHECKING:
    from collections.abc import Generator

    from pybroker.broker.delivery.subscription import Subscription

_DRAINING, _WAITING = "draining", "waiting"
MAX_KEYS_SHOWN = 10
"""Maximum number of keys shown per hash."""
QUICK_BYTES = 64 * 1024


def routes() -> list[Route]:
    return [
        route("GET", SUBSCRIPTION + "/hash", hash_of, queries=KEY),
        route("GET", SUBSCRIPTION + "/drainingHashes", draining_hashes, queries=PAGE),
        route("GET", SUBSCRIPTION + "/waiting", waiting, queries=PAGE),
    ]


async def hash_of(call: Call) -> Response:
    """Return the hash of a key, with its hash range, consumer and state.

    The key is `key` as text, or `keyBase64`. `state` is `draining` while the previous consumer has unacknowledged
    messages of the hash, `waiting` while messages wait for the consumer, `unowned` without a consumer, and otherwise
    `owned`.
    """
    subscription = await single_subscription(call, "Looking up a hash")
    key = required_key(call)
    key_order = key_order_of(subscription, "hashes")
    at = hashes.look_up(key_order, hashes.hash_of_key(key_order, key))
    document: dict[str, Any] = {
        **key_json(key),
        "hash": at.sticky_hash,
        "range": hashes.range_around(key_order, at),
        "consumer": consumer_json(at.owner),
        "state": at.state,
    }
    draining = at.draining
    if draining is not None:
        document["draining"] = {
            "oldConsumer": consumer_json(draining.consumer),
            "since": draining.since_ms,
            "unackedMessages": draining.unacked_messages,
            "blockedAttempts": draining.blocked_attempts,
        }
    if at.listed or at.parked_from is not None:
        document["waiting"] = at.listed
        document["waitingSince"] = at.waits_since_ms
        if at.parked_from is not None:
            document["setAsideFrom"] = str(at.parked_from)
    return json_with_nulls(document)


async def draining_hashes(call: Call) -> Response:
    """List draining hashes, each with its keys, the previous and the next consumer, the start time, and the first
    messages that the previous consumer must acknowledge.
    """
    subscription = await single_subscription(call, "Listing draining hashes")
    limit, (after,) = page_limit(call), after_of(call, _DRAINING, (-1,))
    key_order = key_order_of(subscription, "draining hashes")
    rows, total = await call.look(hashes.draining_page(key_order, after, limit))
    await call.share.of_views(2 * call.config.max_message_size)
    with while_served(subscription.topic, subscription):
        keys = await _keys(subscription, [position for row in rows for position in row.positions])
    shown = await in_slices(_draining_rows(rows, keys), call.runtime.clock)
    end = cursor_text(_DRAINING, rows[-1].sticky_hash) if len(rows) >= limit else None
    return json_with_nulls({"hashes": shown, "next": end, "total": total})


def _draining_rows(
    rows: list[hashes.DrainingRow], keys: dict[Position, list[bytes]]
) -> Generator[None, None, list[dict[str, Any]]]:
    shown = []
    for row in rows:
        shown.append(_draining(row, keys))
        yield
    return shown


def _draining(row: hashes.DrainingRow, keys: dict[Position, list[bytes]]) -> dict[str, Any]:
    distinct = list(dict.fromkeys(key for position in row.positions for key in keys.get(position, ())))
    texts = [key_json(key) for key in distinct[:MAX_KEYS_SHOWN]]
    shown: dict[str, Any] = {
        "hash": row.sticky_hash,
        "keys": [text["key"] for text in texts if "key" in text],
        "oldConsumer": consumer_json(row.draining.consumer),
        "newConsumer": consumer_json(row.new_owner),
        "since": row.draining.since_ms,
        "unackedMessages": row.draining.unacked_messages,
        "messageIds": [str(position) for position in row.positions],
        "blockedAttempts": row.draining.blocked_attempts,
    }
    binary = [text["keyBase64"] for text in texts if "keyBase64" in text]
    if binary:
        shown["keysBase64"] = binary
    return shown


async def _keys(subscription: Subscription, positions: list[Position]) -> dict[Position, list[bytes]]:
    """Return the keys of each entry; for a batch, the different keys of its messages."""
    config = subscription.runtime.config
    found: dict[Position, list[bytes]] = {}
    count = 0
    async for read in read_entries(subscription.cursor.ledger, sorted(positions)):
        if read.payload is None:
            continue
        count += 1
        if count % 20 == 0:
            await asyncio.sleep(0)
        if is_slow_to_open(read.payload, QUICK_BYTES):
            found[read.position] = [sticky_key(read.payload)]  # a producer that batches by key uses one key
            continue
        view = entry_view(read.payload, None, config.max_message_size)
        keys = [message.key for message in view.messages if message.key is not None]
        found[read.position] = keys or [sticky_key(read.payload)]
    return found


async def waiting(call: Call) -> Response:
    """List hashes with waiting messages, each with its consumer, the number of waiting messages, and the start of the
    wait.
    """
    subscription = await single_subscription(call, "Listing waiting hashes")
    limit, (after,) = page_limit(call), after_of(call, _WAITING, (-1,))
    key_order = key_order_of(subscription, "waiting hashes")
    rows, total = await call.look(hashes.waiting_page(key_order, after, limit))
    look_ahead = key_order.look_ahead(0)
    return json_with_nulls(
        {
            "entries": look_ahead.entries,
            "hashesSetAside": look_ahead.parked_hashes,
            "sizeBytes": look_ahead.size_bytes,
            "maxSizeBytes": look_ahead.max_size_bytes,
            "isFull": look_ahead.is_full,
            "hashes": [_waiting(row) for row in rows],
            "next": cursor_text(_WAITING, rows[-1].at.sticky_hash) if len(rows) >= limit else None,
            "total": total,
        }
    )


def _waiting(row: hashes.WaitingRow) -> dict[str, Any]:
    at = row.at
    return {
        "hash": at.sticky_hash,
        "reason": at.state if at.state != "owned" else "waiting",
        "consumer": consumer_json(at.owner),
        "because": consumer_json(row.filler),
        "entries": at.listed,
        "since": at.waits_since_ms,
        "setAsideFrom": None if at.parked_from is None else str(at.parked_from),
    }
