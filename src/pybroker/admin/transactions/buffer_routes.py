"""Transactions at a topic: messages that wait for the end of their transaction."""

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
    """Return the topic of the path, loaded, for callers that may administer its namespace; 404 if it does not exist."""
    name = call.topic_name_of(PERSISTENT)
    call.require_topic_admin(name)
    require_enabled(call)
    return await existing_topic(call, name)


async def get_buffer_stats(call: Call) -> Response:
    """How far readers may read, and how many transactions hold them back; `lowWaterMarks=true` adds those of coordinators."""
    topic = await _topic(call)
    return json_response(buffer_stats(topic, with_low_water_marks=call.flag("lowWaterMarks")))


async def get_transaction_in_buffer(call: Call) -> Response:
    """Where the first message of an open transaction stands."""
    topic = await _topic(call)
    return json_response(transaction_in_buffer(topic.transactions.buffer, txn_id_of(call)))


async def get_buffer_internal_stats(call: Call) -> Response:
    """Only its type: snapshots are no topic here, they stand with the topic's cursors."""
    await _topic(call)
    return json_response({"snapshotType": "Single"})
