"""A schema as clients hand it in: its type, its definition and its properties.

Owns the numbers of the types (those of the protocol), their names in REST, and the two ways in which a schema is
refused. Nothing here reads a definition: see `validation` for what each type demands of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from pybroker.errors import IncompatibleSchema

_MAX_REASON_CHARACTERS = 1000


class InvalidSchema(IncompatibleSchema, http_status=422):
    """The definition is not one of its type; the text says what is wrong. Clients see the same code as for `Incompatible`."""

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


class Incompatible(IncompatibleSchema):
    """The schema may not follow the existing ones; the text names the path, both sides and the rule."""

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


def _shortened(reason: str) -> str:
    """Reasons quote names, which a definition can make as long as itself; the end, which names the rule, is kept."""
    if len(reason) <= _MAX_REASON_CHARACTERS:
        return reason
    half = _MAX_REASON_CHARACTERS // 2
    return f"{reason[:half]} ... {reason[-half:]}"


class SchemaType(IntEnum):
    """What a definition is written in, with the protocol's numbers."""

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


# The definition of a JSON and of a PROTOBUF schema is an Avro schema too.
AVRO_DEFINED_TYPES = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
# These types are complete by their name and carry no definition.
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
# What clients call these is resolved before anything reaches a broker; the protocol has no number for most of them.
_CLIENT_SIDE_NAMES = frozenset({"AUTO", "AUTO_CONSUME", "AUTO_PUBLISH"})


@dataclass(frozen=True, slots=True)
class SchemaData:
    """One definition. The properties belong to the client; only KEY_VALUE keeps facts of the schema itself there."""

    type: SchemaType
    data: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)


def schema_type_named(name: str) -> SchemaType:
    """Type by its name in REST; raises `InvalidSchema` for a name that no stored schema can have.

    BYTES means the same as NONE: the protocol has one number for both, and a schema is read back as NONE.
    """
    if name == "BYTES":
        return SchemaType.NONE
    if name in _CLIENT_SIDE_NAMES:
        raise InvalidSchema(f"schema type {name} exists in clients only")
    try:
        return SchemaType[name]
    except KeyError:
        raise InvalidSchema(f"unknown schema type {name!r}") from None
