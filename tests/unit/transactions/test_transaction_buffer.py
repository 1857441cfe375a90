"""The buffer of a topic's transactions against a model that keeps every entry in a list, through crashes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.broker.transactions.transaction_buffer import MAX_ENDED_REMEMBERED, TransactionBuffer
from pybroker.errors import NotAllowedError, StoreError
from pybroker.model.position import Position
from pybroker.model.transactions import TxnAction, TxnId

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TXNS = [TxnId(most, least) for most in (0, 1) for least in range(1, 5)]


@dataclass
class Stored:
    """One entry of the ledger, and what it is."""

    position: Position
    txn: TxnId | None
    ends: TxnAction | None = None


class Model:
    """The ledger as a list: what follows from it is looked up each time."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self.low = {0: 0, 1: 0}

    def next(self, is_new_ledger: bool) -> Position:
        if not self.log:
            return Position(0, 0)
        last = self.log[-1].position
        return Position(last.ledger_id + 1, 0) if is_new_ledger else Position(last.ledger_id, last.entry_id + 1)

    def end_of(self, txn: TxnId) -> TxnAction | None:
        return next((each.ends for each in self.log if each.txn == txn and each.ends is not None), None)

    def limit(self) -> Position | None:
        return next(
            (each.position for each in self.log if each.txn is not None and self.end_of(each.txn) is None), None
        )

    def hidden(self) -> set[Position]:
        return {
            each.position
            for each in self.log
            if each.ends is not None or (each.txn is not None and self.end_of(each.txn) is ABORT)
        }


def replay(buffer: TransactionBuffer, log: list[Stored]) -> None:
    """What recovery does with entries behind the snapshot."""
    for each in log:
        if each.position <= buffer.up_to:
            continue
        if each.txn is None:
            buffer.passed(each.position, 1)
        elif each.ends is not None:
            buffer.ended(each.txn, each.ends, each.position)
        else:
            buffer.found(each.txn, each.position, 1, 0, "p")


def hidden_of(buffer: TransactionBuffer) -> set[Position]:
    return {Position(ledger_id, entry_id) for ledger_id, bitmap in buffer.hidden.items() for entry_id in bitmap}


STEP = st.tuples(
    st.sampled_from(["send", "plain", "commit", "abort", "snapshot", "crash", "ledger"]), st.sampled_from(TXNS)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_what_readers_see_follows_from_the_ledger_alone_through_snapshots_and_crashes(
    steps: list[tuple[str, TxnId]],
) -> None:
    model, buffer, snapshot = Model(), TransactionBuffer(), TransactionBuffer().snapshot()
    is_new_ledger = False
    for step, txn in steps:
        position = model.next(is_new_ledger)
        if step == "send":
            try:
                buffer.require_open(txn)
            except NotAllowedError:
                assert model.end_of(txn) is not None, "an open transaction is refused"
                continue
            assert model.end_of(txn) is None, "an ended transaction is open again"
            buffer.offered(txn, 1)
            buffer.stored(txn, position, 1, 0, "p")
            model.log.append(Stored(position, txn))
            is_new_ledger = False
        elif step == "plain":
            buffer.passed(position, 1)
            model.log.append(Stored(position, None))
            is_new_ledger = False
        elif step in ("commit", "abort"):
            if not buffer.is_known(txn):
                continue
            action = COMMIT if step == "commit" else ABORT
            buffer.offered_end(txn)
            buffer.ended(txn, action, position)
            model.log.append(Stored(position, txn, action))
            is_new_ledger = False
        elif step == "snapshot":
            snapshot = buffer.snapshot()
        elif step == "ledger":
            is_new_ledger = bool(model.log)
        else:
            buffer = TransactionBuffer.restore(snapshot)
            replay(buffer, model.log)
        buffer.check_invariants()
        assert buffer.limit == model.limit()
        assert hidden_of(buffer) == model.hidden()


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
    assert buffer.raise_low_water_mark(0, 3) == []
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
