"""Decoding of KEY_VALUE schemas into two columns, `key` and `value`.

INLINE: the payload holds both, each preceded by its length (4 bytes, big-endian; -1: null). SEPARATED: the key is the
message's key, and the payload is the value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pybroker.columns.message_columns import VALUE
from pybroker.columns.values.buffers import array_of, flags_of
from pybroker.columns.values.lanes import Failures, Lanes, Numbers, lanes_over, placed, slices
from pybroker.columns.values.payload_reader import PayloadReader, decoded
from pybroker.columns.values.value_schema import DecodedValues, SchemaInfo, ValueDecoder
from pybroker.schema.key_value import split_key_value
from pybroker.schema.schema_data import InvalidSchema, SchemaData, schema_type_named

KEY = "key"
ENCODING = "kv.encoding.type"


def sides(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    try:
        both = split_key_value(SchemaData(schema_type_named(info.type), info.data, dict(info.properties)))
    except InvalidSchema as error:
        raise ValueError(f"the KEY_VALUE schema is invalid: {error}") from None
    return tuple(SchemaInfo(side.type.name, side.data, side.properties) for side in (both.key, both.value))  # type: ignore[return-value]


def is_separated(info: SchemaInfo) -> bool:
    """Return whether a KEY_VALUE schema puts the key into the message's key. The default is INLINE, as in Pulsar's
    clients.
    """
    return info.properties.get(ENCODING, "INLINE").upper() == "SEPARATED"


class KeyValueDecoder(ValueDecoder):
    """Decodes KEY_VALUE messages into the columns `key` and `value`. A record becomes a struct."""

    def __init__(self, key: PayloadReader | None, value: PayloadReader | None, *, separated: bool) -> None:
        """`key` and `value` read the two columns; None for a column that is not requested."""
        self._sides = [(name, side) for name, side in ((KEY, key), (VALUE, value)) if side is not None]
        self._separated = separated
        self.fields = [pa.field(name, _side_type(side)) for name, side in self._sides]

    def decode(self, values: pa.BinaryArray, keys: pa.BinaryArray, schema_versions: pa.BinaryArray) -> DecodedValues:
        failures = Failures(len(values))
        payloads = {KEY: keys, VALUE: values} if self._separated else _split(values, failures)
        columns = [
            _one_column(side, payloads[name], side.read(payloads[name], schema_versions, failures))
            for name, side in self._sides
        ]
        return decoded(columns, failures)


def _side_type(side: PayloadReader) -> pa.DataType:
    return side.fields[0].type if _is_plain(side) else pa.struct(side.fields)


def _is_plain(side: PayloadReader) -> bool:
    return not side.is_record


def _one_column(side: PayloadReader, payloads: pa.BinaryArray, columns: list[pa.Array]) -> pa.Array:
    if _is_plain(side):
        return columns[0]
    if not columns:
        return pa.array([{} if payload.is_valid else None for payload in payloads], type=pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=side.fields, mask=payloads.is_null())


def _split(values: pa.BinaryArray, failures: Failures) -> dict[str, pa.BinaryArray]:
    rows = np.nonzero(flags_of(values.is_valid()))[0]
    lanes = lanes_over(values.drop_null(), rows, failures)
    both = {}
    for name in (KEY, VALUE):
        lengths = _read_length(lanes, name)
        piece = slices(lanes.data, lanes.places, np.maximum(lengths, 0))
        lanes.places = lanes.places + np.maximum(lengths, 0)
        present = np.nonzero(lengths >= 0)[0]
        both[name] = placed([(rows[present], piece.take(array_of(present)))], len(values), pa.binary())
    left = lanes.places < lanes.ends
    if left.any():
        lanes.fail(np.nonzero(left)[0], "bytes are left after its value")
    return both


def _read_length(lanes: Lanes, side: str) -> Numbers:
    lengths = lanes.read_fixed(4).view(">i4").ravel().astype(np.int64)
    wrong = (lengths < -1) | (lengths > lanes.ends - lanes.places)
    if wrong.any():
        lanes.fail(np.nonzero(wrong)[0], f"its {side} claims more bytes than the payload has")
        lengths[wrong] = -1
    return lengths
