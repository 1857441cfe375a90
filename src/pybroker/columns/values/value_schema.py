"""The interfaces for decoding payloads into columns and encoding columns into payloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True)
class SchemaInfo:
    """A topic's schema: type by its protocol name (`AVRO`, `KEY_VALUE`, ...), definition, and properties."""

    type: str
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


SchemaOfVersion = Callable[[bytes], SchemaInfo | None]
"""Returns the schema of a message's `schema_version`; None if the broker does not know it."""


@dataclass(frozen=True)
class DecodedValues:
    """The payload columns of one batch. `errors` has the reasons for rows that could not be decoded; None if there
    are none.
    """

    columns: list[pa.Array]
    errors: pa.StringArray | None


class ValueDecoder(ABC):
    """Decodes payloads of one topic, of any schema version, into the columns of `fields`."""

    fields: list[pa.Field]
    """All nullable. They never change, because the reader's schema is pinned."""

    @abstractmethod
    def decode(self, values: pa.BinaryArray, keys: pa.BinaryArray, schema_versions: pa.BinaryArray) -> DecodedValues:
        """Return the columns. A null payload gives nulls. A payload that cannot be decoded gives nulls and a reason
        in `errors`; the caller applies its policy.
        """


class ValueEncoder(ABC):
    """Encodes rows of a data frame into payloads."""

    schema: SchemaInfo

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        """Return the payloads of `batch`, and the keys if the schema puts them into the message's key (KEY_VALUE,
        separated). Raises ValueError with column and row of a value that the schema cannot represent.
        """
