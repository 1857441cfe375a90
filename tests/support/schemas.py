"""Schemas that tests register: records of a few fields, as REST and as the protocol carry them."""

from __future__ import annotations

import json
import struct
from typing import Any

from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.wire import pulsar_api_pb2 as pb


def record(*fields: tuple[Any, ...], name: str = "Order") -> str:
    """An Avro definition; a field is its name, its type and perhaps its default."""
    shown = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})} for each in fields]
    return json.dumps({"type": "record", "name": name, "fields": shown})


# The second may follow the first by any rule; the third may not follow either where the new one must read the old.
V1 = record(("id", "string"))
V2 = record(("id", "string"), ("note", ["null", "string"], None))
NEEDS_MORE = record(("id", "string"), ("count", "int"))


def avro(definition: str, **properties: str) -> SchemaData:
    return SchemaData(SchemaType.AVRO, definition.encode(), properties)


def body(definition: str, kind: str = "AVRO", **properties: str) -> dict[str, Any]:
    """What REST takes."""
    return {"type": kind, "schema": definition, "properties": properties}


def wire(kind: str, definition: str | bytes = b"", **properties: str) -> pb.Schema:
    """What commands carry; `kind` by its name in the protocol."""
    data = definition.encode() if isinstance(definition, str) else definition
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    return pb.Schema(name="s", type=pb.Schema.Type.Value(kind), schema_data=data, properties=pairs)  # type: ignore[arg-type]


def key_value(key_type: str, key: str, value_type: str, value: str, encoding: str = "INLINE") -> pb.Schema:
    """A schema of keys and values, each with a type by its name in REST."""
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
