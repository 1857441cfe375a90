"""SUBSCRIBE and all other consumer commands except FLOW and ACK."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pybroker.auth.permission import Permission
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.consumer_admission import require_room_for_consumer, require_type_enabled
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.lifecycle.open_topic import on_open_topic
from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
from pybroker.broker.topic.subscription_registry import BEING_DELETED, BEING_MADE
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.broker.topic.topic_schemas import admit_consumer_schema
from pybroker.dispatch.consumer_state import KeySharedOptions
from pybroker.errors import (
    ConsumerAssignError,
    ConsumerBusy,
    MetadataError,
    NotAllowedError,
    ProducerBusy,
    StoreError,
    TopicFenced,
    UnknownError,
)
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, LATEST, Position, from_wire
from pybroker.runtime import logs
from pybroker.schema.schema_data import SchemaType
from pybroker.server.handlers.authorization_errors import refused_to
from pybroker.server.handlers.request_limits import require_short_name, require_small_properties
from pybroker.server.handlers.schema_commands import schema_of
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection

CONSUMER_NOT_FOUND = "Consumer not found"
_SubType = pb.CommandSubscribe.SubType
KIND_OF_SUB_TYPE = {
    _SubType.Exclusive: "Exclusive",
    _SubType.Shared: "Shared",
    _SubType.Failover: "Failover",
    _SubType.Key_Shared: "Key_Shared",
}


async def subscribe(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.subscribe
    async with connection.consumer_set_ups.lock(request.consumer_id):
        await _subscribe(connection, request)


async def _subscribe(connection: Connection, request: pb.CommandSubscribe) -> None:
    consumer_id = request.consumer_id
    present = connection.consumers.get(consumer_id)
    if present is not None:
        connection.send(replies.success(request.request_id))
        return
    _require_supported(connection, request)
    name = TopicName.parse(request.topic)
    consumer = await connection.consumer_set_ups.set_up(consumer_id, _attach(connection, request, name))
    if consumer is None:
        return
    connection.consumers[consumer_id] = consumer
    if not connection.is_writable:
        consumer.set_writable(False)
    if connection.context.is_logged(connection, "consumer.created", str(name)):
        logs.info(
            "consumer.created",
            topic=name,
            subscription=request.subscription,
            consumer=consumer.name,
            connection=connection.address,
        )
    connection.send(replies.success(request.request_id))


def _require_supported(connection: Connection, request: pb.CommandSubscribe) -> None:
    if not request.subscription.strip():
        raise ProducerBusy("Empty subscription name")  # Pulsar's error type
    if request.read_compacted and KIND_OF_SUB_TYPE[request.subType] not in ("Exclusive", "Failover"):
        raise NotAllowedError("readCompacted only allowed on failover or exclusive subscriptions")
    config = connection.runtime.config
    require_short_name(request.subscription, "subscription name")
    require_short_name(request.consumer_name, "consumer name")
    require_small_properties(
        request.metadata, config.max_consumer_metadata_size, "maxConsumerMetadataSize", MetadataError, "consumer"
    )
    require_small_properties(
        request.subscription_properties,
        config.max_subscription_properties_size,
        "maxSubscriptionPropertiesSize",
        NotAllowedError,
        "subscription",
    )
    range_count = len(request.keySharedMeta.hashRanges)
    if range_count > config.max_hash_ranges_per_consumer:
        raise ConsumerAssignError(
            f"{range_count} hash ranges exceed maxHashRangesPerConsumer={config.max_hash_ranges_per_consumer}"
        )


async def _attach(connection: Connection, request: pb.CommandSubscribe, name: TopicName) -> Consumer:
    broker, permission = connection.broker, _permission(connection, request, name)
    await permission.require()
    return await on_open_topic(
        broker.runtime,
        lambda: broker.topics.any(name, may_create=request.force_topic_creation),
        lambda topic: _attach_to(connection, request, topic, permission),
    )


def _permission(connection: Connection, request: pb.CommandSubscribe, name: TopicName) -> Permission:
    authorization = connection.broker.broker_context.authorization

    async def ask() -> None:
        with refused_to("subscribe"):
            await authorization.require_consume(name, request.subscription, connection.principal)

    return authorization.permission(ask)


async def _attach_to(
    connection: Connection, request: pb.CommandSubscribe, topic: TopicBase, permission: Permission
) -> Consumer:
    host = connection.address.rpartition(":")[0]
    topic.admit_subscribe((host, request.consumer_name, request.consumer_id))
    kind = KIND_OF_SUB_TYPE[request.subType]
    # Check before a subscription is created.
    require_type_enabled(topic.shared, kind)
    require_room_for_consumer(topic.shared, topic.subscriptions.values(), connection)
    schema = schema_of(request)
    if schema is not None and schema.type is not SchemaType.AUTO_CONSUME:
        await admit_consumer_schema(topic, schema)
    while True:
        await permission.require()
        async with topic.subscription_lock(request.subscription, BEING_MADE):
            subscription = await _subscription(connection, request, topic)
            if request.replicate_subscription_state and isinstance(subscription, Subscription):
                await subscription.set_replicated(True)
            if not permission.is_current:
                continue  # Permissions changed while this request waited. The question must not hold the lock.
            consumer = _new_consumer(connection, request, subscription, kind)
            try:
                topic.attach(subscription, consumer, kind)
            except ConsumerBusy as error:
                busy = error
            else:
                return consumer
        # Wait without the subscription lock: a lost client may never answer. The subscription may be replaced
        # meanwhile.
        if kind != "Exclusive" or not await subscription.is_blocked_by_the_dead():
            raise busy


def _new_consumer(
    connection: Connection, request: pb.CommandSubscribe, subscription: SubscriptionBase, kind: str
) -> Consumer:
    consumer = Consumer(
        subscription,
        request.consumer_id,
        request.consumer_name,
        request.priority_level,
        max(0, subscription.topic.policies.max_unacked_per_consumer) if kind in ("Shared", "Key_Shared") else 0,
        connection,
        {pair.key: pair.value for pair in request.metadata},
        connection.runtime.clock.wall_ms(),
        _key_shared_options(request.keySharedMeta),
    )
    schema = schema_of(request)
    consumer.takes_any_schema = schema is not None and schema.type is SchemaType.AUTO_CONSUME
    consumer.reads_compacted = request.read_compacted
    if request.HasField("consumer_epoch") and kind in ("Exclusive", "Failover"):
        consumer.epoch = request.consumer_epoch
    return consumer


def _key_shared_options(asked: pb.KeySharedMeta) -> KeySharedOptions:
    if asked.keySharedMode == pb.KeySharedMode.STICKY:
        return KeySharedOptions([(each.start, each.end) for each in asked.hashRanges], asked.allowOutOfOrderDelivery)
    return KeySharedOptions(None, asked.allowOutOfOrderDelivery)


async def _subscription(connection: Connection, request: pb.CommandSubscribe, topic: TopicBase) -> SubscriptionBase:
    properties = {pair.key: pair.value for pair in request.subscription_properties}
    if isinstance(topic, NonPersistentTopic):
        if request.read_compacted:
            raise NotAllowedError("readCompacted only valid on persistent topics")
        return topic.subscription(request.subscription, properties)
    assert isinstance(topic, Topic)
    is_from_earliest = request.initialPosition == pb.CommandSubscribe.InitialPosition.Earliest
    if not request.durable:
        ledgers = topic.ledger.ledgers
        start = LATEST
        if request.HasField("start_message_id"):
            start = from_wire(request.start_message_id.ledgerId, request.start_message_id.entryId)
        if start > ledgers.last_position and is_from_earliest:
            start = EARLIEST
        if request.start_message_rollback_duration_sec:
            since_ms = connection.runtime.clock.wall_ms() - request.start_message_rollback_duration_sec * 1000
            start = await topic.ledger.find_by_publish_time(since_ms)
        # All entries before `start` count as acknowledged.
        is_behind_all = start > ledgers.last_position
        mark_delete = ledgers.last_position if is_behind_all else topic.ledger.position_before(start)
        return topic.registry.non_durable(request.subscription, mark_delete)
    return await topic.registry.durable(
        request.subscription,
        is_from_earliest,
        topic.policies.auto_subscription_creation.allowAutoSubscriptionCreation,
        properties,
    )


async def close_consumer(connection: Connection, command: pb.BaseCommand) -> None:
    """Close a consumer. Its unacknowledged messages are redelivered.

    Runs as a task, as SUBSCRIBE does, so that it cannot overtake an earlier SUBSCRIBE of the same id.
    """
    request = command.close_consumer
    consumer = connection.consumers.pop(request.consumer_id, None)
    if consumer is not None:
        consumer.detach()
    connection.send(replies.success(request.request_id))


def require_consumer(connection: Connection, consumer_id: int) -> Consumer:
    consumer = connection.consumers.get(consumer_id)
    if consumer is None:
        raise MetadataError(CONSUMER_NOT_FOUND)
    return consumer


async def unsubscribe(connection: Connection, command: pb.BaseCommand) -> None:
    """Delete the subscription. If other consumers are attached, the request must set `force`."""
    request = command.unsubscribe
    subscription = require_consumer(connection, request.consumer_id).subscription
    topic = connection.broker.loaded.get(subscription.topic.name)
    if topic is None:
        raise MetadataError(CONSUMER_NOT_FOUND)  # closed with its topic
    try:
        async with topic.subscription_lock(subscription.name, BEING_DELETED):
            # The consumer may have been closed and reattached while this request waited.
            consumer = require_consumer(connection, request.consumer_id)
            if consumer.subscription is not subscription:
                raise MetadataError(CONSUMER_NOT_FOUND)
            if len(subscription.consumers) > 1 and not request.force:
                raise MetadataError("Unconnected or shared consumer attempting to unsubscribe")
            connection.consumers.pop(request.consumer_id, None)
            consumer.detach()
            await topic.delete_subscription(subscription)
    except TopicFenced as error:
        raise MetadataError(CONSUMER_NOT_FOUND) from error
    except StoreError as error:
        # The deletion failed after this consumer was detached. The client handles CLOSE_CONSUMER only after this error.
        connection.send_error("UNSUBSCRIBE", request.request_id, connection.answerable(error), str(topic.name))
        if request.consumer_id not in connection.consumers:
            connection.close_consumer(request.consumer_id)
        return
    connection.send(replies.success(request.request_id))


def redeliver_unacknowledged(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.redeliverUnacknowledgedMessages
    consumer = connection.consumers.get(request.consumer_id)
    if consumer is None:
        return
    positions = [from_wire(each.ledgerId, each.entryId) for each in request.message_ids]
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else -1
    consumer.subscription.redeliver(consumer, positions or None, epoch)


async def get_last_message_id(connection: Connection, command: pb.BaseCommand) -> None:
    """Send the topic's last message id and the subscription's mark-delete position.

    Waits until the state of transactions is recovered. Before that, the max read position could be too low, and a
    reader would stop before committed messages.
    """
    request = command.getLastMessageId
    consumer = require_consumer(connection, request.consumer_id)
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        raise UnknownError("a non-persistent topic stores no messages, so it has no last message id")  # as in Pulsar
    topic = connection.broker.loaded.get(subscription.topic.name)
    assert isinstance(topic, Topic), "the topic is closed and has no consumers; subscribe again"
    await topic.transactions.ends_known()
    last_compacted = await topic.compaction.last_message() if consumer.reads_compacted else None
    last, batch_index = last_compacted or await topic.last_message()
    reply = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    response = reply.getLastMessageIdResponse
    response.request_id = request.request_id
    _fill(response.last_message_id, last)
    if batch_index >= 0:
        response.last_message_id.batch_index = batch_index
    partition = topic.name.partition_index
    if partition >= 0:
        response.last_message_id.partition = partition
    _fill(response.consumer_mark_delete_position, subscription.cursor.mark_delete_position)
    connection.send(replies.frame(reply))


def _fill(message_id: pb.MessageIdData, position: Position) -> None:
    message_id.ledgerId = position.ledger_id & replies.NO_REQUEST_ID
    message_id.entryId = position.entry_id & replies.NO_REQUEST_ID


def consumer_stats(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.consumerStats
    reply = pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS_RESPONSE)
    response = reply.consumerStatsResponse
    response.request_id = request.request_id
    consumer = connection.consumers.get(request.consumer_id)
    if consumer is None:
        response.error_code = pb.ServerError.ConsumerNotFound
        response.error_message = f"Consumer {request.consumer_id} not found"
    else:
        state = consumer.state
        response.consumerName = consumer.name
        response.availablePermits = max(0, state.permits)
        response.unackedMessages = state.unacked_messages
        response.blockedConsumerOnUnackedMsgs = state.blocked
        response.address = connection.address
        response.connectedSince = datetime.fromtimestamp(consumer.connected_since_ms / 1000, UTC).isoformat()
        response.type = consumer.subscription.type_name
        response.msgBacklog = consumer.subscription.backlog_entries
        if connection.broker.consumer_rates is not None:
            rates = connection.broker.consumer_rates(consumer)
            response.msgRateOut = rates.messages_out.per_second
            response.msgThroughputOut = rates.bytes_out.per_second
            response.msgRateRedeliver = rates.redelivered_messages.per_second
            response.messageAckRate = rates.acked_messages.per_second
            response.msgRateExpired = rates.expired_entries.per_second
    connection.send(replies.frame(reply))
