"""Conversion between the schema values of this package and of the binary protocol's client."""

from __future__ import annotations

from pybroker.client.client import TopicSchema
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.schema.schema_data import SchemaType, schema_type_named

_WITHOUT_SCHEMA = ("NONE", "BYTES")


def schema_info(schema: TopicSchema) -> SchemaInfo:
    """Convert a topic's schema from the client's form. The name of an unknown schema type is its number."""
    known = schema.type in SchemaType._value2member_map_
    name = SchemaType(schema.type).name if known else str(schema.type)
    return SchemaInfo(name, schema.data, schema.properties, schema.name)


def topic_schema(info: SchemaInfo, name: str) -> TopicSchema | None:
    """Return the schema that a producer registers; None for plain bytes. `name` replaces a missing schema name."""
    if info.type in _WITHOUT_SCHEMA:
        return None
    return TopicSchema(int(schema_type_named(info.type)), info.data, info.properties, info.name or name)
