"""Held acknowledgements: walks beside a model of messages, what is stored of them, and what many of them cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.managed_ledger.held_walk import ALL, BATCH, ENTRIES, STEPS, TXNS, Step, ledger_list, walk

from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.pending_transaction_acks import PendingTransactionAcks
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId

STEP = st.tuples(st.sampled_from(STEPS), st.sampled_from(TXNS), st.sampled_from(ENTRIES), st.integers(1, ALL - 1))


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=50))
def test_pending_acks_equal_model_through_crashes(
    steps: list[Step],
) -> None:
    walk(steps)


def test_a_cursor_without_transactions_writes_the_records_of_before() -> None:
    state = CursorState(ledger_list(), Position(0, -1))
    state.acknowledge(0, [0])
    delta = state.take_delta()
    assert delta is not None
    assert delta[0] == state.snapshot()[0] == 1


def test_a_commit_and_what_it_acknowledges_are_one_record() -> None:
    state = CursorState(ledger_list(), Position(0, -1))
    state.held.hold(TXNS[0], None, [(0, [0])], [])
    state.held_changed()
    first = state.take_delta()
    hold = state.held.end(TXNS[0])
    assert hold is not None
    state.held_changed()
    state.acknowledge(0, [0])
    second = state.take_delta()
    assert first is not None
    assert second is not None
    restored = CursorState.restore(ledger_list(), Position(0, -1), None, [first])
    assert restored.held
    assert not restored.is_deleted(0, 0)
    restored = CursorState.restore(ledger_list(), Position(0, -1), None, [first, second])
    assert not restored.held
    assert restored.is_deleted(0, 0)


def test_ten_thousand_open_transactions_are_stored_and_ended_one_by_one() -> None:
    held = PendingTransactionAcks()
    for least in range(1, 10_001):
        held.hold(TxnId(0, least), None, [(0, [least])], [])
    again = PendingTransactionAcks()
    again.apply(held.whole())
    assert len(again.whole()) < 1_000_000
    for least in range(1, 10_001):
        assert again.conflict(TxnId(1, 1), None, [(0, [least])], []) == Position(0, least)
        assert again.end(TxnId(0, least)) is not None
    again.check_invariants()
    assert not again


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_record_of_which_a_part_is_missing_is_refused(cut: int) -> None:
    state = CursorState(ledger_list(), Position(0, -1))
    state.held.hold(TXNS[0], Position(0, 1), [(0, [3])], [(Position(2, 0), [1], BATCH)])
    record = state.snapshot()
    with pytest.raises(StoreError):
        CursorState.restore(ledger_list(), Position(0, -1), record[:-cut], [])
    with pytest.raises(StoreError, match="newer"):
        CursorRecord(b"\x09" + record[1:])
