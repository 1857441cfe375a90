"""Bugs planted into what transactions hold of a cursor: walks beside a model of messages must find each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap
from tests.support.planting import Plant, found_by_walk
from tests.unit.managed_ledger.held_walk import random_steps, walk

from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.pending_transaction_acks import Hold, PendingTransactionAcks
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId

SEEDS = range(150)
STEP_COUNT = 80


def _walk_all() -> None:
    for seed in SEEDS:
        walk(random_steps(seed, STEP_COUNT))


def test_scripts_pass_without_mutant() -> None:
    _walk_all()


def _conflict(drop: str) -> Plant:
    """Of what is asked for, that part is not looked at."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        conflict = PendingTransactionAcks.conflict

        def partly(
            self: PendingTransactionAcks, txn: TxnId, up_to: Position | None, groups: Any, parts: Any
        ) -> Position | None:
            asked = {"up_to": up_to, "groups": groups, "parts": parts, drop: None if drop == "up_to" else ()}
            return conflict(self, txn, **asked)

        patch.setattr(PendingTransactionAcks, "conflict", partly)

    return plant


def _its_own_is_no_conflict(patch: pytest.MonkeyPatch) -> None:
    conflict = PendingTransactionAcks.conflict

    def of_others(
        self: PendingTransactionAcks, txn: TxnId, up_to: Position | None, groups: Any, parts: Any
    ) -> Position | None:
        found = conflict(self, txn, up_to, groups, parts)
        return None if found is not None and self.holder_of(found) == txn else found

    patch.setattr(PendingTransactionAcks, "conflict", of_others)


def _a_cumulative_one_passes_batches(patch: pytest.MonkeyPatch) -> None:
    def up_to_whole(self: PendingTransactionAcks, own: TxnId, up_to: Position) -> Position | None:
        for txn, other in self.open.items():
            for ledger_id, bitmap in other.entries.items():
                if txn != own and (ledger_id, bitmap.min()) <= up_to:
                    return Position(ledger_id, bitmap.min())
        return None

    patch.setattr(PendingTransactionAcks, "_held_by_others_up_to", up_to_whole)


def _a_whole_entry_passes_its_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingTransactionAcks, "_is_whole_of_other", lambda _self, _own, _at: False)


def _released_entries_stay_held(patch: pytest.MonkeyPatch) -> None:
    end = PendingTransactionAcks._end

    def keep(self: PendingTransactionAcks, txn: TxnId) -> Hold | None:
        entries = dict(self._entries)
        hold = end(self, txn)
        self._entries = entries
        return hold

    patch.setattr(PendingTransactionAcks, "_end", keep)


def _releases_what_others_hold_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    end = PendingTransactionAcks._end

    def release(self: PendingTransactionAcks, txn: TxnId) -> Hold | None:
        hold = end(self, txn)
        for position in hold.parts if hold is not None else ():
            self._parts.get(position.ledger_id, {}).pop(position.entry_id, None)
        return hold

    patch.setattr(PendingTransactionAcks, "_end", release)


def _cumulative_holder_stays(patch: pytest.MonkeyPatch) -> None:
    end = PendingTransactionAcks._end

    def keep(self: PendingTransactionAcks, txn: TxnId) -> Hold | None:
        cumulative = self.cumulative
        hold = end(self, txn)
        self.cumulative = cumulative
        return hold

    patch.setattr(PendingTransactionAcks, "_end", keep)


def _later_messages_of_a_batch_replace_earlier_ones(patch: pytest.MonkeyPatch) -> None:
    held = PendingTransactionAcks._hold

    def replace(self: PendingTransactionAcks, txn: TxnId, up_to: Position | None, bitmaps: Any, parts: Any) -> None:
        held(self, txn, up_to, bitmaps, parts)
        self.open[txn].parts.update({position: (bits, count) for position, bits, count in parts})

    patch.setattr(PendingTransactionAcks, "_hold", replace)


def _ends_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingTransactionAcks, "has_ended", PendingTransactionAcks._is_below_mark)


def _record_without(kind: int) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        take = PendingTransactionAcks.take_changes

        def without(self: PendingTransactionAcks) -> bytes:
            self._changes = [row for row in self._changes if row[0] != kind]
            return take(self)

        patch.setattr(PendingTransactionAcks, "take_changes", without)

    return plant


def _whole_without(kind: int) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        whole = PendingTransactionAcks.whole

        def without(self: PendingTransactionAcks) -> bytes:
            rows = msgspec.msgpack.decode(whole(self) or b"\x90")
            return msgspec.msgpack.encode([row for row in rows if row[0] != kind])

        patch.setattr(PendingTransactionAcks, "whole", without)

    return plant


