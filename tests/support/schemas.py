"""Schemas for tests: records of a few fields, in the forms of REST and of the protocol."""

from __future__ import annotations

import json
import struct
from typing import Any

from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.wire import pulsar_api_pb2 as pb


def record(*fields: tuple[Any, ...], name: str = "Order") -> str:
    """Return an Avro definition. A field is a name, a type, and optionally a default."""
    shown = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})} for each in fields]
    return json.dumps({"type": "record", "name": name, "fields": shown})


# V2 is compatible with V1 by any rule. V3 is compatible with neither if new schemas must read old data.
V1 = record(("id", "string"))
V2 = record(("id", "string"), ("note", ["null", "string"], None))
NEEDS_MORE = record(("id", "string"), ("count", "int"))


def avro(definition: str, **properties: str) -> SchemaData:
    return SchemaData(SchemaType.AVRO, definition.encode(), properties)


def body(definition: str, kind: str = "AVRO", **properties: str) -> dict[str, Any]:
    """Return the REST form."""
    return {"type": kind, "schema": definition, "properties": properties}


def wire(kind: str, definition: str | bytes = b"", **properties: str) -> pb.Schema:
    """Return the form of commands; `kind` is the protocol's name."""
    data = definition.encode() if isinstance(definition, str) else definition
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    return pb.Schema(name="s", type=pb.Schema.Type.Value(kind), schema_data=data, properties=pairs)  # type: ignore[arg-type]


def key_value(key_type: str, key: str, value_type: str, value: str, encoding: str = "INLINE") -> pb.Schema:
    """Return a KEY_VALUE schema; types by their names in REST."""
    sides = key.encode(), value.encode()
    data = b"".join(struct.pack(">i", len(side)) + side for side in sides)
    properties = {
        "key.schema.name": "k",
        "key.schema.type": key_type,
        "key.schema.properties": "{}",
        "value.schema.name": "v",
        "value.schema.type": value_type,
        "value.schema.properties": "{}",
        "kv.encoding.type": encoding,
    }
    return wire("KeyValue", data, **properties)
