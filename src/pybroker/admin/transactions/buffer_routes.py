"""REST routes of a topic's transaction buffer, which lists the open transactions with messages on the topic."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.existing import existing_topic
from pybroker.admin.calls.queries import WITH_LOW_WATER_MARKS
from pybroker.admin.calls.routing import route
from pybroker.admin.transactions.coordinator_routes import BASE, require_enabled, txn_id_of
from pybroker.admin.transactions.views import buffer_stats, transaction_in_buffer
from pybroker.broker.topic.topic import Topic
from pybroker.model.names import PERSISTENT

TOPIC = "/{tenant}/{namespace}/{topic}"


def routes() -> list[Route]:
    return [
        route("GET", BASE + "/transactionBufferStats" + TOPIC, get_buffer_stats, queries=(WITH_LOW_WATER_MARKS,)),
        route("GET", BASE + "/transactionInBufferStats" + TOPIC + "/{most}/{least}", get_transaction_in_buffer),
        route("GET", BASE + "/transactionBufferInternalStats" + TOPIC, get_buffer_internal_stats),
    ]


async def _topic(call: Call) -> Topic:
    name = call.topic_name_of(PERSISTENT)
    await call.require_topic_admin(name)
    require_enabled(call)
    return await existing_topic(call, name)


async def get_buffer_stats(call: Call) -> Response:
    """Return the max read position and the number of open transactions. `lowWaterMarks=true` adds the low-water marks
    of the coordinators.
    """
    topic = await _topic(call)
    return json_response(buffer_stats(topic, with_low_water_marks=call.flag("lowWaterMarks")))


async def get_transaction_in_buffer(call: Call) -> Response:
    """Return the position of a transaction's first message on the topic. The position is absent if the transaction is
    not open there.
    """
    topic = await _topic(call)
    return json_response(transaction_in_buffer(topic.transactions.buffer, txn_id_of(call)))


async def get_buffer_internal_stats(call: Call) -> Response:
    """Return only the snapshot type, because snapshots are stored with the topic's cursors, not in a system topic."""
    await _topic(call)
    return json_response({"snapshotType": "Single"})
