"""`/admin/v2/persistent/{tenant}/{namespace}/{topic}/...`: reads of single messages and message ids.

Reads move no cursor, and no message counts as delivered.
"""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.existing import existing_topic, require_persistent, while_served
from pybroker.admin.calls.message_id import message_id, message_id_in_batch
from pybroker.admin.calls.partitions import require_not_partitioned
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.route_paths import TOPIC
from pybroker.admin.calls.routing import route
from pybroker.admin.entries.message_view import is_slow_to_view, message_view
from pybroker.broker.context.added_entry_metadata import first_with_index
from pybroker.broker.topic.topic import Topic
from pybroker.errors import AdminError
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, Position

EXAMINED = (
    Query("initialPosition", "start of counting", str, "latest", ("earliest", "latest")),
    Query("messagePosition", "number of the entry, counted from initialPosition; the first is 1", int, 1),
)
INDEX = Query("index", "the index of a message", int, 0)


def routes() -> list[Route]:
    return [
        route("GET", TOPIC + "/subscription/{subscription}/position/{number}", peek),
        route("GET", TOPIC + "/examinemessage", examine, queries=EXAMINED),
        route("GET", TOPIC + "/ledger/{ledger_id}/entry/{entry_id}", get_by_id),
        route("GET", TOPIC + "/lastMessageId", get_last_message_id),
        route("GET", TOPIC + "/messageid/{timestamp}", get_id_by_time),
        route("GET", TOPIC + "/getMessageIdByIndex", get_id_by_index, queries=(INDEX,)),
    ]


async def peek(call: Call) -> Response:
    """Return the n-th unacknowledged entry of the subscription, starting at 1.

    For a missing subscription, entries are counted from the beginning of the topic. (Pulsar creates the subscription,
    which then retains all later entries.)
    """
    subscription_name = call.name("subscription")
    await call.require_consume(call.topic_name(), subscription_name)
    topic = await _single_topic(call, "Peek messages")
    number = call.integer("number")
    if number < 1:
        raise AdminError(412, "The message position must be 1 or more")
    subscription = topic.subscriptions.get(subscription_name)
    state = _nothing_read(topic) if subscription is None else subscription.cursor.state
    if number > state.backlog_entries:
        raise AdminError(404, "Message not found")
    return await _message(call, topic, state.nth_undeleted(number))


async def examine(call: Call) -> Response:
    """Return the n-th entry, counted from the `earliest` or `latest` end of the topic, acknowledged or not."""
    await call.require_consume(call.topic_name(), "")
    topic = await _single_topic(call, "Examine messages")
    number = max(1, call.query_integer("messagePosition", 1))
    count = topic.ledger.ledgers.entry_count
    if not count:
        raise AdminError(412, "Could not examine messages due to the total message is zero")
    if call.query("initialPosition") != "earliest":
        number = count + 1 - number
    if number < 1:
        raise _not_found()
    return await _message(call, topic, _nothing_read(topic).nth_undeleted(min(number, count)))


async def get_by_id(call: Call) -> Response:
    await call.require_consume(call.topic_name(), "")
    topic = await _single_topic(call, "Get message by id")
    return await _message(call, topic, Position(call.integer("ledger_id"), call.integer("entry_id")))


async def get_last_message_id(call: Call) -> Response:
    """Return the id of the last message. The entry id is -1 if there is none."""
    name = call.topic_name()
    await call.require_consume(name, "")
    require_persistent(call, "Get last message id")
    topic = await existing_topic(call)
    with while_served(topic):
        await topic.transactions.ends_known()
        position, batch_index = await topic.last_message()
    if position == EARLIEST:
        position = topic.ledger.last_confirmed
    return json_response(message_id_in_batch(position, name.partition_index, batch_index))


async def get_id_by_time(call: Call) -> Response:
    """Return the id of the first entry that was published at or after `timestamp` (Unix milliseconds). If there is
    none, return the position after the last entry.
    """
    name = call.topic_name()
    await call.require_consume(name, "")
    topic = await _single_topic(call, "Get message id by timestamp")
    publish_time_ms = call.integer("timestamp")
    position = EARLIEST
    if publish_time_ms > 0:
        with while_served(topic):
            position = await topic.ledger.find_by_publish_time(publish_time_ms)
    return json_response(message_id(position, name.partition_index))


async def get_id_by_index(call: Call) -> Response:
    """Return the id of the entry that contains the message with a given index. Requires AppendIndexMetadataInterceptor
    in brokerEntryMetadataInterceptors.
    """
    name = call.topic_name()
    await call.require_consume(name, "")
    added = call.broker.broker_context.added_metadata
    if added is None or not added.index:
        raise AdminError(412, "GetMessageIDByIndex is not allowed when broker entry metadata is disabled")
    topic = await _single_topic(call, "Get message id by index")
    index = call.query_integer("index", 0)
    if index < 0:
        raise AdminError(404, f"Invalid message index: {index}")
    with while_served(topic):
        position = await first_with_index(topic.ledger, index)
    if not topic.ledger.ledgers.has_entry(position):
        raise AdminError(
            404, (f"No message of topic {name} has the index {index}: the message was deleted, or is not published yet")
        )
    return json_response(message_id(position, name.partition_index))


async def _single_topic(call: Call, what: str) -> Topic:
    name: TopicName = call.topic_name()
    require_persistent(call, what)
    require_not_partitioned(call, name)
    return await existing_topic(call)


def _nothing_read(topic: Topic) -> CursorState:
    ledgers = topic.ledger.ledgers
    return CursorState(ledgers, ledgers.previous_position(ledgers.first_position))


async def _message(call: Call, topic: Topic, position: Position) -> Response:
    if not topic.ledger.ledgers.has_entry(position):
        raise _not_found()
    max_bytes = call.config.max_message_size
    await call.share.of_views(2 * max_bytes)  # the entry and its largest uncompressed payload
    with while_served(topic):
        run = await topic.ledger.read_if_there(position, 1, 1)
    if run is None:
        raise _not_found()
    entry = run.payloads[0]
    read_limit = topic.ledger.read_limit
    viewed = partial(
        message_view,
        position,
        entry,
        max_bytes,
        is_aborted=read_limit.is_hidden(position),
        is_uncommitted=not read_limit.readable(position, 1),
    )
    if is_slow_to_view(entry):
        view = await asyncio.to_thread(viewed)
    else:
        view = viewed()
    response = Response(view.body, media_type="application/json")
    response.raw_headers[:0] = [(name.encode("ascii"), value.encode("latin-1")) for name, value in view.headers]
    return response


def _not_found() -> AdminError:
    return AdminError(404, "Message id not found")
