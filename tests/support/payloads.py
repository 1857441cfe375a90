"""Payloads as columns of bytes, and what a decoder makes of them, for tests of schemas and columns."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import settings

from pybroker.columns.bad_records import MissingFields
from pybroker.columns.values.value_decoder import ValueMode, value_decoder
from pybroker.columns.values.value_schema import DecodedValues, SchemaInfo

EXAMPLES = settings(deadline=None, database=None, derandomize=True)


def binary(values: Sequence[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, type=pa.binary())


def schema(kind: str, definition: Any = None, **properties: str) -> SchemaInfo:
    return SchemaInfo(kind, b"" if definition is None else json.dumps(definition).encode(), properties)


def record(*fields: tuple[Any, ...], name: str = "Order") -> dict[str, Any]:
    """An Avro definition; a field is its name, its type and perhaps its default."""
    shown = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": shown}


def avro_bytes(definition: Any, value: Any) -> bytes:
    """The payload as another library writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(definition))), value)
    return out.getvalue()


def decode(
    info: SchemaInfo | None,
    payloads: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    versions: Sequence[bytes | None] | None = None,
    known: Mapping[bytes, SchemaInfo] | None = None,
    mode: ValueMode = "auto",
    wanted: Sequence[str] | None = None,
    missing_fields: MissingFields = MissingFields.FAIL,
) -> pa.Table:
    """A checked table of the columns, with `__error` as the last."""
    nothing = [None] * len(payloads)
    decoder = value_decoder(info, (known or {}).get, mode, wanted, missing_fields)
    result = decoder.decode(binary(payloads), binary(keys or nothing), binary(versions or nothing))
    return checked_table(decoder.fields, result, len(payloads))


def checked_table(fields: list[pa.Field], result: DecodedValues, count: int) -> pa.Table:
    errors = pa.nulls(count, pa.string()) if result.errors is None else result.errors
    names = [field.name for field in fields]
    assert [column.type for column in result.columns] == [field.type for field in fields]
    assert all(field.nullable for field in fields)
    table = pa.Table.from_arrays([*result.columns, errors], names=[*names, "__error"])
    table.validate(full=True)
    assert table.num_rows == count
    return table


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows without their errors; no row may have one."""
    assert table.column("__error").null_count == table.num_rows, table.column("__error").to_pylist()
    return table.drop_columns(["__error"]).to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def errors(table: pa.Table) -> list[str | None]:
    return table.column("__error").to_pylist()  # type: ignore[no-any-return]
