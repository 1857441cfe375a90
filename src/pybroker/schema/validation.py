"""Validation of schema definitions: the rules of each schema type, checked in linear time."""

from __future__ import annotations

from pybroker.schema.avro import parse_avro
from pybroker.schema.key_value import split_key_value
from pybroker.schema.protobuf_native import root_message_name
from pybroker.schema.schema_data import AVRO_DEFINED_TYPES, PRIMITIVE_TYPES, InvalidSchema, SchemaData, SchemaType

_MAX_KEY_VALUE_NESTING = 8


def validate(schema: SchemaData) -> None:
    """Raise InvalidSchema, with the reason, if the definition does not fit its type."""
    _validate(schema, 0)


def _validate(schema: SchemaData, nesting: int) -> None:
    try:
        _validate_definition(schema, nesting)
    except InvalidSchema as error:
        raise InvalidSchema(f"{schema.type.name}: {error}") from None


def _validate_definition(schema: SchemaData, nesting: int) -> None:
    if schema.type in AVRO_DEFINED_TYPES:
        root = parse_avro(schema.data)
        # As in Pulsar, only for AVRO.
        if schema.type is SchemaType.AVRO and root.kind == "union":
            raise InvalidSchema("the root type of the schema must not be a union")
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        root_message_name(schema.data)
    elif schema.type is SchemaType.KEY_VALUE:
        if nesting == _MAX_KEY_VALUE_NESTING:
            raise InvalidSchema(f"the schema is nested deeper than {_MAX_KEY_VALUE_NESTING} levels")
        sides = split_key_value(schema)
        _validate(sides.key, nesting + 1)
        _validate(sides.value, nesting + 1)
    elif schema.type in PRIMITIVE_TYPES and schema.data and not _is_pythons_string(schema):
        raise InvalidSchema(
            f"schemas of this type have no definition, but this schema has a definition of {len(schema.data)} bytes"
        )
    elif schema.type is SchemaType.AUTO_CONSUME:
        raise InvalidSchema(
            "a broker cannot store schemas of type AUTO_CONSUME, which only clients use: send the schema of the messages"
        )


def _is_pythons_string(schema: SchemaData) -> bool:
    """Return whether it is the Python client's STRING schema, whose definition is a JSON null."""
    return schema.type is SchemaType.STRING and schema.data == b"null"
