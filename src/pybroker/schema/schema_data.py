"""A schema as clients send it: type, definition and properties.

This module also has the protocol's type numbers, their REST names, and the errors that refuse a schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from pybroker.errors import IncompatibleSchema

_MAX_REASON_CHARACTERS = 1000


class InvalidSchema(IncompatibleSchema, http_status=422):
    """The definition is invalid for its type. Clients receive the same error code as for `Incompatible`."""

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


class Incompatible(IncompatibleSchema):
    """The schema is incompatible with an existing one. The text contains the location, both types and the rule."""

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


def _shortened(reason: str) -> str:
    """Shorten a reason that quotes long names. The end of the text is kept, because it contains the rule."""
    if len(reason) <= _MAX_REASON_CHARACTERS:
        return reason
    half = _MAX_REASON_CHARACTERS // 2
    return f"{reason[:half]} ... {reason[-half:]}"


class SchemaType(IntEnum):
    """Format of a definition, with the protocol's numbers."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


# Definitions of JSON and PROTOBUF schemas are also Avro schemas.
AVRO_DEFINED_TYPES = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
# These types have no definition.
PRIMITIVE_TYPES = frozenset(
    {
        SchemaType.STRING,
        SchemaType.BOOLEAN,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
        SchemaType.DATE,
        SchemaType.TIME,
        SchemaType.TIMESTAMP,
        SchemaType.INSTANT,
        SchemaType.LOCAL_DATE,
        SchemaType.LOCAL_TIME,
        SchemaType.LOCAL_DATE_TIME,
    }
)
# Clients resolve these types before sending a schema.
_CLIENT_SIDE_NAMES = frozenset({"AUTO", "AUTO_CONSUME", "AUTO_PUBLISH"})


@dataclass(frozen=True, slots=True)
class SchemaData:
    """A schema. Properties are opaque to the broker, except for KEY_VALUE."""

    type: SchemaType
    data: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)


def schema_type_named(name: str) -> SchemaType:
    """Return the schema type with this name in the REST API; NONE for BYTES, which has the same number. Raises
    InvalidSchema if the name is unknown, or if a broker cannot store schemas of this type.
    """
    if name == "BYTES":
        return SchemaType.NONE
    if name in _CLIENT_SIDE_NAMES:
        raise InvalidSchema(
            f"a broker cannot store schemas of type {name}, which only clients use: upload the schema of the messages"
        )
    try:
        return SchemaType[name]
    except KeyError:
        raise InvalidSchema(f"unknown schema type {name!r}") from None
