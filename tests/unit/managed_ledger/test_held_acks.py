"""Held acknowledgements against a model of messages, each with its holder, through records, checkpoints and crashes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.held_acks import HeldAcks
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model import ack_set
from pybroker.model.position import Position
from pybroker.model.transactions import TxnId

BATCH = 3
"""Messages of each entry."""
LEDGERS = {0: 4, 2: 3}
ENTRIES = [Position(ledger_id, entry_id) for ledger_id, count in LEDGERS.items() for entry_id in range(count)]
TXNS = [TxnId(0, least) for least in range(1, 5)]
ALL = (1 << BATCH) - 1


def ledger_list() -> LedgerList:
    ledgers = LedgerList()
    for ledger_id, count in LEDGERS.items():
        ledgers.add_ledger(ledger_id)
        ledgers.added(ledger_id, count, count * BATCH, count)
    return ledgers


class Model:
    """Who holds each message, and which are acknowledged."""

    def __init__(self) -> None:
        self.holder: dict[tuple[Position, int], TxnId] = {}
        self.acked: set[tuple[Position, int]] = set()

    def wanted(self, position: Position, bits: int) -> set[tuple[Position, int]]:
        return {(position, index) for index in range(BATCH) if bits >> index & 1}

    def end(self, txn: TxnId, *, is_commit: bool) -> None:
        held = {message for message, holder in self.holder.items() if holder == txn}
        for message in held:
            del self.holder[message]
        if is_commit:
            self.acked |= held

    def acked_bits(self, position: Position) -> int:
        return sum(1 << index for index in range(BATCH) if (position, index) in self.acked)

    def held_bits(self, position: Position) -> int:
        return sum(1 << index for index in range(BATCH) if (position, index) in self.holder)


STEP = st.tuples(
    st.sampled_from(["whole", "part", "up_to", "commit", "abort", "checkpoint", "crash", "write"]),
    st.sampled_from(TXNS),
    st.sampled_from(ENTRIES),
    st.integers(1, ALL - 1),
)


class Walk:
    """A cursor's state beside the model, and what was stored of it."""

    def __init__(self) -> None:
        self.state = CursorState(ledger_list(), Position(0, -1))
        self.model = Model()
        self.snapshot: bytes | None = None
        self.deltas: list[bytes] = []
        self.ended: set[TxnId] = set()

    def take(self, step: str, txn: TxnId, position: Position, bits: int) -> None:
        if step in ("whole", "part", "up_to"):
            if txn not in self.ended:
                self.acknowledge(step, txn, position, bits)
        elif step in ("commit", "abort"):
            self.end(txn, is_commit=step == "commit")
        else:
            self.write()  # what was answered is written
            if step == "checkpoint":
                self.snapshot, self.deltas = self.state.snapshot(), []
            elif step == "crash":
                self.state = CursorState.restore(ledger_list(), Position(0, -1), self.snapshot, self.deltas)

    def write(self) -> None:
        delta = self.state.take_delta()
        if delta is not None:
            self.deltas.append(delta)

    def acknowledge(self, step: str, txn: TxnId, position: Position, bits: int) -> None:
        held, model = self.state.held, self.model
        up_to = position if step == "up_to" else None
        groups = [(position.ledger_id, [position.entry_id])] if step == "whole" else []
        parts = [(position, ack_set.to_words(ALL & ~bits), BATCH)] if step == "part" else []
        messages = model.wanted(position, bits if step == "part" else ALL)
        if up_to is not None:
            messages = {(each, index) for each in ENTRIES if each <= position for index in range(BATCH)}
        others = {model.holder.get(message) for message in messages} - {None, txn}
        if up_to is not None and held.cumulative not in (None, txn):
            others.add(held.cumulative)  # a second cumulative one is refused wherever it stands
        conflict = held.conflict(txn, up_to, groups, parts)
        assert (conflict is not None) == bool(others)
        if conflict is None:
            held.hold(txn, up_to, groups, parts)
            self.state.held_changed()
            model.holder.update(dict.fromkeys(messages, txn))

    def end(self, txn: TxnId, *, is_commit: bool) -> None:
        state = self.state
        hold = state.held.end(txn)
        if hold is None:
            return
        self.ended.add(txn)
        state.held_changed()
        self.model.end(txn, is_commit=is_commit)
        if is_commit:
            if hold.up_to is not None:
                state.mark_delete_to(hold.up_to)
            for ledger_id, ids in hold.groups:
                state.acknowledge(ledger_id, ids)
            for at, words, count in hold.left_parts:
                state.acknowledge_batch(at, words, count)
        self.write()

    def check(self) -> None:
        state, model = self.state, self.model
        state.held.check_invariants()
        state.check_invariants()
        for each in ENTRIES:
            is_whole = bool(state.held.among(each.ledger_id, [each.entry_id]))
            held = ALL if is_whole else state.held.parts_of(each.ledger_id).get(each.entry_id, 0)
            left = state.ack_set_of(*each)
            acked = ALL if state.is_deleted(*each) else 0 if left is None else ALL & ~ack_set.from_words(left)
            assert acked == model.acked_bits(each)
            assert held & ~acked == model.held_bits(each) & ~acked


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, max_size=50))
def test_each_message_is_held_by_one_transaction_and_acknowledged_by_its_commit_through_crashes(
    steps: list[tuple[str, TxnId, Position, int]],
) -> None:
    walk = Walk()
    for step in steps:
        walk.take(*step)
        walk.check()


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
    held = HeldAcks()
    for least in range(1, 10_001):
        held.hold(TxnId(0, least), None, [(0, [least])], [])
    again = HeldAcks()
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
