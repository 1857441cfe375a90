"""Encoding of Arrow arrays as JSON texts: the counterpart of `json_values`.

Bytes become base64, dates and timestamps the numbers of their Avro type, and nulls `null`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pybroker.columns.values.avro_columns import INSTANT, LOCAL, AvroColumns, logical_of, unit_of
from pybroker.columns.values.encoding.encoded import CannotEncode, cast, first_true, joined_texts
from pybroker.columns.values.encoding.fitting import Misfit, family, plain_type
from pybroker.schema.avro import AvroType, NoDefault


@cache
def _null() -> pa.StringScalar:
    """Return the null text. Not a constant, because creating a scalar imports pandas, which takes 0.2 s in each of
    Spark's Python processes.
    """
    return pa.scalar("null", pa.string())


_NEEDS_ESCAPES = r'["\\\x00-\x1f]'


class JsonWriter:
    """Writes arrays of one column type as JSON of one Avro type. Immutable."""

    def __init__(self, write: Callable[[pa.Array], pa.StringArray], *, may_be_null: bool) -> None:
        self._write = write
        self._may_be_null = may_be_null

    def write(self, array: pa.Array) -> pa.StringArray:
        if array.null_count and not self._may_be_null:
            raise CannotEncode(first_true(array.is_null()), "the value is null, but the schema does not allow null")
        return self._write(array).fill_null(_null())


def json_writer_of(avro_type: AvroType, arrow_type: pa.DataType, columns: AvroColumns) -> JsonWriter:
    arrow_type = plain_type(arrow_type)
    may_be_null = avro_type.kind == "null"
    if avro_type.kind == "union":
        may_be_null = any(branch.kind == "null" for branch in avro_type.children)
        column = columns.union_of(avro_type)
        if column.is_struct:
            raise Misfit("the schema has a union of several types, which cannot be written as JSON")
        if column.branches:
            avro_type = column.branches[-1] if column.type != "double" else _widest(column.branches)
    return JsonWriter(_write_of(avro_type, arrow_type, columns), may_be_null=may_be_null)


def _widest(branches: tuple[AvroType, ...]) -> AvroType:
    return next((each for each in branches if each.kind in {"double", "long"}), branches[-1])


def _write_of(avro_type: AvroType, arrow_type: pa.DataType, columns: AvroColumns) -> Callable[[pa.Array], Any]:
    kind = avro_type.kind
    if pa.types.is_null(arrow_type):
        return lambda array: pa.nulls(len(array), pa.string())
    if kind == "record" and pa.types.is_struct(arrow_type):
        return json_record(avro_type, list(arrow_type), columns)
    if kind == "array" and pa.types.is_list(arrow_type):
        return _list_writer(json_writer_of(avro_type.children[0], arrow_type.value_type, columns))
    if kind == "map" and pa.types.is_map(arrow_type) and family(plain_type(arrow_type.key_type)) == "text":
        return _map_writer(json_writer_of(avro_type.children[0], arrow_type.item_type, columns))
    return _leaf(avro_type, arrow_type, columns)


def _leaf(avro_type: AvroType, arrow_type: pa.DataType, columns: AvroColumns) -> Callable[[pa.Array], Any]:
    logical, given = logical_of(avro_type), family(arrow_type)
    misfit = Misfit(f"the column has type {arrow_type}, but the schema has {logical.name or avro_type}")
    if logical.name == "decimal" and given in {"decimal", "whole"}:
        wanted = columns.type_of(avro_type)
        return lambda array: cast(array if given == "decimal" else cast(array, pa.decimal128(38, 0)), wanted).cast(
            pa.string()
        )
    if logical.name == "date" and given == "date":
        return lambda array: cast(array, pa.date32()).view(pa.int32()).cast(pa.string())
    if unit_us := unit_of(logical):
        is_local = logical.name.startswith("local")
        if given != ("local timestamp" if is_local else "timestamp"):
            raise misfit
        return _timestamp_writer(LOCAL if is_local else INSTANT, unit_us)
    if logical.name in {"decimal", "date"}:
        raise misfit
    match avro_type.kind, given:
        case "boolean", "boolean":
            return lambda array: array.cast(pa.string())
        case "int", "whole" | "time in ms":
            return lambda array: cast(array, pa.int32()).cast(pa.string())
        case "long", "whole" | "time in us":
            return lambda array: cast(array, pa.int64()).cast(pa.string())
        case ("float", "whole" | "real") | ("double", "whole" | "real"):
            return lambda array: _real_texts(cast(array, columns.type_of(avro_type)))
        case "string" | "enum", "text":
            return _texts
        case "bytes" | "fixed", "bytes":
            return _base64_texts
    raise misfit


def _timestamp_writer(arrow_type: pa.DataType, unit_us: int) -> Callable[[pa.Array], pa.StringArray]:
    def write(array: pa.Array) -> pa.StringArray:
        micros = cast(array, arrow_type).view(pa.int64())
        return _floored(micros, unit_us).cast(pa.string())

    return write


def _floored(micros: pa.Array, unit_us: int) -> pa.Array:
    filled = np.asarray(micros.fill_null(0)) // unit_us
    return pa.array(filled, mask=np.asarray(micros.is_null()))


def _real_texts(array: pa.Array) -> pa.StringArray:
    texts = array.cast(pa.string())
    odd = pc.invert(pc.is_finite(array)).fill_null(False)
    if not pc.any(odd, min_count=0).as_py():
        return texts
    # JSON has no such numbers; Jackson uses these texts.
    names = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.less(array, 0), '"-Infinity"', '"Infinity"'))
    return pc.if_else(odd, names, texts)


def _texts(array: pa.Array) -> pa.StringArray:
    array = cast(array, pa.string())
    if pc.any(pc.match_substring_regex(array, _NEEDS_ESCAPES), min_count=0).as_py():
        encode = msgspec.json.encode
        return pa.array(
            [None if text is None else encode(text).decode() for text in array.to_pylist()], type=pa.string()
        )
    return joined_texts('"', array, '"')


def _base64_texts(array: pa.Array) -> pa.StringArray:
    values = [None if value is None else f'"{base64.b64encode(value).decode()}"' for value in array.to_pylist()]
    return pa.array(values, type=pa.string())


def _list_writer(item: JsonWriter) -> Callable[[pa.Array], pa.StringArray]:
    def write(array: pa.Array) -> pa.StringArray:
        return joined_texts("[", _joined_items(array, item.write, array.flatten()), "]")

    return write


def _map_writer(value: JsonWriter) -> Callable[[pa.Array], pa.StringArray]:
    def write(array: pa.Array) -> pa.StringArray:
        entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        keys, values = entries.flatten().flatten()

        def both(items: pa.Array) -> pa.StringArray:
            return joined_texts(_texts(keys), ":", value.write(items))

        return joined_texts("{", _joined_items(entries, both, values), "}")

    return write


def _joined_items(array: pa.Array, write: Callable[[pa.Array], pa.StringArray], items: pa.Array) -> pa.StringArray:
    lengths = np.asarray(array.value_lengths().fill_null(0)).astype(np.int64)
    try:
        texts = write(items)
    except CannotEncode as error:
        raise error.at(np.searchsorted(np.cumsum(lengths), error.row, side="right")) from None
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), texts)
    return pc.if_else(array.is_valid(), pc.binary_join(lists, ","), pa.scalar(None, pa.string()))


def json_record(record: AvroType, fields: list[pa.Field], columns: AvroColumns) -> Callable[[pa.Array], pa.StringArray]:
    children = dict(zip([each.name for each in record.fields], record.children, strict=True))
    writers: list[tuple[str, str, JsonWriter]] = []
    for field in fields:
        if field.name not in children:
            raise Misfit(f"the data has a field {field.name!r}, which the schema's {record} does not have")
        try:
            writer = json_writer_of(children[field.name], field.type, columns)
        except Misfit as error:
            raise error.inside(field.name) from None
        head = ("," if writers else "{") + msgspec.json.encode(field.name).decode() + ":"
        writers.append((field.name, head, writer))
    rest = _constants(record, {field.name for field in fields})

    def write(array: pa.Array) -> pa.StringArray:
        names = [field.name for field in array.type]
        by_name = dict(zip(names, array.flatten(), strict=True))
        # Fields of a null struct are not checked.
        valid = np.nonzero(np.asarray(array.is_valid()))[0] if array.null_count else None
        pieces: list[Any] = []
        for name, head, writer in writers:
            column = by_name[name]
            pieces += [head, _among(column, valid, writer, name)]
        alone = pa.array(["{" + rest[1:] + "}"] * len(array), type=pa.string())
        texts = joined_texts(*pieces, rest + "}") if pieces else alone
        return texts if valid is None else pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))

    return write


def _constants(record: AvroType, given: set[str]) -> str:
    text = ""
    for each, child in zip(record.fields, record.children, strict=True):
        if each.name in given:
            continue
        default = each.default
        if isinstance(default, NoDefault):
            if child.kind != "null" and all(branch.kind != "null" for branch in child.children):
                raise Misfit("the field is missing in the data, and the schema has no default for it", each.name)
        elif default is not None:
            text += f",{msgspec.json.encode(each.name).decode()}:{msgspec.json.encode(default).decode()}"
    return text


def _among(column: pa.Array, valid: Any, writer: JsonWriter, name: str) -> pa.StringArray:
    try:
        if valid is None:
            return writer.write(column)
        written = writer.write(column.take(pa.array(valid)))
    except CannotEncode as error:
        raise (error if valid is None else error.at(valid[error.row])).inside(name) from None
    index = np.zeros(len(column), dtype=np.int64)
    missing = np.ones(len(column), dtype=np.bool_)
    index[valid] = np.arange(len(valid))
    missing[valid] = False
    return written.take(pa.array(index, mask=missing)).fill_null(_null())
