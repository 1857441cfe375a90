"""`.../unacked`: delivered messages that are not acknowledged, in pages."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_with_nulls
from pybroker.admin.calls.existing import while_served
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.route_paths import SUBSCRIPTION
from pybroker.admin.calls.routing import route
from pybroker.admin.inspection.common_parameters import (
    CONSUMER,
    KEY,
    PAGE,
    after_of,
    key_json,
    key_of,
    page_limit,
    single_subscription,
)
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.inspection.hashes import hash_of_key
from pybroker.broker.inspection.pages import Place, cursor_text
from pybroker.broker.inspection.unacked import UnackedMessage, Wanted, unacked_page
from pybroker.errors import AdminError
from pybroker.model.position import Position

_CURSOR = "unacked"
HASH = Query("hash", "hash of the messages' keys; Key_Shared only", int)
MIN_AGE = Query("minAgeMs", "minimum time since delivery, in milliseconds", int, 0)
WITH_PROPERTIES = Query("withProperties", "include message properties", bool)


def routes() -> list[Route]:
    queries = (CONSUMER, *KEY, HASH, MIN_AGE, WITH_PROPERTIES, *PAGE)
    return [route("GET", SUBSCRIPTION + "/unacked", unacked, queries=queries)]


async def unacked(call: Call) -> Response:
    """List delivered, unacknowledged messages by position, each with its consumer, delivery time and delivery count.

    `consumer`, `hash`, `key` (or `keyBase64`) and `minAgeMs` are filters; `withProperties=true` adds message
    properties. A page has `limit` rows (default 100, at most 1,000); `after` is `next` of the previous page. `total`
    counts all matching messages. With the filter `key`, it counts the messages with the hash of the key for Key_Shared;
    for other subscription types, it ignores `key`.

    Exclusive and Failover subscriptions have no delivery counts and only approximate times
    (docs/reference/rest-details.md); their `total` counts entries.
    """
    subscription = await single_subscription(call, "Listing unacknowledged messages")
    limit, key = page_limit(call), key_of(call)
    ledger_id, entry_id, batch_index = after_of(call, _CURSOR, (-1, -1, -1))
    wanted = _wanted(call, subscription, key)
    await call.share.of_views(2 * call.config.max_message_size)
    with while_served(subscription.topic, subscription):
        after = Place(Position(ledger_id, entry_id), batch_index)
        page = await unacked_page(subscription, wanted, key, after, limit)
    now_ms, with_properties = call.runtime.clock.wall_ms(), call.flag("withProperties")
    end = page.after
    return json_with_nulls(
        {
            "messages": [_message(row, now_ms, with_properties=with_properties) for row in page.rows],
            "next": None if end is None else cursor_text(_CURSOR, *end.position, end.batch_index),
            "total": page.total,
        }
    )


def _wanted(call: Call, subscription: Subscription, key: bytes | None) -> Wanted:
    key_order = subscription.key_order
    sticky_hash: int | None = None
    if call.query("hash") is not None:
        sticky_hash = call.query_integer("hash", 0)
        if key_order is None:
            raise AdminError(
                412,
                f"Subscription {subscription.name} is of type {subscription.type_name}: only Key_Shared subscriptions "
                "have hashes",
            )
    delivered_by_ms: int | None = None
    min_age_ms = call.query_integer("minAgeMs", 0)
    if min_age_ms > 0:
        delivered_by_ms = call.runtime.clock.wall_ms() - min_age_ms
    if key is not None and key_order is not None and sticky_hash is None:
        sticky_hash = hash_of_key(key_order, key)
    return Wanted(call.query("consumer"), sticky_hash, delivered_by_ms)


def _message(row: UnackedMessage, now_ms: int, *, with_properties: bool) -> dict[str, Any]:
    entry, message, view = row.entry, row.message, row.view
    position = str(entry.position)
    if message is not None and message.batch_index >= 0:
        position = f"{position}:{message.batch_index}"
    shown: dict[str, Any] = {"messageId": position}
    if message is not None:
        shown |= key_json(message.key)
        if message.is_key_cut:
            shown["keyCut"] = True
    delivered_ms, holder = entry.delivered_ms, entry.consumer
    shown |= {
        "hash": entry.sticky_hash or None,
        "consumer": None if holder is None else holder.name,
        "consumerId": None if holder is None else holder.consumer_id,
        "deliveredAt": delivered_ms,
        "ageMs": None if delivered_ms is None else max(0, now_ms - delivered_ms),
        "deliveryCount": row.delivery_count,
        "size": None if message is None or message.size_bytes < 0 else message.size_bytes,
        "publishTime": None if view is None else view.publish_time_ms,
    }
    if view is not None and view.batch_size > 1:
        shown["batchSize"] = view.batch_size
    if view is not None and view.is_encrypted:
        shown["encrypted"] = True
    if row.problem:
        shown["unreadable"] = row.problem
    if row.held_by is not None:
        shown["heldByTransaction"] = str(row.held_by)
    if with_properties and message is not None:
        shown["properties"] = message.properties
        if message.are_properties_cut:
            shown["propertiesCut"] = True
    return shown
