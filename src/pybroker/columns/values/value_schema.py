"""What turns payloads into columns, and columns into payloads, as seen by those who read and write tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True)
class SchemaInfo:
    """A schema as a topic has it: the protocol's name of its type (`AVRO`, `KEY_VALUE`, ...), definition and properties."""

    type: str
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


SchemaOfVersion = Callable[[bytes], SchemaInfo | None]
"""The schema that a `schema_version` in a message's metadata names; None where the broker does not know it."""


@dataclass(frozen=True)
class DecodedValues:
    """The payload columns of one batch, each as long as the batch; `errors` tells rows that could not be decoded, or is None."""

    columns: list[pa.Array]
    errors: pa.StringArray | None


class ValueDecoder(ABC):
    """Payloads of one topic as the columns of `fields`, whatever schema version wrote them."""

    fields: list[pa.Field]
    """All nullable; the same for the decoder's whole life (the reader schema is pinned)."""

    @abstractmethod
    def decode(self, values: pa.BinaryArray, keys: pa.BinaryArray, schema_versions: pa.BinaryArray) -> DecodedValues:
        """The columns of these payloads. A null payload gives nulls. A payload that cannot be decoded is null in all columns
        and has its reason in `errors`; what happens with it is its caller's policy.
        """


class ValueEncoder(ABC):
    """Rows of a data frame as payloads."""

    schema: SchemaInfo
    """What producers register with the topic."""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        """The payloads of the payload columns of `batch`, and their keys where the schema itself puts one into the message's
        key (KEY_VALUE, separated). Raises ValueError naming column and row of a value that the schema cannot hold.
        """
