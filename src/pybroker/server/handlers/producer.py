"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.broker.backlog_quota import require_within_quota
from pybroker.broker.producer import Producer
from pybroker.broker.topic import Topic
from pybroker.errors import NotAllowedError, ProducerBusy, ServiceNotReady, SubscriptionNotFound
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


async def create_producer(connection: Connection, command: pb.BaseCommand) -> None:
    """Attach a producer to its topic, making the topic if need be."""
    request = command.producer
    producer_id = request.producer_id
    present = connection.producers.get(producer_id)
    if present is not None:
        _reply(connection, request.request_id, present)  # The client asked before, and did not see the answer.
        return
    if producer_id in connection.producers:
        raise ServiceNotReady(f"producer {producer_id} is already being set up on this connection")
    _require_supported(request)
    name = TopicName.parse(request.topic)
    connection.broker.authorization.require_produce(name, connection.role)
    connection.producers[producer_id] = None
    try:
        producer = await _attach(connection, request, name)
    except BaseException:
        if connection.producers.get(producer_id, producer_id) is None:
            del connection.producers[producer_id]
        raise
    if producer_id not in connection.producers:  # closed, or the connection lost, while the topic was loading
        producer.detach()
        return
    connection.producers[producer_id] = producer
    connection.reopened_producer(producer_id)
    logs.info("producer.created", topic=name, producer=producer.name, connection=connection.address)
    _reply(connection, request.request_id, producer)


def _require_supported(request: pb.CommandProducer) -> None:
    if request.producer_access_mode != pb.ProducerAccessMode.Shared:
        raise NotAllowedError("only the producer access mode Shared is supported yet")
    if request.HasField("schema") and request.schema.type:
        raise NotAllowedError("schemas are not supported yet: produce bytes")
    if request.txn_enabled:
        raise NotAllowedError("transactions are not supported yet")


async def _attach(connection: Connection, request: pb.CommandProducer, name: TopicName) -> Producer:
    broker = connection.broker
    topic = await broker.get_topic(name, may_create=True)
    await require_within_quota(topic)
    if request.initial_subscription_name:
        await _make_initial_subscription(topic, request.initial_subscription_name)
    producer = Producer(
        topic,
        request.producer_id,
        request.producer_name or broker.new_producer_name(),
        request.user_provided_producer_name if request.producer_name else False,
        request.epoch,
        connection,
        {pair.key: pair.value for pair in request.metadata},
        broker.clock.wall_ms(),
        request.encrypted,
    )
    try:
        topic.add_producer(producer)
    except ProducerBusy:
        if not await _holder_is_dead(topic, producer):
            raise
        topic.add_producer(producer)
    return producer


async def _make_initial_subscription(topic: Topic, name: str) -> None:
    """Make sure of a subscription that gets everything from the topic's beginning on, before the first message."""
    try:
        await topic.subscription(
            name, True, topic.policies.auto_subscription_creation.allowAutoSubscriptionCreation, {}
        )
    except SubscriptionNotFound as error:
        raise NotAllowedError(f"Not allowed to create the initial subscription {name}") from error


async def _holder_is_dead(topic: Topic, producer: Producer) -> bool:
    """Whether the producer that holds the name does not answer any more; its connection is closed then."""
    holder = topic.producers.get(producer.name)
    if holder is None or holder.peer is producer.peer:
        return False
    return not await holder.peer.is_alive()


def _reply(connection: Connection, request_id: int, producer: Producer) -> None:
    reply = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
    success = reply.producer_success
    success.request_id = request_id
    success.producer_name = producer.name
    success.last_sequence_id = -1
    success.schema_version = b""
    success.producer_ready = True
    connection.send(replies.frame(reply))


async def close_producer(connection: Connection, command: pb.BaseCommand) -> None:
    """Detach a producer once all it has sent is answered."""
    request = command.close_producer
    producer = connection.producers.get(request.producer_id)
    if producer is not None:
        await producer.drained()
        producer.detach()
    connection.producers.pop(request.producer_id, None)
    connection.send(replies.success(request.request_id))
