"""Varints as protobuf writes and reads them."""

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES

from pybroker.errors import ProtocolViolation
from pybroker.wire.varint import decode, encode, skip_field

EDGES = [
    0,
    1,
    127,
    128,
    *(edge + step for bits in range(7, 64, 7) for edge in [1 << bits] for step in (-1, 0, 1)),
    (1 << 64) - 1,
]
values = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 29))


@EXAMPLES
@given(values)
def test_a_value_is_written_as_protobuf_writes_it_and_read_back(value: int) -> None:
    encoded = encode(value)
    assert encoded == _VarintBytes(value)
    assert decode(b"ab" + encoded + b"\xff", 2, 2 + len(encoded)) == (value, 2 + len(encoded))


@EXAMPLES
@given(st.integers(-(1 << 63), -1))
def test_a_negative_value_is_written_as_64_bits_of_twos_complement(value: int) -> None:
    assert encode(value) == _VarintBytes(value + (1 << 64))


def test_a_varint_may_be_longer_than_it_needs_to_be() -> None:
    assert decode(b"\x85\x80\x00", 0, 3) == (5, 3)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10 + b"\x01"])
def test_a_varint_without_an_end_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(data, 0, len(data))


def test_a_varint_must_end_before_its_message_does() -> None:
    with pytest.raises(ProtocolViolation):
        decode(b"\x80\x01", 0, 1)


@pytest.mark.parametrize(
    ("wire_type", "field"),
    [(0, b"\x96\x01"), (1, b"12345678"), (2, b"\x03abc"), (2, b"\x00"), (5, b"1234")],
)
def test_a_field_is_skipped_whole_or_refused(wire_type: int, field: bytes) -> None:
    data = b"?" + field + b"next"
    assert skip_field(data, 8 | wire_type, 1, len(data)) == 1 + len(field)
    with pytest.raises(ProtocolViolation):
        skip_field(data, 8 | wire_type, 1, len(field))


@pytest.mark.parametrize("wire_type", [3, 4, 6, 7])
def test_groups_and_unknown_wire_types_are_refused(wire_type: int) -> None:
    with pytest.raises(ProtocolViolation):
        skip_field(b"12345678", 8 | wire_type, 0, 8)
