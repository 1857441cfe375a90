"""Encoding of Arrow arrays as Avro values: the counterpart of `avro_readers`.

A writer is created for an Avro type and a column type. Creation fails if the types do not match; a value that does not
fit fails with its row when it is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pybroker.columns.values.avro_columns import INSTANT, LOCAL, AvroColumns, Logical, logical_of, unit_of
from pybroker.columns.values.encoding.encoded import (
    CannotEncode,
    Pieces,
    big_endian_decimals,
    cast,
    first_true,
    fixed_pieces,
    joined,
    numbers,
    shortest_decimals,
    shown,
    varints,
    with_length,
)
from pybroker.columns.values.encoding.fitting import Misfit, family, plain_type
from pybroker.columns.values.json_values import Unfit, value_from_json
from pybroker.schema.avro import AvroField, AvroType, NoDefault


class Writer(ABC):
    """Writes arrays of one type. Immutable."""

    @abstractmethod
    def write(self, array: pa.Array) -> Pieces: ...


class PlainWriter(Writer):
    """Casts the array and writes it with one function."""

    def __init__(self, arrow_type: pa.DataType, write: Callable[[pa.Array], Pieces]) -> None:
        self._type = arrow_type
        self._write = write

    def write(self, array: pa.Array) -> Pieces:
        return self._write(cast(array, self._type))


class DecimalWriter(PlainWriter):
    """Writes decimals. Whole numbers are first cast to a decimal with enough digits for all values of their type,
    because Arrow requires these digits.
    """

    def write(self, array: pa.Array) -> Pieces:
        if pa.types.is_integer(array.type):
            array = cast(array.cast(pa.int64()), pa.decimal128(38, 0))
        return super().write(array)


class NullWriter(Writer):
    """Writes nulls, which take no bytes."""

    def write(self, array: pa.Array) -> Pieces:
        return fixed_pieces(np.zeros((len(array), 0), dtype=np.uint8), 0)


class BranchWriter(Writer):
    """Writes a union whose only non-null branch fits the column."""

    def __init__(self, null: int | None, branch: int | None, inner: Writer) -> None:
        self._null = None if null is None else _index_byte(null)
        self._branch = b"" if branch is None else _index_byte(branch)
        self._inner = inner

    def write(self, array: pa.Array) -> Pieces:
        if not array.null_count:
            return joined(self._branch, self._inner.write(array)) if self._branch else self._inner.write(array)
        if self._null is None:
            raise CannotEncode(first_true(array.is_null()), "the value is null, but the schema does not allow null")
        where = np.nonzero(np.asarray(array.is_valid()))[0]
        try:
            pieces = self._inner.write(array.drop_null())
        except CannotEncode as error:
            raise error.at(where[error.row]) from None
        index = np.zeros(len(array), dtype=np.int64)
        index[where] = np.arange(len(where))
        spread = joined(self._branch, pieces).take(pa.array(index, mask=np.asarray(array.is_null())))
        return spread.fill_null(self._null)


def _index_byte(index: int) -> bytes:
    return bytes(varints(np.array([index], dtype=np.int64))[0].as_py())


class MembersWriter(Writer):
    """Writes a union from a struct of which one member is not null. A null struct is written as null."""

    def __init__(self, null: int | None, members: list[tuple[int, Writer]]) -> None:
        self._null = null
        self._members = members

    def write(self, array: pa.StructArray) -> Pieces:
        columns = array.flatten()
        given = np.zeros(len(array), dtype=np.int64)
        index = np.zeros(len(array), dtype=np.int64)
        pieces, count = [], 0
        for (branch, writer), column in zip(self._members, columns, strict=True):
            where = np.nonzero(np.asarray(column.is_valid()))[0]
            given[where] += 1
            index[where] = np.arange(count, count + len(where))
            count += len(where)
            try:
                pieces.append(joined(_index_byte(branch), writer.write(column.drop_null())))
            except CannotEncode as error:
                raise error.at(where[error.row]) from None
        if (given > 1).any():
            raise CannotEncode(first_true(given > 1), "the union has values in several of its members: set only one")
        if self._null is None and (given == 0).any():
            raise CannotEncode(
                first_true(given == 0), "no member of the union has a value, and the union has no null: set one member"
            )
        whole = pa.concat_arrays(pieces).take(pa.array(index, mask=given == 0))
        return whole if self._null is None else whole.fill_null(_index_byte(self._null))


class RecordWriter(Writer):
    """Writes the fields in the definition's order, from columns of the same names or from constants."""

    def __init__(self, parts: list[tuple[str, Writer | bytes]]) -> None:
        self._parts = parts

    def write(self, array: pa.StructArray) -> Pieces:
        names = [field.name for field in array.type]
        return self.write_columns(dict(zip(names, array.flatten(), strict=True)), len(array))

    def write_columns(self, columns: dict[str, pa.Array], count: int) -> Pieces:
        pieces: list[Any] = []
        for name, writer in self._parts:
            if isinstance(writer, bytes):
                pieces.append(pa.repeat(pa.scalar(writer, pa.binary()), count))
                continue
            try:
                pieces.append(writer.write(columns[name]))
            except CannotEncode as error:
                raise error.inside(name) from None
        return joined(*pieces) if pieces else NullWriter().write(pa.nulls(count))


