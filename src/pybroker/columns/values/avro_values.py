"""Decoding of AVRO payloads into columns.

A payload may have any schema version; its values are converted to the reader's schema.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pybroker.columns.bad_records import MissingFields
from pybroker.columns.message_columns import VALUE
from pybroker.columns.values.avro_columns import AvroColumns
from pybroker.columns.values.avro_readers import Reader, RecordReader
from pybroker.columns.values.avro_resolution import AvroResolution
from pybroker.columns.values.lanes import Failures, Numbers, lanes_over
from pybroker.columns.values.payload_reader import PayloadReader, Programs, chosen_fields, read_by_version
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_schema import SchemaInfo, SchemaOfVersion
from pybroker.schema.avro import AvroType, parse_avro
from pybroker.schema.schema_data import InvalidSchema

Program: TypeAlias = "RecordReader | Reader"


def definition_of(data: bytes) -> AvroType:
    try:
        return parse_avro(data)
    except InvalidSchema as error:
        raise ValueError(f"the schema's definition is invalid: {error}") from None


class AvroDefinition:
    """The columns of an Avro definition: a record's fields, or one column `value` for other types."""

    def __init__(self, data: bytes) -> None:
        try:
            self.type = definition_of(data)
        except ValueError as error:
            raise UnreadableSchema(str(error)) from None
        self.columns = AvroColumns()
        whole = self.columns.type_of(self.type)
        self.is_record = self.type.kind == "record"
        self.fields: list[pa.Field] = list(whole) if self.is_record else [pa.field(VALUE, whole)]


class AvroReader(PayloadReader):
    """Reads binary Avro payloads without a file header."""

    def __init__(
        self,
        info: SchemaInfo,
        versions: SchemaOfVersion,
        wanted: Collection[str] | None = None,
        missing_fields: MissingFields = MissingFields.FAIL,
    ) -> None:
        self._definition = AvroDefinition(info.data)
        self.is_record = self._definition.is_record
        self.fields = chosen_fields(self._definition.fields, wanted)
        self._wanted = wanted
        self._missing_fields = missing_fields
        self._programs: Programs[Program] = Programs(self._resolved(self._definition.type), versions, self._program)

    def _program(self, info: SchemaInfo) -> Program:
        if info.type != "AVRO":
            raise ValueError(f"the schema cannot be used: its type is {info.type} instead of AVRO")
        return self._resolved(definition_of(info.data))

    def _resolved(self, writer: AvroType) -> Program:
        reader = self._definition.type
        resolution = AvroResolution(AvroColumns(), self._missing_fields)
        if not self.is_record or writer.kind != "record":
            return resolution.resolve(writer, reader)
        return resolution.record(writer, reader, self._wanted)

    def read(self, values: pa.BinaryArray, versions: pa.BinaryArray, failures: Failures) -> list[pa.Array]:
        def run(program: Program, part: pa.BinaryArray, rows: Numbers) -> list[pa.Array]:
            return self._run(program, part, rows, failures)

        return read_by_version(self._programs, self.fields, values, versions, failures, run)

    def _run(self, program: Program, part: pa.BinaryArray, rows: Numbers, failures: Failures) -> list[pa.Array]:
        lanes = lanes_over(part, rows, failures)
        if isinstance(program, RecordReader) and self.is_record:
            columns = program.read_columns(lanes)
        else:
            whole = program.read(lanes)
            columns = [whole]
            if self.is_record:
                by_name = dict(zip([field.name for field in whole.type], whole.flatten(), strict=True))
                columns = [by_name[field.name] for field in self.fields]
        left = lanes.places < lanes.ends
        if left.any():
            lanes.fail(np.nonzero(left)[0], "bytes are left after its last field")
        return columns
