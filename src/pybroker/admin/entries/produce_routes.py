"""`POST /topics/{domain}/{tenant}/{namespace}/{topic}`: publishing over HTTP.

Each message becomes one entry. The response contains, for each message in order, its durable position or its error. An
error of the whole request (names, permissions, body, schema) is a status, and no message is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.existing_namespaces import namespace_of_topics
from pybroker.admin.calls.owner_lookup import looked_up_owner
from pybroker.admin.calls.redirects import base_url
from pybroker.admin.calls.routing import route
from pybroker.admin.entries.rest_message import (
    Encoder,
    PublishResult,
    PublishResults,
    RestMessage,
    RestMessages,
    encoded,
    encoded_key,
    encoder,
    key_value_schema,
    partition_of_key,
    schema_of,
    whole_number,
)
from pybroker.broker.publishing.producer_access import AccessMode
from pybroker.broker.topic.backlog_quota import require_within_quota
from pybroker.broker.topic.internal_producer import EntryPublish
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_schemas import producer_schema_version
from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.errors import (
    AdminError,
    BrokerError,
    PersistenceError,
    ProducerBusy,
    ServiceNotReady,
    TooManyRequests,
    TopicNotFound,
)
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.schema.history import version_from_bytes, version_to_bytes
from pybroker.schema.key_value import split_key_value
from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.wire.entry_builder import build_entry

if TYPE_CHECKING:
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.cluster.ownership.bundle_ownership import Owner

T = TypeVar("T")

OWNER_PROBE_S = 2.0
"""For any answer of the broker that assigns a partition without an owner."""

TOPIC = "/topics/{domain}/{tenant}/{namespace}/{topic}"
MESSAGES_PER_TURN = 64
"""Messages that are prepared between two yields to the event loop."""

MAY_BE_TRIED_AGAIN = 1
REFUSED = 2
"""Error codes of a message."""

DEFAULT_PRODUCER = "RestProducer"
MAX_DELAY_MS = 1 << 62
_PASSING = (PersistenceError, ServiceNotReady, TooManyRequests)

Answer = Position | BrokerError


class RestProduceRoutes:
    """Routes for publishing."""

    def __init__(self) -> None:
        self._turns = count()

    def routes(self) -> list[Route]:
        answers = {
            401: "The role may not produce to the topic",
            404: "The topic does not exist",
            400: "The body is not a valid list of messages",
        }
        return [
            route("POST", TOPIC, self.publish, body=RestMessages, answers=answers),
            route(
                "POST", TOPIC + "/partitions/{partition}", self.publish_to_partition, body=RestMessages, answers=answers
            ),
        ]

    async def publish(self, call: Call) -> Response:
        """Publish messages, and return one result for each. On a partitioned topic, the key selects the partition;
        messages without a key are distributed round robin.
        """
        name = call.topic_name()
        await call.require_produce(name)
        partitioned = call.broker.partitioned.get(name)
        if partitioned is None:
            return await _published(call, lambda _: name)
        turns, partitions = self._turns, partitioned.partitions
        return await _published(
            call,
            lambda message: name.partition(
                partition_of_key(message.key, partitions) if message.key else next(turns) % partitions
            ),
        )

    async def publish_to_partition(self, call: Call) -> Response:
        """Publish messages to one partition, and return one result for each."""
        name = call.topic_name()
        await call.require_produce(name)
        namespace_of_topics(call, name.namespace)
        partition = call.integer("partition")
        partitioned = call.broker.partitioned.get(name)
        if partitioned is None or not 0 <= partition < partitioned.partitions:
            raise TopicNotFound(f"Topic {name} has no partition {partition}")
        return await _published(call, lambda _: name.partition(partition))


async def _published(call: Call, topic_of: Callable[[RestMessage], TopicName]) -> Response:
    namespace_of_topics(call, call.topic_name().namespace)
    request = await call.json(RestMessages, is_content=True)
    limit = call.config.max_http_messages_per_request
    if len(request.messages) > limit:
        raise AdminError(
            413,
            (
                f"The request has too many messages: at most {limit} are allowed in one request "
                "(maxHttpMessagesPerRequest)"
            ),
        )
    names = [topic_of(message) async for message in _in_turns(request.messages)]
    owners = {name: await _other_owner(call, name) for name in dict.fromkeys(names)}
    topics = {name: await _topic(call, name) for name, owner in owners.items() if owner is None}
    making = await _making(call, request, list(topics.values()))
    entries: dict[TopicName, list[bytes]] = {name: [] for name in owners}
    messages: dict[TopicName, list[RestMessage]] = {name: [] for name in owners}
    async for name, message in _in_turns(zip(names, request.messages, strict=True)):
        entries[name].append(making.entry(message, call.runtime.clock.wall_ms()))
        messages[name].append(message)
    results: dict[TopicName, Iterator[PublishResult]] = {}
    versions = [making.shown_version]

    async def publish(name: TopicName, owner: Owner | None) -> None:
        if owner is None:
            answers = await EntryPublish(topics[name], entries[name]).run()
            results[name] = (_result(each, name.partition_index, making.shown_version) for each in answers)
            return
        found = await _published_elsewhere(call, owner, name, msgspec.structs.replace(request, messages=messages[name]))
        results[name] = iter(found.messagePublishResults)
        versions.append(found.schemaVersion)

    async with asyncio.TaskGroup() as group:
        for name, owner in owners.items():
            group.create_task(publish(name, owner))
    return json_response(PublishResults([next(results[name]) async for name in _in_turns(names)], max(versions)))


async def _other_owner(call: Call, name: TopicName) -> Owner | None:
    ownership = call.broker.ownership
    if ownership is None or name == call.topic_name():
        return None
    owner = await looked_up_owner(call, ownership, name, OWNER_PROBE_S)
    return None if owner.kind is OwnerKind.HERE else owner


async def _published_elsewhere(call: Call, owner: Owner, name: TopicName, request: RestMessages) -> PublishResults:
    """Publish messages to a partition at another broker. If that broker rejects the request, each of these messages
    gets the error.
    """
    others = call.broker.other_brokers
    assert others is not None, "a broker with other owners has it"
    base = name.partitioned_name
    path = f"/topics/{base.domain}/{base.namespace}/{quote(base.local_name, safe='')}/partitions/{name.partition_index}"
    body = {member: value for member, value in msgspec.to_builtins(request).items() if value is not None}
    try:
        found = await others.call(base_url(owner.urls, call.scope["scheme"]), "POST", path, body)
        results = msgspec.convert(found, PublishResults)
        if len(results.messagePublishResults) != len(request.messages):
            raise ServiceNotReady(
                f"the broker that owns topic {name} returned {len(results.messagePublishResults)} results for "
                f"{len(request.messages)} messages, so it is unknown which messages are stored: read the end of the topic "
                "before you send the messages again"
            )
        return results
    except (AdminError, ServiceNotReady, msgspec.ValidationError) as error:
        is_passing = isinstance(error, ServiceNotReady) or (
            isinstance(error, AdminError) and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        )
        code = MAY_BE_TRIED_AGAIN if is_passing else REFUSED
        failed = PublishResult(str(name.partition_index), code, 0, str(error))
        return PublishResults([failed] * len(request.messages), 0)


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    for index, item in enumerate(items):
        if index % MESSAGES_PER_TURN == MESSAGES_PER_TURN - 1:
            await asyncio.sleep(0)
        yield item


async def _topic(call: Call, name: TopicName) -> TopicBase:
    """Load a topic for publishing. A missing partition is created; all other topics must exist."""
    is_partition = name.partition_index >= 0 and call.broker.partitioned.get(name.partitioned_name) is not None
    topic = await call.broker.topics.any(name, may_create=is_partition)
    if any(producer.access_mode is not AccessMode.SHARED for producer in topic.producers.values()):
        raise ProducerBusy(f"Cannot publish to topic {name}: a producer has exclusive access to the topic")
    if isinstance(topic, Topic):
        await require_within_quota(topic)
    return topic


async def _making(call: Call, request: RestMessages, topics: Sequence[TopicBase]) -> _Making:
    producer_name = request.producerName or DEFAULT_PRODUCER
    name = call.topic_name()
    if request.schemaVersion is not None and not request.valueSchema:
        stored = (await call.broker.broker_context.schemas.history(name)).version(request.schemaVersion)
        if stored is None:
            raise AdminError(404, f"Topic {name} has no schema version {request.schemaVersion}")
        return _Making(producer_name, stored.schema, version_to_bytes(stored.version))
    schema = schema_of(request.valueSchema)
    if request.keySchema:
        schema = key_value_schema(schema_of(request.keySchema), schema)
    version = b""
    for topic in topics:  # partitions of one topic share its schema
        version = await producer_schema_version(topic, schema if schema.type is not SchemaType.NONE else None)
    return _Making(producer_name, schema, version)


class _Making:
    def __init__(self, producer_name: str, schema: SchemaData, version: bytes) -> None:
        self._producer_name = producer_name
        self._version = version
        self._encode_key: Encoder | None = None
        if schema.type is SchemaType.KEY_VALUE:
            sides = split_key_value(schema)
            self._encode_key, schema = encoder(sides.key), sides.value
        self._encode = encoder(schema)

    @property
    def shown_version(self) -> int:
        return version_from_bytes(self._version) if self._version else 0

    def entry(self, message: RestMessage, now_ms: int) -> bytes:
        sequence_id = whole_number(message.sequenceId, "sequenceId")
        event_time_ms = whole_number(message.eventTime, "eventTime")
        deliver_at_ms = whole_number(message.deliverAt, "deliverAt")
        delay_ms = whole_number(message.deliverAfterMs, "deliverAfterMs")
        key, payload = message.key, encoded(self._encode, message.payload, "payload")
        if self._encode_key is not None:
            key = encoded_key(self._encode_key, key)
        return build_entry(
            self._producer_name,
            sequence_id,
            now_ms,
            payload,
            key=key,
            is_key_encoded=self._encode_key is not None,
            properties=message.properties,
            event_time_ms=event_time_ms,
            deliver_at_ms=deliver_at_ms or (now_ms + min(delay_ms, MAX_DELAY_MS) if delay_ms else 0),
            replicate_to=message.replicationClusters,
            schema_version=self._version,
        )


def _result(answer: Answer, partition: int, version: int) -> PublishResult:
    if isinstance(answer, Position):
        return PublishResult(f"{answer}:{partition}", 0, version)
    code = MAY_BE_TRIED_AGAIN if isinstance(answer, _PASSING) else REFUSED
    return PublishResult(str(partition), code, version, str(answer))