class ListWriter(Writer):
    """Writes an array in one block."""

    def __init__(self, item: Writer) -> None:
        self._item = item

    def write(self, array: pa.Array) -> Pieces:
        lengths = numbers(array.value_lengths())
        return _blocks(lengths, _of_item(self._item, array.flatten(), lengths))


class MapWriter(Writer):
    """Writes a map with text keys in one block."""

    def __init__(self, value: Writer) -> None:
        self._value = value

    def write(self, array: pa.MapArray) -> Pieces:
        # Cast first, because a sliced map array has the keys of the whole array.
        entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        lengths = numbers(entries.value_lengths())
        keys, values = entries.flatten().flatten()
        texts = with_length(cast(keys, pa.string()).cast(pa.binary()))
        return _blocks(lengths, joined(texts, _of_item(self._value, values, lengths)))


def _of_item(writer: Writer, items: pa.Array, lengths: Any) -> Pieces:
    try:
        return writer.write(items)
    except CannotEncode as error:
        raise error.at(np.searchsorted(np.cumsum(lengths), error.row, side="right")) from None


def _blocks(lengths: Any, items: Pieces) -> Pieces:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), items)
    end = pc.if_else(pa.array(lengths > 0), pa.scalar(b"\0", pa.binary()), pa.scalar(b"", pa.binary()))
    return joined(varints(lengths), pc.binary_join(lists, b""), end)


def _write_boolean(array: pa.Array) -> Pieces:
    return fixed_pieces(np.asarray(array.cast(pa.uint8())), 1)


def _write_number(array: pa.Array) -> Pieces:
    return varints(numbers(array))


def _write_float(array: pa.Array) -> Pieces:
    return fixed_pieces(np.asarray(array).astype("<f4"), 4)


def _write_double(array: pa.Array) -> Pieces:
    return fixed_pieces(np.asarray(array).astype("<f8"), 8)


def _write_text(array: pa.Array) -> Pieces:
    return with_length(array.cast(pa.binary()))


_PLAIN: dict[str, tuple[pa.DataType, Callable[[pa.Array], Pieces]]] = {
    "boolean": (pa.bool_(), _write_boolean),
    "int": (pa.int32(), _write_number),
    "long": (pa.int64(), _write_number),
    "float": (pa.float32(), _write_float),
    "double": (pa.float64(), _write_double),
    "bytes": (pa.binary(), with_length),
    "string": (pa.string(), _write_text),
}


def writer_of(avro_type: AvroType, arrow_type: pa.DataType, columns: AvroColumns) -> Writer:
    arrow_type = plain_type(arrow_type)
    if avro_type.kind == "union":
        return _union_writer(avro_type, arrow_type, columns)
    inner = _inner_writer(avro_type, arrow_type, columns)
    return BranchWriter(None, None, inner)


def _inner_writer(avro_type: AvroType, arrow_type: pa.DataType, columns: AvroColumns) -> Writer:
    kind = avro_type.kind
    if kind == "null":
        if not pa.types.is_null(arrow_type):
            raise Misfit(f"the column has type {arrow_type}, but the schema has null")
        return NullWriter()
    if pa.types.is_null(arrow_type):
        return NullWriter()  # all values are nulls, which the enclosing writer refuses
    if kind == "record" and pa.types.is_struct(arrow_type):
        return record_writer(avro_type, list(arrow_type), columns)
    if kind == "array" and pa.types.is_list(arrow_type):
        return ListWriter(writer_of(avro_type.children[0], arrow_type.value_type, columns))
    if kind == "map" and pa.types.is_map(arrow_type):
        if family(plain_type(arrow_type.key_type)) != "text":
            raise Misfit("the column is a map with keys that are not strings")
        return MapWriter(writer_of(avro_type.children[0], arrow_type.item_type, columns))
    return _leaf_writer(avro_type, arrow_type)


