"""The buffer of a topic's transactions against a model that keeps every entry in a list, through crashes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.transactions.buffer_world import ABORT, STEPS, TXNS, Step, walk

from pybroker.broker.transactions.transaction_buffer import MAX_ENDED_REMEMBERED, TransactionBuffer
from pybroker.errors import NotAllowedError, StoreError
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(TXNS), st.integers(1, 3)), max_size=60))
def test_transaction_buffer_equals_model_through_crashes(steps: list[Step]) -> None:
    walk(steps)


def test_a_message_that_is_not_stored_leaves_nothing_behind() -> None:
    buffer, txn = TransactionBuffer(), TxnId(0, 1)
    buffer.offered(txn, 3)
    assert buffer.is_known(txn)
    buffer.failed(txn, 3)
    assert not buffer.is_known(txn)
    assert buffer.limit is None


def test_between_the_marker_on_its_way_and_its_failure_no_message_is_taken() -> None:
    buffer, txn = TransactionBuffer(), TxnId(0, 1)
    buffer.found(txn, Position(0, 0), 1, 0, "p")
    buffer.offered_end(txn)
    with pytest.raises(NotAllowedError):
        buffer.require_open(txn)
    buffer.end_failed(txn)
    buffer.require_open(txn)


def test_ids_of_ended_transactions_are_forgotten_below_the_low_water_mark_and_beyond_a_bound() -> None:
    buffer = TransactionBuffer()
    for least in range(1, MAX_ENDED_REMEMBERED + 2):
        buffer.note_ended(TxnId(0, least))
    assert not buffer.has_ended(TxnId(0, 1))
    assert buffer.has_ended(TxnId(0, 2))
    size = len(buffer.snapshot())
    buffer.raise_low_water_mark(0, MAX_ENDED_REMEMBERED)
    assert buffer.has_ended(TxnId(0, 1))
    assert len(buffer.snapshot()) < size / 100


def test_the_low_water_mark_ends_what_is_open_and_older_oldest_first() -> None:
    buffer = TransactionBuffer()
    for entry_id, least in enumerate((3, 1, 5, 2)):
        buffer.found(TxnId(0, least), Position(0, entry_id), 1, 0, "p")
    assert buffer.raise_low_water_mark(0, 3) == [TxnId(0, 3), TxnId(0, 1), TxnId(0, 2)]
    buffer.offered_end(TxnId(0, 3))
    assert buffer.raise_low_water_mark(0, 2) == [TxnId(0, 1), TxnId(0, 2)], "until their markers are on their way"
    for least in (1, 2):
        buffer.offered_end(TxnId(0, least))
    assert buffer.raise_low_water_mark(0, 3) == []
    buffer.end_failed(TxnId(0, 1))
    assert buffer.raise_low_water_mark(0, 3) == [TxnId(0, 1)]
    assert buffer.raise_low_water_mark(1, 9) == []


def test_a_transaction_of_a_million_messages_and_100000_aborted_ones_take_little() -> None:
    buffer = TransactionBuffer()
    buffer.found(TxnId(0, 1), Position(0, 0), 1_000_000, 0, "p")
    assert len(buffer.snapshot()) < 1000
    buffer.ended(TxnId(0, 1), ABORT, Position(0, 1_000_000))
    entry_id = 0
    for least in range(2, 100_002):
        buffer.found(TxnId(0, least), Position(1, entry_id), 1, 0, "p")
        buffer.ended(TxnId(0, least), ABORT, Position(1, entry_id + 1))
        buffer.passed(Position(1, entry_id + 2), 1)
        entry_id += 3
    assert buffer.aborted_total == 100_001
    assert len(buffer.snapshot()) < 1_000_000
    buffer.forget_ledgers(lambda ledger_id: ledger_id > 1)
    assert not buffer.hidden


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_snapshot_is_refused(seed: int) -> None:
    buffer = TransactionBuffer()
    buffer.found(TxnId(0, 1), Position(0, 0), 10, 0, "p")
    buffer.ended(TxnId(0, 2), ABORT, Position(0, 11))
    record, chance = buffer.snapshot(), random.Random(seed)
    with pytest.raises(StoreError):
        TransactionBuffer.restore(record[: chance.randrange(len(record))])


def test_a_snapshot_of_a_newer_version_is_refused_by_its_version() -> None:
    record = bytearray(TransactionBuffer().snapshot())
    record[1] = 99
    with pytest.raises(StoreError, match="newer"):
        TransactionBuffer.restore(bytes(record))


def test_a_snapshot_says_what_has_become_of_a_transaction_since_the_last_one() -> None:
    buffer = TransactionBuffer()
    for least in (1, 2, 3):
        buffer.found(TxnId(0, least), Position(least % 2, least), 1, 0, "p")

    def stored() -> dict[TxnId, dict[int, list[int]]]:
        restored = TransactionBuffer.restore(buffer.snapshot())
        return {
            txn: {ledger_id: list(entries) for ledger_id, entries in each.entries.items()}
            for txn, each in restored.open.items()
        }

    assert stored() == {TxnId(0, 1): {1: [1]}, TxnId(0, 2): {0: [2]}, TxnId(0, 3): {1: [3]}}
    buffer.found(TxnId(0, 2), Position(1, 9), 2, 0, "p")
    buffer.ended(TxnId(0, 3), ABORT, Position(1, 11))
    assert stored() == {TxnId(0, 1): {1: [1]}, TxnId(0, 2): {0: [2], 1: [9, 10]}}
    buffer.forget_ledgers(lambda ledger_id: ledger_id == 1)
    assert stored() == {TxnId(0, 1): {1: [1]}, TxnId(0, 2): {1: [9, 10]}}
