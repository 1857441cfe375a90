"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.auth.permission import Permission
from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.producer_access import AccessMode
from pybroker.broker.publishing.producer_registry import LARGEST_EPOCH
from pybroker.broker.topic.backlog_quota import require_within_quota
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.broker.topic.topic_schemas import producer_schema_version
from pybroker.errors import (
    AuthorizationError,
    BrokerError,
    MetadataError,
    NotAllowedError,
    ServiceNotReady,
    StoreError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pybroker.model.names import TopicName
from pybroker.runtime import logs
from pybroker.server.handlers.authorization_errors import refused_to
from pybroker.server.handlers.request_limits import require_short_name, require_small_properties
from pybroker.server.handlers.schema_commands import schema_of
from pybroker.server.open_producer import OpenProducer, producer_success
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


async def create_producer(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.producer
    async with connection.producer_set_ups.lock(request.producer_id):
        await _create_producer(connection, request)


async def _create_producer(connection: Connection, request: pb.CommandProducer) -> None:
    producer_id = request.producer_id
    present = connection.producers.get(producer_id)
    if present is not None:
        connection.send(producer_success(request.request_id, present))  # a retry whose first answer was lost
        return
    if producer_id in connection.waiting_producers:
        raise ServiceNotReady(f"a producer with id {producer_id} already waits for exclusive access on this connection")
    _require_supported(connection, request)
    name = TopicName.parse(request.topic)
    try:
        opened = await connection.producer_set_ups.set_up(producer_id, _attach(connection, request, name))
    except (BrokerError, StoreError) as error:
        _note_refusal(connection, request, name, error)
        raise
    if opened is not None:
        _tell(connection, request, opened)


def _note_refusal(
    connection: Connection, request: pb.CommandProducer, name: TopicName, error: BrokerError | StoreError
) -> None:
    """Record the error for `explain`, which may run after the client has disconnected."""
    broker = connection.broker
    if isinstance(error, (TopicNotFound, AuthorizationError)) and broker.loaded.get(name) is None:
        return  # unknown topics are unlimited and would displace real ones
    told = error if isinstance(error, BrokerError) else error.answer()
    now_ms = broker.runtime.clock.wall_ms()
    broker.broker_context.refusals.note(str(name), request.producer_name, connection.address, told, now_ms)


def _tell(connection: Connection, request: pb.CommandProducer, opened: OpenProducer) -> None:
    producer = opened.producer
    if producer.is_waiting:
        connection.waiting_producers[request.producer_id] = opened
        logs.info("producer.waiting", topic=opened.topic.name, producer=producer.name, connection=connection.address)
        connection.send(producer_success(request.request_id, opened))
    else:
        connection.tell_ready(opened)


def _require_supported(connection: Connection, request: pb.CommandProducer) -> None:
    if request.topic_epoch > LARGEST_EPOCH:
        raise NotAllowedError(f"topic epoch {request.topic_epoch} is negative: epochs start at 0")
    require_short_name(request.producer_name, "producer name")
    require_short_name(request.initial_subscription_name, "initial subscription name")
    limit = connection.runtime.config.max_producer_metadata_size
    require_small_properties(request.metadata, limit, "maxProducerMetadataSize", MetadataError, "producer")


def _permission(connection: Connection, request: pb.CommandProducer, name: TopicName) -> Permission:
    authorization = connection.broker.broker_context.authorization

    async def ask() -> None:
        with refused_to("Produce"):
            await authorization.require_produce(name, connection.principal)
            if request.initial_subscription_name:
                await authorization.require_consume(name, request.initial_subscription_name, connection.principal)

    return authorization.permission(ask)


async def _attach(connection: Connection, request: pb.CommandProducer, name: TopicName) -> OpenProducer:
    broker, permission = connection.broker, _permission(connection, request, name)
    await permission.require()
    return await on_open_topic(
        broker.runtime,
        lambda: broker.topics.any(name, may_create=True),
        lambda topic: _attach_to(topic, connection, request, permission),
    )


async def _attach_to(
    topic: TopicBase, connection: Connection, request: pb.CommandProducer, permission: Permission
) -> OpenProducer:
    broker = connection.broker
    if isinstance(topic, Topic):  # other topics do not store subscriptions
        await require_within_quota(topic)
    schema_version = await producer_schema_version(topic, schema_of(request))
    if request.initial_subscription_name and isinstance(topic, Topic):
        # The permission may have been revoked while the topic was loading.
        await permission.require()
        await _make_initial_subscription(topic, request.initial_subscription_name)
    producer = Producer(
        topic.producer_registry.remove,
        request.producer_id,
        request.producer_name or broker.broker_context.producer_names.new(),
        request.user_provided_producer_name if request.producer_name else False,
        request.epoch,
        connection,
        {pair.key: pair.value for pair in request.metadata},
        broker.runtime.clock.wall_ms(),
        request.encrypted,
        AccessMode(pb.ProducerAccessMode.Name(request.producer_access_mode)),
        request.topic_epoch if request.HasField("topic_epoch") else None,
        request.request_id,
    )
    producer.schema_version = schema_version
    producer.permission = permission
    await topic.producer_registry.enter(producer)
    try:
        await topic.settled(producer.name)
    except BaseException:
        producer.detach()
        raise
    if producer.is_closed:
        raise producer.refusal or ServiceNotReady(
            f"producer {producer.name} was closed while its topic was being loaded; create the producer again"
        )
    return OpenProducer(topic, producer)


async def _make_initial_subscription(topic: Topic, name: str) -> None:
    try:
        await topic.subscription(
            name, True, topic.policies.auto_subscription_creation.allowAutoSubscriptionCreation, {}
        )
    except SubscriptionNotFound as error:
        raise NotAllowedError(f"Not allowed to create the initial subscription {name}") from error


async def close_producer(connection: Connection, command: pb.BaseCommand) -> None:
    """Close a producer after all its sends are answered."""
    request = command.close_producer
    opened = connection.producers.get(request.producer_id)
    if opened is not None:
        await opened.producer.drained()
        opened.detach()
    waiting = connection.waiting_producers.pop(request.producer_id, None)
    if waiting is not None:
        waiting.detach()
    connection.producers.pop(request.producer_id, None)
    connection.send(replies.success(request.request_id))
