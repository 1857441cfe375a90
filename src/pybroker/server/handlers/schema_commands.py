"""GET_SCHEMA and GET_OR_CREATE_SCHEMA, and the schemas of PRODUCER and SUBSCRIBE."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pybroker.broker.topic.topic_schemas import producer_schema_version
from pybroker.errors import BrokerError, IncompatibleSchema, TopicNotFound
from pybroker.metadata import metadata_paths
from pybroker.model.names import TopicName
from pybroker.schema.history import VERSION_SIZE_BYTES, History, version_from_bytes, version_to_bytes
from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.server.handlers.failure_responses import answered
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


def schema_of(request: pb.CommandProducer | pb.CommandSubscribe | pb.CommandGetOrCreateSchema) -> SchemaData | None:
    if not request.HasField("schema"):
        return None
    schema = request.schema
    properties: Iterable[Any] = schema.properties  # mypy infers no type here
    return SchemaData(SchemaType(schema.type), schema.schema_data, {pair.key: pair.value for pair in properties})


async def get_schema(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.getSchema
    reply = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA_RESPONSE)
    response = reply.getSchemaResponse
    response.request_id = request.request_id
    with answered(connection, reply, partial(_refuse, response), request.topic):
        if request.HasField("schema_version") and len(request.schema_version) < VERSION_SIZE_BYTES:
            raise IncompatibleSchema(
                f"the schema version in the request has {len(request.schema_version)} bytes; it must have "
                f"{VERSION_SIZE_BYTES} bytes"
            )
        topic = TopicName.parse(request.topic)
        await connection.broker.broker_context.authorization.require_lookup(topic, connection.principal)
        history = await connection.broker.broker_context.schemas.history(topic)
        version = version_from_bytes(request.schema_version) if request.HasField("schema_version") else None
        found_version, schema = _found(history, version, topic)
        response.schema_version = version_to_bytes(found_version)
        response.schema.CopyFrom(_wire_schema(topic, schema))


def _found(history: History, version: int | None, topic: TopicName) -> tuple[int, SchemaData]:
    """Return the schema with this version (None: the newest) and its version. A deleted schema counts as missing."""
    found = history.latest if version is None else history.version(version)
    if found is not None:
        return found.version, found.schema
    if version is None and history.deleted_version is not None:
        return history.deleted_version, SchemaData(SchemaType.NONE)
    raise TopicNotFound(f"Topic not found or no-schema {topic}")


def _wire_schema(topic: TopicName, schema: SchemaData) -> pb.Schema:
    return pb.Schema(
        name=metadata_paths.schema_name(topic),
        type=pb.Schema.Type.Name(schema.type),
        schema_data=schema.data,
        properties=[{"key": key, "value": value} for key, value in schema.properties.items()],
    )


async def get_or_create_schema(connection: Connection, command: pb.BaseCommand) -> None:
    """Register a schema if the topic does not have it, and send its version."""
    request = command.getOrCreateSchema
    reply = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    response = reply.getOrCreateSchemaResponse
    response.request_id = request.request_id
    with answered(connection, reply, partial(_refuse, response), request.topic):
        name = TopicName.parse(request.topic)
        await connection.broker.broker_context.authorization.require_produce(name, connection.principal)
        topic = await connection.broker.topics.get(name, may_create=False)
        schema = schema_of(request)
        # Messages of plain bytes have no schema version.
        is_plain = schema is None or schema.type is SchemaType.NONE
        response.schema_version = await producer_schema_version(topic, None if is_plain else schema)


def _refuse(response: pb.CommandGetSchemaResponse | pb.CommandGetOrCreateSchemaResponse, error: BrokerError) -> None:
    response.error_code, response.error_message = replies.code_and_text(error)
