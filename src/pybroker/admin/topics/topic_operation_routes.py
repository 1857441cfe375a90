"""Routes of operations on one topic or all its partitions, such as unload, terminate and compact.

Paths: `/admin/v2/{persistent|non-persistent}/{tenant}/{namespace}/{topic}/...`.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, empty_ok, json_response, no_content
from pybroker.admin.calls.existing import (
    existing_any_topic,
    existing_topic,
    on_each_topic,
    require_persistent,
    while_served,
)
from pybroker.admin.calls.existing_namespaces import namespace_of_topics
from pybroker.admin.calls.message_id import MessageId, ResetCursorData, message_id
from pybroker.admin.calls.partition_calls import call_owner, other_owner
from pybroker.admin.calls.partitions import require_not_partitioned, topics_of
from pybroker.admin.calls.queries import WITH_METADATA
from pybroker.admin.calls.route_paths import TOPIC
from pybroker.admin.calls.routing import route
from pybroker.admin.stats.internal_info import backlog_summary, shown_info
from pybroker.admin.stats.internal_stats import shown_stats
from pybroker.broker.topic.topic import Topic
from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST

_NO_OFFLOADER = "No tiered storage is configured, so ledgers cannot be offloaded"


def routes() -> list[Route]:
    return [
        route("PUT", TOPIC + "/unload", unload),
        route("GET", TOPIC + "/internalStats", get_internal_stats, queries=(WITH_METADATA,)),
        route("GET", TOPIC + "/internal-info", get_internal_info),
        route("GET", TOPIC + "/backlog", get_backlog),
        route("PUT", TOPIC + "/backlogSize", get_backlog_size),
        route("POST", TOPIC + "/terminate", terminate),
        route("POST", TOPIC + "/terminate/partitions", terminate_partitions),
        route("POST", TOPIC + "/trim", trim),
        route("DELETE", TOPIC + "/truncate", truncate),
        route("GET", TOPIC + "/compaction", get_compaction),
        route("PUT", TOPIC + "/compaction", compact),
        route("GET", TOPIC + "/offload", get_offload),
        route("PUT", TOPIC + "/offload", offload),
    ]


async def unload(call: Call) -> Response:
    """Close the topic, if it is loaded. Clients reconnect, and unacknowledged messages are redelivered."""
    name = call.topic_name()
    await call.require_topic_admin(name)
    namespace_of_topics(call, name.namespace)
    topics = topics_of(call, name)
    missing = [each for each in topics if not await _unloaded(call, each)]
    # A non-persistent partition exists only while in use, its partitioned topic always.
    if missing and (name.is_persistent or topics == [name]):
        raise TopicNotFound(f"Topic {missing[0]} not found")
    return no_content()


async def _unloaded(call: Call, name: TopicName) -> bool:
    if (owner := await other_owner(call, name)) is not None:
        try:
            await call_owner(call, owner, name)
        except AdminError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True
    topic = call.broker.loaded.get(name)
    if topic is None:
        return await call.broker.directory.exists(name)
    await call.broker.topics.unload(topic)
    return True


# --- queries ---------------------------------------------------------------------------------------------------------


async def get_internal_stats(call: Call) -> Response:
    await call.require_lookup(call.topic_name())
    topic = await existing_any_topic(call)
    return json_response(await shown_stats(topic, with_metadata=call.flag("metadata")))


async def get_internal_info(call: Call) -> Response:
    """Return the stored metadata of the managed ledger; for a partitioned topic, of each partition."""
    name = call.topic_name()
    await call.require_lookup(name)
    require_persistent(call, "Get internal info")
    names = topics_of(call, name)
    if names == [name]:
        return json_response(await shown_info(await existing_topic(call)))
    partitions: dict[str, object] = {}
    for each in names:
        owner = await other_owner(call, each)
        partitions[str(each)] = (
            await shown_info(await existing_topic(call, each)) if owner is None else await call_owner(call, owner, each)
        )
    return json_response({"version": 0, "partitions": partitions})


async def get_backlog(call: Call) -> Response:
    """Return the backlog of each subscription in entries, their sum, and the entries and bytes of each ledger, for old
    tools.
    """
    name = call.topic_name()
    await call.require_lookup(name)
    require_persistent(call, "Get backlog")
    topics = [await existing_topic(call, each) for each in topics_of(call, name)]
    broker_name = urlsplit(call.broker.presence.addresses.resolve(None).broker_url).hostname or ""
    return json_response(backlog_summary(name, topics, broker_name, call.runtime.clock.wall_ms()))


async def get_backlog_size(call: Call) -> Response:
    """Return the size in bytes of all messages after the message in the body."""
    name = call.topic_name()
    await call.require_consume(name, "")
    require_persistent(call, "Get backlog size")
    require_not_partitioned(call, name)
    topic = await existing_topic(call)
    position = (await call.json(ResetCursorData)).position
    with while_served(topic):
        return json_response(await topic.bytes_behind(position))


# --- stored entries --------------------------------------------------------------------------------------------------


async def terminate(call: Call) -> Response:
    """Terminate the topic, which then accepts no more messages. Return the id of the last message."""
    name = call.topic_name()
    await call.require_topic_admin(name)
    if not name.is_persistent:
        raise AdminError(406, "Need to provide a persistent topic name")
    require_not_partitioned(call, name)
    return json_response(await _terminated(call, name))


async def terminate_partitions(call: Call) -> Response:
    """Terminate every partition. Return the id of the last message of each partition."""
    name = call.topic_name()
    await call.require_topic_admin(name)
    names = topics_of(call, name)
    if names == [name]:
        raise AdminError(405, f"Topic {name} is not partitioned: terminate it with POST .../terminate")
    return json_response({str(index): await _terminated(call, each) for index, each in enumerate(names)})


async def _terminated(call: Call, name: TopicName) -> object:
    if (owner := await other_owner(call, name)) is not None:
        return await call_owner(call, owner, name, behind="/terminate")
    topic = await existing_topic(call, name)
    with while_served(topic):
        return message_id(await topic.terminate())


async def trim(call: Call) -> Response:
    """Delete closed ledgers that no cursor, retention, read lease or open transaction retains, without waiting for the
    next maintenance run.
    """
    name = call.topic_name()
    await call.require_topic_admin(name)
    require_persistent(call, "Trim")

    async def act(topic: Topic) -> None:
        await topic.ledger.trim()

    await on_each_topic(call, act)
    return empty_ok()


async def truncate(call: Call) -> Response:
    name = call.topic_name()
    await call.require_topic_admin(name)
    require_persistent(call, "Truncate", 412)
    await on_each_topic(call, Topic.truncate)
    return no_content()


# --- compaction and offload ------------------------------------------------------------------------------------------


class _LongRunning(msgspec.Struct):
    """Status of the last compaction or offload that was requested."""

    status: str
    lastError: str  # noqa: N815  (the JSON property)
    firstUnoffloadedMessage: MessageId | None = None  # noqa: N815


async def get_compaction(call: Call) -> Response:
    name = call.topic_name()
    await call.require_topic_admin(name)
    require_persistent(call, "Compaction")
    compaction = (await existing_topic(call)).compaction
    return json_response(_LongRunning(compaction.status, compaction.last_error))


async def compact(call: Call) -> Response:
    name = call.topic_name()
    await call.require_topic_admin(name)
    require_persistent(call, "Compaction")
    await on_each_topic(call, _compact)
    return no_content()


async def _compact(topic: Topic) -> None:
    if not topic.compaction.start():
        raise AdminError(409, "Compaction already in progress")


async def get_offload(call: Call) -> Response:
    name = call.topic_name()
    await call.require_topic_admin(name)
    require_persistent(call, "Offload")
    topic = await existing_topic(call)
    return json_response(
        _LongRunning("ERROR" if topic.offload_error else "NOT_RUN", topic.offload_error, message_id(EARLIEST))
    )


async def offload(call: Call) -> Response:
    """Start an offload in the background. It fails without tiered storage; the offload status reports the failure."""
    name = call.topic_name()
    await call.require_topic_admin(name)
    require_persistent(call, "Offload")
    if await call.optional_json(ResetCursorData) is None:
        raise AdminError(400, "messageId is null")
    (await existing_topic(call)).offload_error = _NO_OFFLOADER
    return no_content()
