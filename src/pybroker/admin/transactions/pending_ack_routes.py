"""REST routes of transactions on a subscription: pending transaction acks."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.existing import existing_topic, subscription_of
from pybroker.admin.calls.queries import BATCH_INDEX, WITH_LOW_WATER_MARKS
from pybroker.admin.calls.routing import route
from pybroker.admin.transactions.coordinator_routes import BASE, require_enabled, txn_id_of
from pybroker.admin.transactions.views import pending_ack_stats, position_in_pending_ack, transaction_in_pending_ack
from pybroker.broker.topic.topic import Topic
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.model.names import PERSISTENT
from pybroker.model.position import Position

SUBSCRIPTION = "/{tenant}/{namespace}/{topic}/{subscription}"


def routes() -> list[Route]:
    return [
        route("GET", BASE + "/pendingAckStats" + SUBSCRIPTION, get_pending_ack_stats, queries=(WITH_LOW_WATER_MARKS,)),
        route(
            "GET",
            BASE + "/transactionInPendingAckStats" + SUBSCRIPTION + "/{most}/{least}",
            get_transaction_in_pending_ack,
        ),
        route(
            "GET",
            BASE + "/positionStatsInPendingAck" + SUBSCRIPTION + "/{ledger}/{entry}",
            get_position_in_pending_ack,
            queries=(BATCH_INDEX,),
        ),
        route("GET", BASE + "/pendingAckInternalStats" + SUBSCRIPTION, get_pending_ack_internal_stats),
    ]


async def _found(call: Call) -> tuple[Topic, CursorState]:
    name = call.topic_name_of(PERSISTENT)
    await call.require_topic_admin(name)
    require_enabled(call)
    topic = await existing_topic(call, name)
    return topic, subscription_of(topic, call.name("subscription")).cursor.state


async def get_pending_ack_stats(call: Call) -> Response:
    """Return the number of transactions with pending acks. `lowWaterMarks=true` adds the low-water marks of the
    coordinators.
    """
    topic, state = await _found(call)
    return json_response(pending_ack_stats(topic, state.held, with_low_water_marks=call.flag("lowWaterMarks")))


async def get_transaction_in_pending_ack(call: Call) -> Response:
    """Return the position of an open transaction's cumulative acknowledgement; empty if it has none."""
    _, state = await _found(call)
    return json_response(transaction_in_pending_ack(state.held, txn_id_of(call)))


async def get_position_in_pending_ack(call: Call) -> Response:
    """Return whether an entry, or with `batchIndex` one message of its batch, has a pending transaction ack."""
    _, state = await _found(call)
    position = Position(call.integer("ledger"), call.integer("entry"))
    batch_index = None if call.query("batchIndex") is None else call.query_integer("batchIndex", 0)
    return json_response({"state": position_in_pending_ack(state, position, batch_index)})


async def get_pending_ack_internal_stats(call: Call) -> Response:
    """Return an empty document, because pending acks are stored in the cursor, not in a log."""
    await _found(call)
    return json_response({})
