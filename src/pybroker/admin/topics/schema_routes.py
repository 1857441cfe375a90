"""`/admin/v2/schemas/{tenant}/{namespace}/{topic}/...`: schemas of a topic, which need not exist.

A partition has the schemas of its partitioned topic. A policy that forbids new schema versions applies to clients, not
to these calls.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, empty_ok, json_response
from pybroker.admin.calls.existing_namespaces import existing_namespace
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.broker.topic.topic_schemas import schema_strategy
from pybroker.errors import AdminError, InvalidTopicName
from pybroker.model.names import PERSISTENT, TopicName
from pybroker.schema.history import StoredSchema
from pybroker.schema.key_value_text import key_value_data, key_value_text
from pybroker.schema.schema_data import Incompatible, InvalidSchema, SchemaData, SchemaType, schema_type_named

TOPIC = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_FORCED = -1  # version in the response to a forced deletion
_UNKNOWN = -1


class SchemaBody(msgspec.Struct):
    """A schema in a request."""

    type: str
    schema: str
    properties: dict[str, str] = {}


class SchemaAnswer(msgspec.Struct):
    """One version of a topic's schema."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str]


class Compatibility(msgspec.Struct):
    """Result of a compatibility check, and the strategy that was applied."""

    schemaCompatibilityStrategy: str
    compatibility: bool


def routes() -> list[Route]:
    incompatible = {409: "The schema is incompatible with existing ones", 422: "The schema is invalid"}
    return [
        route("GET", TOPIC + "/schema", get_schema),
        route("POST", TOPIC + "/schema", post_schema, body=SchemaBody, answers=incompatible),
        route("DELETE", TOPIC + "/schema", delete_schema, queries=(Query("force", "restart version numbers", bool),)),
        route("GET", TOPIC + "/schema/{version}", get_version),
        route("GET", TOPIC + "/schemas", get_schemas),
        route("GET", TOPIC + "/metadata", get_metadata),
        route("POST", TOPIC + "/compatibility", check_compatibility, body=SchemaBody),
        route("POST", TOPIC + "/version", find_version, body=SchemaBody),
    ]


# --- queries ---------------------------------------------------------------------------------------------------------


async def get_schema(call: Call) -> Response:
    """Return the newest schema version."""
    topic = await _readable_topic(call)
    return _answer((await call.broker.broker_context.schemas.history(topic)).latest)


async def get_version(call: Call) -> Response:
    """Return one schema version. Versions before the last deletion are not available."""
    topic = await _readable_topic(call)
    return _answer((await call.broker.broker_context.schemas.history(topic)).version(call.integer("version")))


async def get_schemas(call: Call) -> Response:
    """Return all schema versions since the last deletion, oldest first."""
    history = await call.broker.broker_context.schemas.history(await _readable_topic(call))
    return json_response({"getSchemaResponses": [_shown(each) for each in history.versions]})


async def get_metadata(call: Call) -> Response:
    """Return the schema version numbers. Ledger and entry ids are -1, unless schemas are stored in ledgers (BookKeeper)."""
    topic, schemas = await _readable_topic(call), call.broker.broker_context.schemas
    history = await schemas.history(topic)
    if not history.next_version:
        return empty_ok()
    index = [
        {"ledgerId": each.ledger_id, "entryId": each.entry_id, "version": each.version}
        for each in await schemas.positions(topic)
    ] or [{"ledgerId": -1, "entryId": -1, "version": version} for version in range(history.next_version)]
    return json_response({"info": index[-1], "index": index})


async def find_version(call: Call) -> Response:
    """Return the version number of the schema in the body; -1 if the schema is not registered."""
    topic = await _readable_topic(call)
    version = await call.broker.broker_context.schemas.version_of(topic, await _given_schema(call))
    return json_response({"version": _UNKNOWN if version is None else version})


# --- changes ---------------------------------------------------------------------------------------------------------


async def post_schema(call: Call) -> Response:
    """Register the schema in the body, and return its version. An equal schema keeps its version."""
    topic = _topic(call)
    await call.require_produce(topic)
    existing_namespace(call, topic.namespace)
    schema = await _given_schema(call)
    version = await call.broker.broker_context.schemas.register(topic, schema, await _strategy(call, topic))
    return json_response({"version": {"version": version}})


async def delete_schema(call: Call) -> Response:
    """Delete all schema versions. Schemas that are registered later continue the numbering; with `force=true` the
    numbering restarts.
    """
    topic = _topic(call)
    await call.require_topic_admin(topic)
    existing_namespace(call, topic.namespace)
    if call.flag("force"):
        await call.broker.broker_context.schemas.drop(topic.partitioned_name)
        return json_response({"version": _FORCED})
    return json_response({"version": await call.broker.broker_context.schemas.delete(topic)})


async def check_compatibility(call: Call) -> Response:
    """Return whether the schema in the body could be registered. As in Pulsar, an incompatible schema results in status
    500 with the reason.
    """
    topic = _topic(call)
    await call.require_topic_admin(topic)
    existing_namespace(call, topic.namespace)
    schema, strategy = await _given_schema(call), await _strategy(call, topic)
    try:
        await call.broker.broker_context.schemas.check(topic, schema, strategy)
    except (Incompatible, InvalidSchema) as error:
        raise AdminError(500, str(error)) from error
    return Response(msgspec.json.encode(Compatibility(strategy, True)), status_code=202, media_type="application/json")


# --- common parts -------------------------------------------------------------------------------------------------


def _topic(call: Call) -> TopicName:
    names = (call.name(key) for key in ("tenant", "namespace", "topic"))
    try:
        return TopicName.parse(f"{PERSISTENT}://{'/'.join(names)}")
    except InvalidTopicName as error:
        raise AdminError(412, f"Topic name is not valid: {error}") from error


async def _readable_topic(call: Call) -> TopicName:
    topic = _topic(call)
    await call.require_lookup(topic)
    return topic


async def _strategy(call: Call, topic: TopicName) -> str:
    name = topic.partitioned_name
    return schema_strategy(call.runtime, name, await call.broker.policies_in_force.of_topic(name))


async def _given_schema(call: Call) -> SchemaData:
    body = await call.json(SchemaBody, is_content=True)
    schema_type = schema_type_named(body.type)
    data = key_value_data(body.schema) if schema_type is SchemaType.KEY_VALUE else body.schema.encode()
    return SchemaData(schema_type, data, body.properties)


def _answer(found: StoredSchema | None) -> Response:
    if found is None:
        raise AdminError(404, "Schema not found")
    return json_response(_shown(found))


def _shown(stored: StoredSchema) -> SchemaAnswer:
    schema = stored.schema
    text = key_value_text(schema) if schema.type is SchemaType.KEY_VALUE else schema.data.decode(errors="replace")
    return SchemaAnswer(stored.version, schema.type.name, stored.timestamp_ms, text, schema.properties)
