"""`.../ackHoles`: gaps in acknowledgements, and the ledgers that they retain."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_with_nulls
from pybroker.admin.calls.existing import existing_topic, while_served
from pybroker.admin.calls.route_paths import SUBSCRIPTION
from pybroker.admin.calls.routing import route
from pybroker.admin.inspection.common_parameters import LIMIT, page_limit, single_subscription
from pybroker.broker.inspection.ack_holes import Kept, acknowledged_behind, held
from pybroker.errors import DamagedEntries


def routes() -> list[Route]:
    return [route("GET", SUBSCRIPTION + "/ackHoles", ack_holes, queries=(LIMIT,))]


async def ack_holes(call: Call) -> Response:
    """Return the gaps in a subscription's acknowledgements, and why ledgers of the topic are not trimmed.

    The response contains the mark-delete position, the oldest unacknowledged message with its age, and the first
    `limit` acknowledged ranges after the mark-delete position. The object `held` has the number and the
    bytes of the ledgers that this subscription retains (`ledgers`, `bytes`). `reasons` lists the cursors, read leases,
    retention and open transactions that retain ledgers of the topic; a ledger can have several reasons.
    """
    subscription = await single_subscription(call, "Listing gaps in acknowledgements")
    limit = page_limit(call)
    topic = await existing_topic(call)
    clock, cursor = call.runtime.clock, subscription.cursor
    oldest: dict[str, Any] | None = None
    with while_served(topic, subscription):
        try:
            found = await cursor.oldest.look()
        except DamagedEntries as error:
            position = cursor.oldest.position
            found = None
            if position is not None:
                oldest = {"messageId": str(position), "publishTime": None, "ageMs": None, "unreadable": str(error)}
        if found is not None:
            position, publish_time_ms = found
            age_ms = max(0, clock.wall_ms() - publish_time_ms)
            oldest = {"messageId": str(position), "publishTime": publish_time_ms, "ageMs": age_ms}
    ranges, more = acknowledged_behind(subscription, limit)
    kept = await call.look(held(topic, subscription))
    document = {
        "markDeletePosition": str(cursor.mark_delete_position),
        "oldestUnacked": oldest,
        "acknowledgedBehind": [
            {"from": str(each.first), "to": str(each.last), "entries": each.entries} for each in ranges
        ],
        "more": more,
        "held": {
            "ledgers": kept.ledgers,
            "bytes": kept.bytes,
            "reasons": [_reason(each) for each in kept.reasons],
            "moreReasons": kept.more_reasons,
        },
    }
    return json_with_nulls(document)


def _reason(kept: Kept) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": kept.kind, "name": kept.name or None, "ledgers": kept.ledgers, "bytes": kept.bytes}
    shown["firstLedger"] = kept.first_ledger_id if kept.first_ledger_id >= 0 else None
    return shown
