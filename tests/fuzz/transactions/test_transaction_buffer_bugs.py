"""Bugs planted into the buffer of a topic's transactions: walks beside the ledger must find each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
from pyroaring import BitMap
from tests.support.planting import Plant, found_by_walk
from tests.unit.transactions.buffer_world import random_steps, walk

from pybroker.broker.transactions.transaction_buffer import OpenTransaction, TransactionBuffer
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId

SEEDS = range(40)
STEP_COUNT = 150


@pytest.mark.parametrize("seed", SEEDS)
def test_scripts_pass_without_mutant(seed: int) -> None:
    walk(random_steps(seed, STEP_COUNT))


def _hides_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    ended = TransactionBuffer.ended

    def hide(self: TransactionBuffer, txn: TxnId, action: TxnAction, marker: Position | None) -> None:
        ended(self, txn, TxnAction.ABORT, marker)

    patch.setattr(TransactionBuffer, "ended", hide)


def _shows_what_is_aborted(patch: pytest.MonkeyPatch) -> None:
    ended = TransactionBuffer.ended

    def show(self: TransactionBuffer, txn: TxnId, action: TxnAction, marker: Position | None) -> None:
        ended(self, txn, TxnAction.COMMIT, marker)

    patch.setattr(TransactionBuffer, "ended", show)


def _shows_markers(patch: pytest.MonkeyPatch) -> None:
    hide = TransactionBuffer._hide

    def only_messages(self: TransactionBuffer, ledger_id: int, bitmap: BitMap) -> None:
        if len(bitmap) > 1:
            hide(self, ledger_id, bitmap)

    patch.setattr(TransactionBuffer, "_hide", only_messages)


def _limit_of_the_youngest(patch: pytest.MonkeyPatch) -> None:
    def limit(self: TransactionBuffer) -> Position | None:
        return next(reversed(self.open.values())).first if self.open else None

    patch.setattr(TransactionBuffer, "limit", property(limit))


def _first_is_the_last_message(patch: pytest.MonkeyPatch) -> None:
    found = TransactionBuffer.found

    def later(self: TransactionBuffer, txn: TxnId, first: Position, entries: int, now_ms: int, owner: str) -> None:
        found(self, txn, first, entries, now_ms, owner)
        self.open[txn].first = first

    patch.setattr(TransactionBuffer, "found", later)


def _keeps_the_first_entry_of_a_run_only(patch: pytest.MonkeyPatch) -> None:
    found = TransactionBuffer.found

    def one(self: TransactionBuffer, txn: TxnId, first: Position, entries: int, now_ms: int, owner: str) -> None:
        found(self, txn, first, 1, now_ms, owner)
        self._reached(first, entries)

    patch.setattr(TransactionBuffer, "found", one)


def _keeps_the_last_ledger_only(patch: pytest.MonkeyPatch) -> None:
    found = TransactionBuffer.found

    def anew(self: TransactionBuffer, txn: TxnId, first: Position, entries: int, now_ms: int, owner: str) -> None:
        transaction = self.open.get(txn)
        if transaction is not None and first.ledger_id not in transaction.entries:
            transaction.entries = {}
        found(self, txn, first, entries, now_ms, owner)

    patch.setattr(TransactionBuffer, "found", anew)


def _takes_messages_behind_the_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "offered_end", lambda _self, _txn: None)


def _a_failed_marker_ends_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "end_failed", lambda _self, _txn: None)


def _forgets_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "note_ended", lambda _self, _txn: None)


def _knows_only_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "is_known", lambda self, txn: txn in self.open)


def _failed_messages_stay_on_their_way(patch: pytest.MonkeyPatch) -> None:
    failed = TransactionBuffer.failed

    def but_one(self: TransactionBuffer, txn: TxnId, entries: int) -> None:
        failed(self, txn, entries if self._in_flight[txn] > entries else entries - 1)

    patch.setattr(TransactionBuffer, "failed", but_one)


def _late_ones_are_named_once(patch: pytest.MonkeyPatch) -> None:
    raised = TransactionBuffer.raise_low_water_mark

    def once(self: TransactionBuffer, coordinator: int, least: int) -> list[TxnId]:
        is_known = least <= self.low_water_mark(coordinator)
        return [] if is_known else raised(self, coordinator, least)

    patch.setattr(TransactionBuffer, "raise_low_water_mark", once)


def _late_ones_on_their_way_are_missed(patch: pytest.MonkeyPatch) -> None:
    late = TransactionBuffer._late
    patch.setattr(TransactionBuffer, "_late", lambda self, *of: [txn for txn in late(self, *of) if txn in self.open])


def _late_ones_of_all_coordinators(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "low_water_mark", lambda self, _: max(self._low_water_marks.values(), default=0))


def _late_ones_stay_open_through_a_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "recovered", lambda _self: None)


def _the_mark_goes_down(patch: pytest.MonkeyPatch) -> None:
    raised = TransactionBuffer.raise_low_water_mark

    def lower(self: TransactionBuffer, coordinator: int, least: int) -> list[TxnId]:
        found = raised(self, coordinator, least)
        self._low_water_marks[coordinator] = least
        return found

    patch.setattr(TransactionBuffer, "raise_low_water_mark", lower)


def _restored(change: Callable[[TransactionBuffer], None]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        restore = TransactionBuffer.restore

        def changed(record: bytes, max_open: int = 0) -> TransactionBuffer:
            buffer = restore(record, max_open)
            change(buffer)
            return buffer

        patch.setattr(TransactionBuffer, "restore", staticmethod(changed))

    return plant


def _snapshot_without_ended(buffer: TransactionBuffer) -> None:
    buffer._ended = OrderedDict()


def _snapshot_without_hidden(buffer: TransactionBuffer) -> None:
    buffer.hidden = {}


def _snapshot_without_marks(buffer: TransactionBuffer) -> None:
    buffer._low_water_marks = {}


def _snapshot_without_open(buffer: TransactionBuffer) -> None:
    buffer.open = OrderedDict()


def _snapshot_in_another_order(buffer: TransactionBuffer) -> None:
    buffer.open = OrderedDict(sorted(buffer.open.items()))


def _snapshot_without_entries(buffer: TransactionBuffer) -> None:
    for txn, each in buffer.open.items():
        buffer.open[txn] = OpenTransaction(each.first, 0, "")


def _counts_messages_and_not_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        TransactionBuffer, "_is_full", lambda self: len(self.open) + sum(self._in_flight.values()) >= self.max_open
    )


def _has_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuffer, "_is_full", lambda _self: False)


def _forgets_a_ledger_that_is_there(patch: pytest.MonkeyPatch) -> None:
    forget = TransactionBuffer.forget_ledgers

    def too_many(self: TransactionBuffer, has_ledger: Callable[[int], bool]) -> None:
        forget(self, lambda ledger_id: has_ledger(ledger_id - 1) if ledger_id else has_ledger(0))

    patch.setattr(TransactionBuffer, "forget_ledgers", too_many)


BUGS = {
    plant.__name__.strip("_"): plant
    for plant in (
        _hides_what_is_committed,
        _shows_what_is_aborted,
        _shows_markers,
        _limit_of_the_youngest,
        _first_is_the_last_message,
        _keeps_the_first_entry_of_a_run_only,
        _keeps_the_last_ledger_only,
        _takes_messages_behind_the_marker,
        _a_failed_marker_ends_it,
        _forgets_what_has_ended,
        _knows_only_what_is_stored,
        _failed_messages_stay_on_their_way,
        _late_ones_are_named_once,
        _late_ones_on_their_way_are_missed,
        _late_ones_of_all_coordinators,
        _late_ones_stay_open_through_a_crash,
        _the_mark_goes_down,
        _counts_messages_and_not_transactions,
        _has_no_limit,
        _forgets_a_ledger_that_is_there,
    )
} | {
    change.__name__.strip("_"): _restored(change)
    for change in (
        _snapshot_without_ended,
        _snapshot_without_hidden,
        _snapshot_without_marks,
        _snapshot_without_open,
        _snapshot_in_another_order,
        _snapshot_without_entries,
    )
}


@pytest.mark.parametrize("plant", BUGS.values(), ids=list(BUGS))
def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant):
        _walk_all()


def _walk_all() -> None:
    for seed in SEEDS:
        walk(random_steps(seed, STEP_COUNT))