def _leaf_writer(avro_type: AvroType, arrow_type: pa.DataType) -> Writer:
    logical = logical_of(avro_type)
    if avro_type.kind in {"record", "array", "map"} or not _fits(avro_type, logical, family(arrow_type)):
        raise Misfit(f"the column has type {arrow_type}, but the schema has {logical.name or avro_type}")
    if logical.name == "decimal":
        return DecimalWriter(pa.decimal128(logical.precision, logical.scale), _decimal_writer(avro_type))
    if logical.name == "date":
        return PlainWriter(pa.date32(), lambda array: _write_number(array.view(pa.int32())))
    if unit_us := unit_of(logical):
        whole = LOCAL if logical.name.startswith("local") else INSTANT
        # Rounded down to the schema's milliseconds.
        return PlainWriter(whole, lambda array: varints(numbers(array.view(pa.int64())) // unit_us))
    if logical.name == "uuid" or avro_type.kind == "fixed":
        return PlainWriter(pa.binary(), _fixed_writer(avro_type.size_bytes))
    if avro_type.kind == "enum":
        return PlainWriter(pa.string(), _enum_writer(list(avro_type.symbols)))
    return PlainWriter(*_PLAIN[avro_type.kind])


def _fits(avro_type: AvroType, logical: Logical, given: str) -> bool:
    """Return whether values of the column's family can fit the type; each value is checked when it is written."""
    if logical.name == "decimal":
        return given in {"decimal", "whole"}
    if logical.name == "date":
        return given == "date"
    if unit_of(logical):
        return given == ("local timestamp" if logical.name.startswith("local") else "timestamp")
    return given in {
        "boolean": {"boolean"},
        "int": {"whole", "time in ms"},
        "long": {"whole", "time in us"},
        "float": {"whole", "real"},
        "double": {"whole", "real"},
        "string": {"text"},
        "enum": {"text"},
        "bytes": {"bytes", "text"},
        "fixed": {"bytes"},
    }.get(avro_type.kind, set())


def _decimal_writer(avro_type: AvroType) -> Callable[[pa.Array], Pieces]:
    if avro_type.kind == "bytes":
        return lambda array: with_length(shortest_decimals(array))
    size = avro_type.size_bytes

    def write(array: pa.Array) -> Pieces:
        table = big_endian_decimals(array)
        lead, kept = table[:, : 16 - size], table[:, 16 - size :]
        sign = np.where(kept[:, 0] >= 0x80, 0xFF, 0)
        wrong = (lead != sign[:, None]).any(axis=1)
        if wrong.any():
            row = first_true(wrong)
            raise CannotEncode(row, f"the value {shown(array[row])} does not fit into {size} bytes")
        return fixed_pieces(kept, size)

    return write


def _fixed_writer(size: int) -> Callable[[pa.Array], Pieces]:
    def write(array: pa.Array) -> Pieces:
        wrong = numbers(pc.binary_length(array)) != size
        if wrong.any():
            raise CannotEncode(
                first_true(wrong), f"the value does not have the {size} bytes of the schema's fixed type"
            )
        return array

    return write


def _enum_writer(symbols: list[str]) -> Callable[[pa.Array], Pieces]:
    known = pa.array(symbols, type=pa.string())

    def write(array: pa.Array) -> Pieces:
        index = pc.index_in(array, value_set=known)
        if index.null_count:
            row = first_true(index.is_null())
            raise CannotEncode(row, f"the value {shown(array[row])!r} is not a symbol of the schema's enum")
        return varints(numbers(index))

    return write


def record_writer(record: AvroType, fields: list[pa.Field], columns: AvroColumns) -> RecordWriter:
    by_name = {field.name: field for field in fields}
    known = {each.name for each in record.fields}
    for name in by_name:
        if name not in known:
            raise Misfit(f"the data has a field {name!r}, which the schema's {record} does not have")
    parts: list[tuple[str, Writer | bytes]] = []
    for each, child in zip(record.fields, record.children, strict=True):
        given = by_name.get(each.name)
        try:
            parts.append(
                (each.name, _constant(each, child) if given is None else writer_of(child, given.type, columns))
            )
        except Misfit as error:
            raise error.inside(each.name) from None
    return RecordWriter(parts)


def _constant(each: AvroField, child: AvroType) -> bytes:
    columns = AvroColumns()
    arrow_type = columns.type_of(child)
    value: Any = None
    if not isinstance(each.default, NoDefault):
        try:
            value = value_from_json(child, each.default, is_default=True)
        except Unfit as error:
            raise Misfit(
                f"the field is missing in the data, and the schema's default for it is invalid: {error}"
            ) from None
    try:
        return bytes(writer_of(child, arrow_type, columns).write(pa.array([value], type=arrow_type))[0].as_py())
    except CannotEncode:
        raise Misfit("the field is missing in the data, and the schema has no default for it") from None


def _union_writer(union: AvroType, arrow_type: pa.DataType, columns: AvroColumns) -> Writer:
    null = next((index for index, branch in enumerate(union.children) if branch.kind == "null"), None)
    column = columns.union_of(union)
    branches = [(index, branch) for index, branch in enumerate(union.children) if branch.kind != "null"]
    if not branches or pa.types.is_null(arrow_type):
        return BranchWriter(null, None, NullWriter())
    if column.is_struct and arrow_type.num_fields and pa.types.is_struct(arrow_type):
        members = [f"member{index}" for index in range(len(branches))]
        if [field.name for field in arrow_type] == members:
            made = [
                (index, writer_of(branch, arrow_type.field(member).type, columns))
                for (index, branch), member in zip(branches, members, strict=True)
            ]
            return MembersWriter(null, made)
    reasons = []
    for index, branch in _widest_first(branches):
        try:
            return BranchWriter(null, index, _inner_writer(branch, arrow_type, columns))
        except Misfit as error:
            reasons.append(error)
    raise reasons[0]


def _widest_first(branches: list[tuple[int, AvroType]]) -> list[tuple[int, AvroType]]:
    """Put long before int and double before float, because every value must fit the chosen branch."""
    narrow = {"int": 1, "float": 1}
    return sorted(branches, key=lambda each: narrow.get(each[1].kind, 0))
