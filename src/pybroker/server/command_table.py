"""Which handler serves which command, and whether it runs at once or as a task.

Inline handlers keep the order in which a client sent its commands; the others may wait for storage, and answer in any order, as
requests with ids may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.server.handler import Handler
from pybroker.server.handlers import consumer, lookup, producer, schema, seek, session, topic_list, transactions
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.server.connection import Connection

Type = pb.BaseCommand.Type


CommandTable = dict[pb.BaseCommand.Type, Handler["Connection"]]


def command_table() -> CommandTable:
    """The table that all connections use."""
    return {
        Type.CONNECT: Handler("connect", inline=session.connect),
        Type.AUTH_RESPONSE: Handler("authResponse", inline=session.auth_response),
        Type.PING: Handler("ping", inline=session.ping),
        Type.PONG: Handler("pong", inline=session.pong),
        Type.PARTITIONED_METADATA: Handler("partitionMetadata", task=lookup.partitioned_metadata),
        Type.LOOKUP: Handler("lookupTopic", task=lookup.lookup),
        Type.GET_TOPICS_OF_NAMESPACE: Handler("getTopicsOfNamespace", task=topic_list.get_topics_of_namespace),
        Type.PRODUCER: Handler("producer", task=producer.create_producer),
        Type.CLOSE_PRODUCER: Handler("close_producer", task=producer.close_producer),
        Type.SUBSCRIBE: Handler("subscribe", task=consumer.subscribe),
        Type.CLOSE_CONSUMER: Handler("close_consumer", task=consumer.close_consumer),
        Type.UNSUBSCRIBE: Handler("unsubscribe", task=consumer.unsubscribe),
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: Handler(
            "redeliverUnacknowledgedMessages", inline=consumer.redeliver_unacknowledged
        ),
        Type.GET_LAST_MESSAGE_ID: Handler("getLastMessageId", task=consumer.get_last_message_id),
        Type.CONSUMER_STATS: Handler("consumerStats", inline=consumer.consumer_stats),
        Type.SEEK: Handler("seek", task=seek.seek),
        Type.GET_SCHEMA: Handler("getSchema", task=schema.get_schema),
        Type.GET_OR_CREATE_SCHEMA: Handler("getOrCreateSchema", task=schema.get_or_create_schema),
        Type.TC_CLIENT_CONNECT_REQUEST: Handler("tcClientConnectRequest", task=transactions.tc_client_connect),
        Type.NEW_TXN: Handler("newTxn", task=transactions.new_txn),
        Type.ADD_PARTITION_TO_TXN: Handler("addPartitionToTxn", task=transactions.add_partition_to_txn),
        Type.ADD_SUBSCRIPTION_TO_TXN: Handler("addSubscriptionToTxn", task=transactions.add_subscription_to_txn),
        Type.END_TXN: Handler("endTxn", task=transactions.end_txn),
        Type.END_TXN_ON_PARTITION: Handler("endTxnOnPartition", task=transactions.end_txn_on_partition),
        Type.END_TXN_ON_SUBSCRIPTION: Handler("endTxnOnSubscription", task=transactions.end_txn_on_subscription),
        Type.WATCH_TOPIC_LIST: Handler("watchTopicList", task=topic_list.watch_topic_list),
        Type.WATCH_TOPIC_LIST_CLOSE: Handler("watchTopicListClose", inline=topic_list.watch_topic_list_close),
    }