def _record_loses(index: int, empty: object) -> Plant:
    """Entries, messages of batches, or the cumulative one of a stored hold."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        apply = PendingTransactionAcks.apply

        def partly(self: PendingTransactionAcks, record: bytes) -> None:
            rows = msgspec.msgpack.decode(record)
            for row in rows:
                if row[0] == 0:
                    row[index] = empty
            apply(self, msgspec.msgpack.encode(rows))

        patch.setattr(PendingTransactionAcks, "apply", partly)

    return plant


def _late_ones_stay_held_through_a_crash(patch: pytest.MonkeyPatch) -> None:
    raised = PendingTransactionAcks.raise_low_water_mark
    found = PendingTransactionAcks._raise

    def named(self: PendingTransactionAcks, coordinator: int, least: int) -> list[TxnId]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PendingTransactionAcks, "_raise", found)
            return raised(self, coordinator, least)

    def silent(self: PendingTransactionAcks, coordinator: int, least: int) -> list[TxnId]:
        found(self, coordinator, least)
        return []

    patch.setattr(PendingTransactionAcks, "raise_low_water_mark", named)
    patch.setattr(PendingTransactionAcks, "_raise", silent)


def _late_ones_of_all_coordinators(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PendingTransactionAcks,
        "_is_below_mark",
        lambda self, txn: txn.least <= max(self._low_water_marks.values(), default=0),
    )


def _a_seek_keeps_what_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingTransactionAcks, "clear", lambda _self: None)


def _a_seek_ends_what_it_lets_go(patch: pytest.MonkeyPatch) -> None:
    def clear(self: PendingTransactionAcks) -> None:
        for txn in list(self.open):
            self._end(txn)

    patch.setattr(PendingTransactionAcks, "clear", clear)


def _a_lost_record_is_not_made_up_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CursorState, "forget_deltas", lambda _self: None)


def _reads_see_one_ledger_of_a_cumulative_one(patch: pytest.MonkeyPatch) -> None:
    among = PendingTransactionAcks.among

    def only_the_last(self: PendingTransactionAcks, ledger_id: int, entry_ids: Sequence[int]) -> BitMap:
        up_to = self.up_to
        if up_to is not None and ledger_id < up_to.ledger_id:
            return BitMap(entry_ids) & self._entries.get(ledger_id, BitMap())
        return among(self, ledger_id, entry_ids)

    patch.setattr(PendingTransactionAcks, "among", only_the_last)


def _reads_see_no_batches(patch: pytest.MonkeyPatch) -> None:
    def parts_of(_self: PendingTransactionAcks, _ledger_id: int) -> Mapping[int, int]:
        return {}

    patch.setattr(PendingTransactionAcks, "parts_of", parts_of)


BUGS: dict[str, Plant] = {
    plant.__name__.strip("_"): plant
    for plant in (
        _its_own_is_no_conflict,
        _a_cumulative_one_passes_batches,
        _a_whole_entry_passes_its_messages,
        _released_entries_stay_held,
        _releases_what_others_hold_of_a_batch,
        _cumulative_holder_stays,
        _later_messages_of_a_batch_replace_earlier_ones,
        _ends_are_forgotten,
        _late_ones_stay_held_through_a_crash,
        _late_ones_of_all_coordinators,
        _a_seek_keeps_what_is_held,
        _a_seek_ends_what_it_lets_go,
        _a_lost_record_is_not_made_up_for,
        _reads_see_one_ledger_of_a_cumulative_one,
        _reads_see_no_batches,
    )
} | {
    "conflict_of_cumulative_ones_is_missed": _conflict("up_to"),
    "conflict_of_entries_is_missed": _conflict("groups"),
    "conflict_of_batches_is_missed": _conflict("parts"),
    "holds_are_not_recorded": _record_without(0),
    "ends_are_not_recorded": _record_without(1),
    "marks_are_not_recorded": _record_without(2),
    "checkpoints_without_holds": _whole_without(0),
    "checkpoints_without_ends": _whole_without(1),
    "checkpoints_without_marks": _whole_without(2),
    "entries_are_not_restored": _record_loses(3, []),
    "batches_are_not_restored": _record_loses(4, []),
    "cumulative_ones_are_not_restored": _record_loses(5, None),
}


@pytest.mark.parametrize("plant", BUGS.values(), ids=list(BUGS))
def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant, KeyError):
        _walk_all()
