"""REST routes that create, extend and delete partitioned topics.

Paths: `/admin/v2/{persistent|non-persistent}/.../{topic}/partitions`.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing_namespaces import existing_namespace, namespace_of_topics
from pybroker.admin.calls.queries import FORCE, WITH_SYSTEM_TOPICS, Query
from pybroker.admin.calls.route_paths import TOPIC, TOPICS
from pybroker.admin.calls.routing import route
from pybroker.admin.topics.topic_routes import creatable_topic
from pybroker.errors import AdminError, NotAllowedError
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.model.system_topics import is_system_topic

WITH_PROPERTIES = "application/vnd.partitioned-topic-metadata+json"
MAX_PARTITIONS = 10_000
"""Limit of one request, in addition to `maxNumPartitionsPerPartitionedTopic`."""


MAY_CREATE = Query("checkAllowAutoCreation", "create the topic if it is missing and may be created", bool)


class PartitionedTopicRequest(msgspec.Struct):
    """Body of a request to create a partitioned topic with properties."""

    partitions: int
    properties: dict[str, str] = {}
    deleted: bool = False


def routes() -> list[Route]:
    return [
        route("GET", TOPICS + "/partitioned", list_partitioned_topics, queries=(WITH_SYSTEM_TOPICS,)),
        route("GET", TOPIC + "/partitions", get_partitions, queries=(MAY_CREATE,)),
        route("PUT", TOPIC + "/partitions", create_partitioned_topic),
        route("POST", TOPIC + "/partitions", update_partitions),
        route("DELETE", TOPIC + "/partitions", delete_partitioned_topic, queries=(FORCE,)),
        route("POST", TOPIC + "/createMissedPartitions", create_missed_partitions),
    ]


async def list_partitioned_topics(call: Call) -> Response:
    domain, namespace = call.domain(), call.namespace_name()
    await call.require_list_topics(namespace)
    existing_namespace(call, namespace)
    shows_system = call.flag("includeSystemTopic")
    names = call.broker.partitioned.names(namespace, domain)
    return json_response([str(name) for name in names if shows_system or not is_system_topic(name)])


async def get_partitions(call: Call) -> Response:
    """Return the number of partitions; 0 for a topic without partitions. With `checkAllowAutoCreation=true`, which
    clients send before a lookup, a missing topic is created if automatic creation makes it partitioned.
    """
    name = call.topic_name()
    await call.require_lookup(name)
    partitions = await call.broker.partitioned_metadata(name, create=call.flag("checkAllowAutoCreation"))
    return json_response(call.broker.partitioned.get(name) or PartitionedTopicMetadata(partitions))


async def create_partitioned_topic(call: Call) -> Response:
    name = await creatable_topic(call)
    media_type = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == WITH_PROPERTIES:
        asked = await call.json(PartitionedTopicRequest)
    else:
        asked = PartitionedTopicRequest(await call.json(int))
    if "-partition-" in name.local_name:
        raise AdminError(412, "Partitioned Topic Name should not contain '-partition-'")
    _require_sane(call, asked.partitions)
    try:
        await call.broker.partitioned_operations.create(name, asked.partitions, asked.properties)
    except NotAllowedError as error:
        raise AdminError(412, str(error)) from error
    return no_content()


async def update_partitions(call: Call) -> Response:
    """Increase the number of partitions. New partitions get the subscriptions of partition 0, starting at their first
    message. Clients discover new partitions periodically.
    """
    name = call.topic_name()
    await call.require_namespace_admin(name.namespace)
    namespace_of_topics(call, name.namespace)
    partitions = await call.json(int)
    if call.broker.partitioned.get(name) is not None and partitions > 0:
        _require_sane(call, partitions)
    try:
        await call.broker.partitioned_operations.update(name, partitions)
    except NotAllowedError as error:
        raise AdminError(412, str(error)) from error
    return no_content()


async def delete_partitioned_topic(call: Call) -> Response:
    name = call.topic_name()
    await call.require_namespace_admin(name.namespace)
    if call.broker.partitioned.get(name) is None and await call.broker.directory.exists(name):
        raise AdminError(
            409,
            f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic please call delete.",
        )
    await call.broker.partitioned_operations.delete(name, force=call.flag("force"))
    return no_content()


async def create_missed_partitions(call: Call) -> Response:
    name = call.topic_name()
    await call.require_namespace_admin(name.namespace)
    try:
        await call.broker.partitioned_operations.create_missing(name)
    except NotAllowedError as error:
        raise AdminError(412, str(error)) from error
    return no_content()


def _require_sane(call: Call, partitions: int) -> None:
    if partitions <= 0:
        raise AdminError(406, "Number of partitions should be more than 0")
    configured = call.config.max_num_partitions_per_partitioned_topic
    limit = min(configured, MAX_PARTITIONS) if configured > 0 else MAX_PARTITIONS
    if partitions > limit:
        raise AdminError(406, f"Number of partitions should be less than or equal to {limit}")
