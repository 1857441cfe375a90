"""The interface of payload readers, and their selection by schema version.

A payload reader reads payloads of one schema type: all messages of a topic, or the keys or values of a KEY_VALUE topic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from pybroker.columns.message_columns import ERROR_COLUMN, METADATA_TYPES, VALUE
from pybroker.columns.values.buffers import array_of, codes_of, flags_of
from pybroker.columns.values.lanes import Failures, Numbers, placed
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_schema import DecodedValues, SchemaInfo, SchemaOfVersion, ValueDecoder

MAX_VERSIONS_KEPT = 256
"""Maximum schema versions of one topic with cached readers; the oldest are evicted."""


class PayloadReader(ABC):
    """Reads payloads as the columns of `fields`."""

    fields: list[pa.Field]
    is_record: bool = False
    """Whether the fields belong to one record, which becomes a struct inside other types. Otherwise there is one
    field.
    """

    @abstractmethod
    def read(self, values: pa.BinaryArray, versions: pa.BinaryArray, failures: Failures) -> list[pa.Array]:
        """Return a column for each field, null for null payloads. Rows that cannot be decoded are added to `failures`;
        their values are undefined.
        """


class ReaderOfValues(ValueDecoder):
    """Decodes the messages of a topic whose schema is not KEY_VALUE."""

    def __init__(self, reader: PayloadReader) -> None:
        self.fields = reader.fields
        self._reader = reader

    def decode(self, values: pa.BinaryArray, keys: pa.BinaryArray, schema_versions: pa.BinaryArray) -> DecodedValues:
        failures = Failures(len(values))
        return decoded(self._reader.read(values, schema_versions, failures), failures)


def decoded(columns: list[pa.Array], failures: Failures) -> DecodedValues:
    """Return `columns` with nulls in the rows that failed, together with the error texts of these rows."""
    if not failures.count:
        return DecodedValues(columns, None)
    index = array_of(np.arange(len(failures.rows)), failures.rows)
    return DecodedValues([column.take(index) for column in columns], pa.array(failures.texts(), type=pa.string()))


class BytesReader(PayloadReader):
    """Returns payloads unchanged."""

    def __init__(self) -> None:
        self.fields = [pa.field(VALUE, pa.binary())]

    def read(self, values: pa.BinaryArray, versions: pa.BinaryArray, failures: Failures) -> list[pa.Array]:
        return [values]


ProgramT = TypeVar("ProgramT")


class Programs(Generic[ProgramT]):
    """Caches one reader for each schema version, which is created at its first use."""

    def __init__(
        self,
        latest: ProgramT,
        versions: SchemaOfVersion,
        make: Callable[[SchemaInfo], ProgramT],
        *,
        needs_writer: bool = True,
    ) -> None:
        """`latest` reads payloads without a version and, unless `needs_writer`, payloads of unknown versions. `make`
        creates the reader of a version; its ValueError makes the payloads of this version fail.
        """
        self._latest = latest
        self._needs_writer = needs_writer
        self._versions = versions
        self._make = make
        self._made: dict[bytes, ProgramT | str] = {}

    def of(self, version: bytes) -> ProgramT | str:
        if not version:
            return self._latest
        program = self._made.get(version)
        if program is None:
            while len(self._made) >= MAX_VERSIONS_KEPT:
                del self._made[next(iter(self._made))]
            program = self._made[version] = self._look_up(version)
        return program

    def _look_up(self, version: bytes) -> ProgramT | str:
        named = f"schema version {_shown_version(version)}"
        info = self._versions(version)
        if info is None:
            return f"the broker knows no {named}" if self._needs_writer else self._latest
        try:
            return self._make(info)
        except ValueError as error:
            return f"{named}: {error}"


def _shown_version(version: bytes) -> str:
    return str(int.from_bytes(version, "big")) if len(version) == 8 else version.hex()[:40]


def rows_by_version(values: pa.BinaryArray, versions: pa.BinaryArray) -> Iterator[tuple[bytes, Numbers | None]]:
    """Yield each schema version with the rows of its payloads, or None instead of the rows if all payloads have this
    version. Null payloads are omitted.
    """
    encoded = versions.dictionary_encode()
    names = dict(enumerate(encoded.dictionary.to_pylist()))
    if versions.null_count:
        names[-1] = b""
    if not values.null_count and len(names) == 1:
        yield next(iter(names.values())), None
        return
    codes = codes_of(encoded)
    present = flags_of(values.is_valid())
    for code, name in names.items():
        wanted = (codes == code) & present
        if wanted.any():
            yield name, np.nonzero(wanted)[0]


def read_by_version(
    programs: Programs[ProgramT],
    fields: list[pa.Field],
    values: pa.BinaryArray,
    versions: pa.BinaryArray,
    failures: Failures,
    run: Callable[[ProgramT, pa.BinaryArray, Numbers], list[pa.Array]],
) -> list[pa.Array]:
    pieces: list[tuple[Any, list[pa.Array]]] = []
    for version, rows in rows_by_version(values, versions):
        program = programs.of(version)
        where = np.arange(len(values)) if rows is None else rows
        if isinstance(program, str):
            failures.add(where, program)
            continue
        part = values if rows is None else values.take(array_of(rows))
        columns = run(program, part, where)
        if rows is None:
            return columns
        pieces.append((where, columns))
    return [
        placed([(where, columns[index]) for where, columns in pieces], len(values), field.type)
        for index, field in enumerate(fields)
    ]


class ReaderOfOneType(PayloadReader):
    """Reads payloads that need no writer's schema. A payload with a schema version of another type fails."""

    def __init__(self, schema_type: str, versions: SchemaOfVersion) -> None:
        self._type = schema_type
        self._programs: Programs[bool] = Programs(True, versions, self._program, needs_writer=False)

    def _program(self, info: SchemaInfo) -> bool:
        if info.type != self._type:
            raise ValueError(f"the schema cannot be used: its type is {info.type} instead of {self._type}")
        return True

    def read(self, values: pa.BinaryArray, versions: pa.BinaryArray, failures: Failures) -> list[pa.Array]:
        def run(_: bool, part: pa.BinaryArray, rows: Numbers) -> list[pa.Array]:
            return self._run(part, rows, failures)

        return read_by_version(self._programs, self.fields, values, versions, failures, run)

    @abstractmethod
    def _run(self, part: pa.BinaryArray, rows: Numbers, failures: Failures) -> list[pa.Array]: ...


def checked_names(fields: list[pa.Field]) -> list[pa.Field]:
    """Return `fields` unchanged. Raises UnreadableSchema if two fields, or a field and a metadata column, have the same
    name. The comparison ignores case, as Spark does.
    """
    taken = {name.lower(): f"the metadata column {name}" for name in (*METADATA_TYPES, ERROR_COLUMN)}
    for field in fields:
        other = taken.setdefault(field.name.lower(), f"the field {field.name!r}")
        if other != f"the field {field.name!r}":
            raise UnreadableSchema(
                f"the field {field.name!r} and {other} have names that differ at most in upper and lower case, "
                "so they cannot both be columns"
            )
    return fields


def chosen_fields(fields: list[pa.Field], wanted: Collection[str] | None) -> list[pa.Field]:
    return fields if wanted is None else [field for field in fields if field.name in wanted]
