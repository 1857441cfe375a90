"""The handler of each command type.

An inline handler runs while the command is decoded, and keeps the order of a client's commands. A task may wait for
storage; responses of tasks can have another order, because requests have ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pybroker.server.handler import Handler
from pybroker.server.handlers import (
    consumer_commands,
    lookup_commands,
    producer_commands,
    schema_commands,
    seek_command,
    session_commands,
    topic_list_commands,
    transaction_commands,
)
from pybroker.waiting.request_holder import ASKING
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.server.connection import Connection

Type = pb.BaseCommand.Type


CommandTable = dict[pb.BaseCommand.Type, Handler["Connection"]]


def command_table() -> CommandTable:
    table = {
        Type.CONNECT: Handler("connect", inline=session_commands.connect),
        Type.AUTH_RESPONSE: Handler("authResponse", inline=session_commands.auth_response),
        Type.PING: Handler("ping", inline=session_commands.ping),
        Type.PONG: Handler("pong", inline=session_commands.pong),
        Type.PARTITIONED_METADATA: Handler("partitionMetadata", task=lookup_commands.partitioned_metadata),
        Type.LOOKUP: Handler("lookupTopic", task=lookup_commands.lookup),
        Type.GET_TOPICS_OF_NAMESPACE: Handler("getTopicsOfNamespace", task=topic_list_commands.get_topics_of_namespace),
        Type.PRODUCER: Handler("producer", task=producer_commands.create_producer),
        Type.CLOSE_PRODUCER: Handler("close_producer", task=producer_commands.close_producer),
        Type.SUBSCRIBE: Handler("subscribe", task=consumer_commands.subscribe),
        Type.CLOSE_CONSUMER: Handler("close_consumer", task=consumer_commands.close_consumer),
        Type.UNSUBSCRIBE: Handler("unsubscribe", task=consumer_commands.unsubscribe),
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: Handler(
            "redeliverUnacknowledgedMessages", inline=consumer_commands.redeliver_unacknowledged
        ),
        Type.GET_LAST_MESSAGE_ID: Handler("getLastMessageId", task=consumer_commands.get_last_message_id),
        Type.CONSUMER_STATS: Handler("consumerStats", inline=consumer_commands.consumer_stats),
        Type.SEEK: Handler("seek", task=seek_command.seek),
        Type.GET_SCHEMA: Handler("getSchema", task=schema_commands.get_schema),
        Type.GET_OR_CREATE_SCHEMA: Handler("getOrCreateSchema", task=schema_commands.get_or_create_schema),
        Type.TC_CLIENT_CONNECT_REQUEST: Handler("tcClientConnectRequest", task=transaction_commands.tc_client_connect),
        Type.NEW_TXN: Handler("newTxn", task=transaction_commands.new_txn),
        Type.ADD_PARTITION_TO_TXN: Handler("addPartitionToTxn", task=transaction_commands.add_partition_to_txn),
        Type.ADD_SUBSCRIPTION_TO_TXN: Handler(
            "addSubscriptionToTxn", task=transaction_commands.add_subscription_to_txn
        ),
        Type.END_TXN: Handler("endTxn", task=transaction_commands.end_txn),
        Type.END_TXN_ON_PARTITION: Handler("endTxnOnPartition", task=transaction_commands.end_txn_on_partition),
        Type.END_TXN_ON_SUBSCRIPTION: Handler(
            "endTxnOnSubscription", task=transaction_commands.end_txn_on_subscription
        ),
        Type.WATCH_TOPIC_LIST: Handler("watchTopicList", task=topic_list_commands.watch_topic_list),
        Type.WATCH_TOPIC_LIST_CLOSE: Handler("watchTopicListClose", task=topic_list_commands.watch_topic_list_close),
    }
    for handler in table.values():
        if not handler.is_inline:
            handler.run = _on_account(handler.run)
    return table


def _on_account(task: Callable[[Connection, pb.BaseCommand], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap a handler so that fair queues assign its waiting time to the connection's role."""

    async def run(connection: Connection, command: pb.BaseCommand) -> None:
        ASKING.set(connection.context.holder(connection))
        await task(connection, command)

    return run
