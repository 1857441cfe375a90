"""Schemas as tables know them, and as the client of the binary protocol carries them."""

from __future__ import annotations

from pybroker.client.client import TopicSchema
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.schema.schema_data import SchemaType, schema_type_named

_WITHOUT_SCHEMA = ("NONE", "BYTES")


def schema_info(schema: TopicSchema) -> SchemaInfo:
    """A topic's schema by the name of its type; one of a newer protocol has its number as name."""
    known = schema.type in SchemaType._value2member_map_
    name = SchemaType(schema.type).name if known else str(schema.type)
    return SchemaInfo(name, schema.data, schema.properties, schema.name)


def topic_schema(info: SchemaInfo, name: str) -> TopicSchema | None:
    """What a producer registers; None for plain bytes. `name` is used where the schema has none."""
    if info.type in _WITHOUT_SCHEMA:
        return None
    return TopicSchema(int(schema_type_named(info.type)), info.data, info.properties, info.name or name)
