"""`.../delayed` and `.../message/{ledger}/{entry}/delay`: delayed messages and their delivery times."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import BadBody, Call, json_with_nulls, no_content
from pybroker.admin.calls.existing import require_persistent_subscription, while_served
from pybroker.admin.calls.route_paths import SUBSCRIPTION
from pybroker.admin.calls.routing import route
from pybroker.admin.inspection.acting_routes import MESSAGE, on_message
from pybroker.admin.inspection.common_parameters import PAGE, after_of, key_json, page_limit, single_subscription
from pybroker.broker.delivery import single_messages
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.inspection.page_entries import ReadEntry, read_entries
from pybroker.broker.inspection.pages import cursor_text, delayed_positions
from pybroker.errors import AdminError
from pybroker.model.position import Position
from pybroker.wire.entry_metadata import deliver_at_ms
from pybroker.wire.entry_view import MAX_KEY_BYTES, key_of_entry

_CURSOR = "delayed"


class Delay(msgspec.Struct):
    """Delivery time of a message, in Unix milliseconds."""

    deliverAt: int  # noqa: N815


def routes() -> list[Route]:
    return [
        route("GET", SUBSCRIPTION + "/delayed", delayed, queries=PAGE),
        route("PUT", MESSAGE + "/delay", deliver_at, body=Delay),
        route("DELETE", MESSAGE + "/delay", deliver_now),
    ]


async def delayed(call: Call) -> Response:
    """List delayed messages by position, in pages. In the response, `changed` means that an administrator has set the
    delivery time.

    `limit` is the page size; `after` is `next` of the previous page.
    """
    subscription = await single_subscription(call, "Listing delayed messages")
    limit, (ledger_id, entry_id) = page_limit(call), after_of(call, _CURSOR, (-1, -1))
    if subscription.dispatcher is None:
        raise AdminError(
            412,
            f"The delayed messages of subscription {subscription.name} are unknown, because no consumer has connected "
            "since the topic was loaded. "
            "Connect a consumer first",
        )
    if subscription.individual is None:
        raise AdminError(
            412,
            (
                f"Subscription {subscription.name} is of type {subscription.type_name}: only Shared and Key_Shared subscriptions "
                "delay messages"
            ),
        )
    positions = await call.look(delayed_positions(subscription.delayed, Position(ledger_id, entry_id), limit + 1))
    await call.share.of_views(call.config.max_message_size)
    shown: list[dict[str, Any]] = []
    with while_served(subscription.topic, subscription):
        async for read in read_entries(subscription.cursor.ledger, positions[:limit]):
            shown.append(_message(subscription, read))
            if len(shown) % 50 == 0:
                await asyncio.sleep(0)
    end = cursor_text(_CURSOR, *positions[limit - 1]) if len(positions) > limit else None
    document = {"messages": shown, "next": end, "total": subscription.delayed.entry_count}
    return json_with_nulls(document)


def _message(subscription: Subscription, read: ReadEntry) -> dict[str, Any]:
    changed_ms = subscription.delayed.changed_ms(read.position)
    own_ms = 0 if read.payload is None else deliver_at_ms(read.payload)
    shown: dict[str, Any] = {
        "messageId": str(read.position),
        "deliverAt": own_ms if changed_ms is None else changed_ms,
    }
    if changed_ms is not None:
        shown["changed"] = True
    key = None if read.payload is None else key_of_entry(read.payload)
    if key is not None:
        shown |= key_json(key[:MAX_KEY_BYTES])
    if read.problem:
        shown["unreadable"] = read.problem
    return shown


async def deliver_at(call: Call) -> Response:
    """Set the delivery time of a message, to a later or earlier time. A past time means now. The change survives
    restarts.

    412 unless the subscription is Shared or Key_Shared. 409 if the message is acknowledged or delivered. 429 if the
    delivery times of 10,000 messages of the subscription are already changed.
    """
    await require_persistent_subscription(call, "Delaying a message")
    position = Position(call.integer("ledger_id"), call.integer("entry_id"))
    delay = await call.optional_json(Delay)
    if delay is None:
        raise BadBody('the request needs a body {"deliverAt": TIME}, in milliseconds since 1970')

    async def act(subscription: Subscription) -> None:
        await single_messages.deliver_at(subscription, position, delay.deliverAt)

    await on_message(call, "Delaying a message", act)
    return no_content()


async def deliver_now(call: Call) -> Response:
    """Deliver a delayed message now. 409 if it is not delayed."""
    position = Position(call.integer("ledger_id"), call.integer("entry_id"))

    async def act(subscription: Subscription) -> None:
        await single_messages.deliver_now(subscription, position)

    await on_message(call, "Delaying a message", act)
    return no_content()
