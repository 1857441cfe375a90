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
    """The payload columns of one batch. `errors` contains the reason for each row that could not be decoded; None if
    all rows were decoded.
    """

    columns: list[pa.Array]
    errors: pa.StringArray | None


class ValueDecoder(ABC):
    """Decodes payloads of one topic, of any schema version, into the columns of `fields`."""

    fields: list[pa.Field]
    """All nullable. They never change, because the reader's schema is pinned."""

    @abstractmethod
    def decode(self, values: pa.BinaryArray, keys: pa.BinaryArray, schema_versions: pa.BinaryArray) -> DecodedValues:
        """Return the columns of the payloads. Null payloads give nulls. A payload that cannot be decoded gives nulls
        and a reason in `errors`; the caller applies the policy for bad records.
        """


class ValueEncoder(ABC):
    """Encodes rows of a data frame into payloads."""

    schema: SchemaInfo

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        """Return the payload of each row, and the message keys if a KEY_VALUE schema is SEPARATED. Raises ValueError
        with column and row of a value that the schema cannot represent.
        """
