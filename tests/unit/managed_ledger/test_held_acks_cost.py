"""Pending transaction acks: the cost of a command or a page does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.findings import at_once, counting_pauses
from tests.support.work import lines_run

from pybroker.managed_ledger.pending_transaction_acks import HOLDS_PER_STEP, PendingTransactionAcks
from pybroker.model import ack_set
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId

BATCH = 100
FEW, MANY = 200, 2000
OWN, OTHER = TxnId(0, 1_000_000), TxnId(1, 1)


class NeverIterated(dict[int, int]):
    """A table that is searched and never iterated."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all of them were examined")


def words_of(index: int) -> list[int]:
    """Only that message of a batch is acknowledged."""
    return ack_set.to_words(ack_set.full(BATCH) & ~(1 << index))


def with_batches(count: int) -> PendingTransactionAcks:
    """One transaction holds a message of each of `count` batches."""
    held = PendingTransactionAcks()
    for entry_id in range(count):
        held.hold(OWN, None, [], [(Position(1, entry_id), words_of(0), BATCH)])
    held._parts[1] = NeverIterated(held._parts[1])
    return held


@pytest.mark.parametrize("up_to", [Position(1, 10), Position(1, 50)], ids=["nothing new", "more"])
def test_cumulative_ack_in_transaction_costs_the_same_whatever_is_held(up_to: Position) -> None:
    lines = []
    for count in (FEW, MANY):
        held = with_batches(count)
        held.hold(OWN, Position(1, 10), [], [])
        lines.append(lines_run(lambda held=held: held.conflict(OWN, up_to, [], [])))  # type: ignore[misc]
        assert (held.conflict(OWN, up_to, [], []) is None) == (up_to > Position(1, 10))
        assert held.conflict(OTHER, up_to, [], []) is not None
    assert lines[0] == lines[1]


def test_individual_ack_in_transaction_costs_the_same_whatever_batches_are_held() -> None:
    lines = []
    for count in (FEW, MANY):
        held = with_batches(count)
        asked = [(1, [count + 1, count + 2])]
        lines.append(lines_run(lambda held=held, asked=asked: held.conflict(OTHER, None, asked, [])))  # type: ignore[misc]
        assert held.conflict(OTHER, None, [(1, [count + 1, 5, 3])], []) == Position(1, 3)
    assert lines[0] == lines[1]


def test_cumulative_ack_costs_the_same_with_many_open_transactions() -> None:
    lines = []
    for count in (FEW, MANY):
        held = PendingTransactionAcks()
        for least in range(1, count + 1):
            held.hold(TxnId(0, least), None, [(1, [count - least + 100])], [])
        lines.append(lines_run(lambda held=held: held.conflict(OWN, Position(1, 50), [], [])))  # type: ignore[misc]
        assert held.conflict(OWN, Position(1, 100), [], []) == Position(1, 100)
    assert lines[0] == lines[1]


def test_first_positions_of_transactions_stay_within_twice_their_number() -> None:
    held = PendingTransactionAcks()
    for entry_id in reversed(range(MANY)):
        held.hold(OWN, None, [(1, [entry_id])], [])
    assert len(held._firsts._heap) < 200
    for least in range(1, MANY):
        held.hold(TxnId(0, least), None, [(2, [least])], [])
    for least in range(1, MANY):
        held.end(TxnId(0, least))
    assert len(held._firsts._heap) < 200
    held.check_invariants()


def test_holders_of_a_batch_cost_the_same_with_many_open_transactions() -> None:
    lines = []
    asked = [(Position(9, 0), index) for index in range(BATCH)]
    for count in (FEW, MANY):
        held = PendingTransactionAcks()
        for least in range(1, count + 1):
            held.hold(TxnId(0, least), None, [], [(Position(1, least), words_of(0), BATCH)])
        for index in range(BATCH):
            held.hold(TxnId(1, index), None, [], [(Position(9, 0), words_of(index), BATCH)])
        lines.append(lines_run(lambda held=held: at_once(held.holders_of(asked))))  # type: ignore[misc]
        assert at_once(held.holders_of(asked)) == [TxnId(1, index) for index in range(BATCH)]
    assert lines[0] == lines[1]


def test_holders_of_whole_entries_are_found_in_one_pass_that_pauses() -> None:
    lines = []
    for count in (MANY, 2 * MANY):
        held = PendingTransactionAcks()
        for least in range(1, count + 1):
            held.hold(TxnId(0, least), None, [(1, [least])], [])
        asked = [(Position(1, least), 3) for least in (*range(count - BATCH, count + 1), count + 1)]
        lines.append(lines_run(lambda held=held, asked=asked: at_once(held.holders_of(asked))))  # type: ignore[misc]
        pauses, found = counting_pauses(held.holders_of(asked))
        assert found == [*(TxnId(0, least) for least in range(count - BATCH, count + 1)), None]
        assert pauses >= count // HOLDS_PER_STEP
    assert lines[1] < 2.1 * lines[0]
