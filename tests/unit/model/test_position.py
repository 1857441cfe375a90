"""Positions order like entries, and come from the wire's unsigned numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES

from pybroker.errors import ProtocolViolation
from pybroker.model.position import EARLIEST, LATEST, MAX_SIGNED_64, Position, from_wire

signed = st.integers(-(1 << 63), MAX_SIGNED_64)


@EXAMPLES
@given(signed, signed)
def test_signed_ids_survive_the_wire(ledger_id: int, entry_id: int) -> None:
    assert from_wire(ledger_id % (1 << 64), entry_id % (1 << 64)) == Position(ledger_id, entry_id)


def test_the_ends_of_a_topic_are_read_as_clients_write_them() -> None:
    assert from_wire((1 << 64) - 1, (1 << 64) - 1) == EARLIEST
    assert from_wire(MAX_SIGNED_64, MAX_SIGNED_64) == LATEST


@pytest.mark.parametrize("ids", [(-1, 0), (0, -1), (1 << 64, 0), (0, 1 << 64)])
def test_what_does_not_fit_the_field_is_refused(ids: tuple[int, int]) -> None:
    with pytest.raises(ProtocolViolation):
        from_wire(*ids)


def test_positions_order_by_ledger_and_then_by_entry() -> None:
    ordered = [EARLIEST, Position(3, -1), Position(3, 0), Position(3, 10), Position(4, -1), Position(12, 0), LATEST]
    shuffled = ordered[3:] + ordered[:3]
    assert sorted(shuffled) == ordered


def test_a_position_is_written_as_ledger_and_entry() -> None:
    assert str(Position(12, -1)) == "12:-1"
