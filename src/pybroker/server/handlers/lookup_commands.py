"""PARTITIONED_METADATA and LOOKUP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pybroker.errors import AuthorizationError, BrokerError, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.server.handlers.authorization_errors import refused_to
from pybroker.server.handlers.failure_responses import answered
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


async def partitioned_metadata(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.partitionMetadata
    reply = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = reply.partitionMetadataResponse
    response.request_id = request.request_id
    response.response = pb.CommandPartitionedTopicMetadataResponse.Failed  # replaced on success
    with answered(connection, reply, partial(_refuse, response), request.topic):
        topic = TopicName.parse(request.topic)
        await _require_metadata(connection, topic)
        response.partitions = await connection.broker.partitioned_metadata(
            topic, request.metadata_auto_creation_enabled
        )
        response.response = pb.CommandPartitionedTopicMetadataResponse.Success


async def _require_metadata(connection: Connection, topic: TopicName) -> None:
    try:
        with refused_to("Get Partition Metadata"):
            await connection.broker.broker_context.authorization.require_lookup(topic, connection.principal)
    except AuthorizationError:
        if connection.broker.resources.tenant(topic.tenant) is None:
            raise TopicNotFound(f"Tenant or namespace or topic does not exist: {topic.namespace}") from None
        raise


async def lookup(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.lookupTopic
    reply = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE)
    response = reply.lookupTopicResponse
    response.request_id = request.request_id
    response.response = pb.CommandLookupTopicResponse.Failed  # replaced on success
    with answered(connection, reply, partial(_refuse, response), request.topic):
        topic = TopicName.parse(request.topic)
        with refused_to("Lookup"):
            await connection.broker.broker_context.authorization.require_lookup(topic, connection.principal)
        found = await connection.broker.lookup(
            topic,
            request.advertised_listener_name or connection.listener_name,
            is_authoritative=request.authoritative,
            parking=connection.uncounted_request,
        )
        kinds = pb.CommandLookupTopicResponse
        response.response = kinds.Redirect if found.is_redirect else kinds.Connect
        response.authoritative = found.is_authoritative
        if found.addresses.broker_url:
            response.brokerServiceUrl = found.addresses.broker_url
        if found.addresses.broker_url_tls:
            response.brokerServiceUrlTls = found.addresses.broker_url_tls


def _refuse(
    response: pb.CommandPartitionedTopicMetadataResponse | pb.CommandLookupTopicResponse, error: BrokerError
) -> None:
    response.error, response.message = replies.code_and_text(error)
