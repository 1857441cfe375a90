"""The managed ledger model finds bugs: each one planted here, in storage or in the ledgers above it, makes a walk fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import pytest
from tests.fuzz import managed_ledger_faults
from tests.fuzz.ledger_list_bugs import entries_behind_a_gap_are_counted_as_if_it_were_none
from tests.fuzz.managed_ledger_scripts import OPENING, SCRIPTS, SEEDS_OF_A_SCRIPT, Step, draw_script, run_script
from tests.fuzz.test_managed_ledger_model import FUZZ_SEED
from tests.support import fault_disk
from tests.support.planting import Plant, found_by_walk

from pybroker.errors import LedgerFenced, StoreError
from pybroker.ledgers import live_ledger
from pybroker.ledgers.ledger_store import AppendRun, EntryRun, LedgerSummary
from pybroker.local_store import local_store
from pybroker.local_store.checkpoint.checkpointer import Checkpointer
from pybroker.local_store.checkpoint.cursor_registry import CursorRegistry
from pybroker.local_store.journal.journal_batcher import JournalBatcher
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.segments import segment_reader
from pybroker.managed_ledger import cursor_state, managed_ledger
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.info_records import InfoRecord
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.read_ahead import CursorReadAhead
from pybroker.managed_ledger.retention import KEEP_ALL, RetentionLimits
from pybroker.managed_ledger.rollover import PendingAppends, SplitContext
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.model.position import Position
from pybroker.storage_format import journal_layout

WALKS = 250
STEPS_OF_A_WALK = 45


# --- durability of entries ---------------------------------------------------------------------------------------------


def receipts_come_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    write_at = fault_disk.FaultFile.write_at
    patch.setattr(
        fault_disk.FaultFile,
        "write_at",
        lambda self, pieces, offset, durable: write_at(self, pieces, offset, durable=False),
    )


def refused_batches_get_receipts(patch: pytest.MonkeyPatch) -> None:
    completed = LocalStore._batch_completed

    def all_is_well(self: LocalStore, batch: Any) -> None:
        batch.runs += batch.refused_runs
        batch.refused_runs = []
        completed(self, batch)

    patch.setattr(LocalStore, "_batch_completed", all_is_well)


def the_journal_is_cut_one_batch_too_early(patch: pytest.MonkeyPatch) -> None:
    end = JournalBatcher._end

    def moves_the_mark(self: Any, noted: Any) -> Any:
        ended = end(self, noted)
        if ended.batch.mark is not None:
            ended.batch.mark.sequence += 1
        return ended

    patch.setattr(JournalBatcher, "_end", moves_the_mark)


def checkpoints_commit_before_segments_are_synced(patch: pytest.MonkeyPatch) -> None:
    sync = fault_disk.FaultFile.sync

    def not_of_segments(self: Any) -> None:
        if not self._path.name.endswith(".ledger"):
            sync(self)

    patch.setattr(fault_disk.FaultFile, "sync", not_of_segments)


def a_torn_tail_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_layout, "crc32c", lambda data, start=0, keep_lock=-1: 0)


def payloads_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    payloads = segment_reader.Window.payloads

    def all_are_right(self: Any, *args: Any) -> Any:
        found, is_right = payloads(self, *args)
        return found, [True] * len(is_right)

    patch.setattr(segment_reader.Window, "payloads", all_are_right)


def a_ledger_id_is_given_again_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    opened = local_store.open_store  # type: ignore[attr-defined]

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        result = opened(*args, **kwargs)
        result.reserved_ledger_ids = range(1, 1000)
        return result

    patch.setattr(local_store, "open_store", forgetful)


def recovery_counts_one_entry_less(patch: pytest.MonkeyPatch) -> None:
    recover = LocalStore.recover

    async def one_less(self: LocalStore, ledger_id: int) -> LedgerSummary:
        found = await recover(self, ledger_id)
        return LedgerSummary(ledger_id, max(0, found.entry_count - 1), found.message_count, found.size_bytes)

    patch.setattr(LocalStore, "recover", one_less)


def recovery_counts_messages_as_entries(patch: pytest.MonkeyPatch) -> None:
    recover = LocalStore.recover

    async def no_batches(self: LocalStore, ledger_id: int) -> LedgerSummary:
        found = await recover(self, ledger_id)
        return LedgerSummary(ledger_id, found.entry_count, found.entry_count, found.size_bytes)

    patch.setattr(LocalStore, "recover", no_batches)


async def _save_nothing() -> None:
    """It is as if it had been stored."""


def a_ledger_takes_appends_before_it_is_named(patch: pytest.MonkeyPatch) -> None:
    async def change(self: ManagedLedger) -> None:
        save, self.document.save = self.document.save, _save_nothing  # type: ignore[method-assign]
        try:
            await original(self)
        finally:
            self.document.save = save  # type: ignore[method-assign]

    original = ManagedLedger._change
    patch.setattr(ManagedLedger, "_change", change)


def unknown_appends_count_as_stored(patch: pytest.MonkeyPatch) -> None:
    def decide(self: PendingAppends, ledger_id: int, entry_count: int, split: SplitContext) -> list[AppendRun]:
        unknown, self._unknown = self._unknown, []
        return unknown

    patch.setattr(PendingAppends, "decide", decide)


def unknown_appends_are_always_appended_again(patch: pytest.MonkeyPatch) -> None:
    decide = PendingAppends.decide
    patch.setattr(PendingAppends, "decide", lambda self, ledger_id, count, split: decide(self, ledger_id, 0, split))


def later_appends_overtake_unknown_ones(patch: pytest.MonkeyPatch) -> None:
    decide = PendingAppends.decide

    def missing_last(self: PendingAppends, ledger_id: int, entry_count: int, split: SplitContext) -> list[AppendRun]:
        waiting, self._waiting = self._waiting, []
        stored = decide(self, ledger_id, entry_count, split)
        self._waiting[:0] = waiting
        return stored

    patch.setattr(PendingAppends, "decide", missing_last)


def appends_after_an_unknown_one_are_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingAppends, "has_unknown", property(lambda self: False))


def the_change_of_ledger_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    change = ManagedLedger._change

    async def once(self: ManagedLedger) -> None:
        try:
            await change(self)
        except StoreError as error:
            raise LedgerFenced(str(error)) from error

    patch.setattr(ManagedLedger, "_change", once)
    patch.setattr(ManagedLedger, "_go_on", lambda self: None)


def a_refusal_leaves_the_first_refused_entry(patch: pytest.MonkeyPatch) -> None:
    fence = live_ledger.LiveLedger.fence
    patch.setattr(live_ledger.LiveLedger, "fence", lambda self, first_refused_id: fence(self, first_refused_id + 1))


# --- reading -----------------------------------------------------------------------------------------------------------


def readers_see_what_is_not_durable_yet(patch: pytest.MonkeyPatch) -> None:
    def read_cached(self: ManagedLedger, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        return self._store.read_buffered(*position, max_entries, max_bytes)

    patch.setattr(ManagedLedger, "read_cached", read_cached)


def what_was_read_ahead_serves_other_ledgers(patch: pytest.MonkeyPatch) -> None:
    take = CursorReadAhead.take

    def of_any_ledger(self: CursorReadAhead, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        if self.held is not None:
            self.held = EntryRun(
                position.ledger_id, self.held.first_entry_id, self.held.payloads, self.held.message_counts
            )
        return take(self, position, max_entries, max_bytes)

    patch.setattr(CursorReadAhead, "take", of_any_ledger)


# --- cursors -----------------------------------------------------------------------------------------------------------


def an_ack_delta_is_lost(patch: pytest.MonkeyPatch) -> None:
    append_delta = LocalStore.append_delta
    numbers = count()

    def now_and_then(self: LocalStore, cursor_id: str, delta: bytes, done: Any) -> None:
        if next(numbers) % 5 == 4:
            self._loop.call_soon(done, None)
        else:
            append_delta(self, cursor_id, delta, done)

    patch.setattr(LocalStore, "append_delta", now_and_then)


def ack_receipts_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    changed = ManagedCursor.changed

    def at_once(self: ManagedCursor, done: Any) -> None:
        changed(self, None)
        if done is not None:
            done(None)

    patch.setattr(ManagedCursor, "changed", at_once)


def acks_without_receipt_are_never_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManagedLedger, "cursor_dirty", lambda self, cursor: None)


def a_snapshot_misses_holes(patch: pytest.MonkeyPatch) -> None:
    def snapshot(self: CursorState) -> bytes:
        holes, self.holes = self.holes, {}
        try:
            return whole(self)
        finally:
            self.holes = holes

    whole = CursorState.snapshot
    patch.setattr(CursorState, "snapshot", snapshot)


def a_snapshot_misses_batches(patch: pytest.MonkeyPatch) -> None:
    whole = cursor_state.encode_whole  # type: ignore[attr-defined]
    patch.setattr(cursor_state, "encode_whole", lambda mark, holes, sets, held: whole(mark, holes, {}, held))


def a_reset_is_undone_by_an_older_delta(patch: pytest.MonkeyPatch) -> None:
    # The reset is written as one more change, which can only move the mark-delete position forward.
    reset = CursorState.reset

    def as_a_change(self: CursorState, mark_delete_position: Position) -> None:
        reset(self, mark_delete_position)
        self._is_replaced = False

    patch.setattr(CursorState, "reset", as_a_change)


def a_checkpoint_forgets_a_delta(patch: pytest.MonkeyPatch) -> None:
    def stored(self: CursorRegistry, cursor_id: str, number: int) -> None:
        original(self, cursor_id, number + 1)

    original = CursorRegistry.stored
    patch.setattr(CursorRegistry, "stored", stored)
    patch.setattr(Checkpointer, "_cursor_change", _without_snapshot(Checkpointer._cursor_change))


def _without_snapshot(change: Callable[[Checkpointer, Any], Any]) -> Callable[[Checkpointer, Any], Any]:
    def of_records(self: Checkpointer, cursor: Any) -> Any:
        owner, cursor.owner = cursor.owner, None
        try:
            found = change(self, cursor)
            found.deltas = found.deltas[:-1]
            return found
        finally:
            cursor.owner = owner

    return of_records


def a_deletion_counts_as_stored_before_it_is(patch: pytest.MonkeyPatch) -> None:
    apply = CursorRegistry.apply

    def with_its_own_number(self: CursorRegistry, record: Any) -> None:
        apply(self, record)
        cursor = self._cursors[record.cursor_id]
        if cursor.deleted_number:
            cursor.deleted_number = record.number

    patch.setattr(CursorRegistry, "apply", with_its_own_number)


def a_deleted_cursor_is_named_for_ever(patch: pytest.MonkeyPatch) -> None:
    async def delete_cursor(self: ManagedLedgerFactory, managed: ManagedLedger, cursor: ManagedCursor) -> None:
        managed.cursors.pop(cursor.name, None)
        await cursor.close()

    patch.setattr(ManagedLedgerFactory, "delete_cursor", delete_cursor)


def partly_acknowledged_batches_count_as_whole(patch: pytest.MonkeyPatch) -> None:
    async def backlog_of(self: ManagedLedger, cursor: ManagedCursor) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(CursorState, "acknowledged_behind", lambda self: [])
            return await original(self, cursor)

    original = ManagedLedger.backlog_of
    patch.setattr(ManagedLedger, "backlog_of", backlog_of)


# --- what goes ---------------------------------------------------------------------------------------------------------


def trim_takes_one_ledger_too_many(patch: pytest.MonkeyPatch) -> None:
    removable = managed_ledger.removable  # type: ignore[attr-defined]

    def one_more(ledgers: LedgerList, current_ledger_id: int, *args: Any) -> list[int]:
        ids = removable(ledgers, current_ledger_id, *args)
        rows = [row for row in ledgers.rows() if row.ledger_id not in ids]
        if ids and len(rows) > 1 and rows[0].is_sealed and rows[0].ledger_id != current_ledger_id:
            ids.append(rows[0].ledger_id)
        return ids

    patch.setattr(managed_ledger, "removable", one_more)


def retention_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def of_none(ledgers: LedgerList, current: int, durable: Any, retention: RetentionLimits, *args: Any) -> Any:
        limits = retention if retention is KEEP_ALL else RetentionLimits()
        return removable(ledgers, current, durable, limits, *args)

    removable = managed_ledger.removable  # type: ignore[attr-defined]
    patch.setattr(managed_ledger, "removable", of_none)


def trim_keeps_what_retention_does_not(patch: pytest.MonkeyPatch) -> None:
    removable = managed_ledger.removable  # type: ignore[attr-defined]
    patch.setattr(managed_ledger, "removable", lambda *args: removable(*args)[:-1])


def files_go_before_metadata_forgets_them(patch: pytest.MonkeyPatch) -> None:
    trim = ManagedLedger._trim

    async def files_first(self: ManagedLedger, limits: RetentionLimits | None = None) -> list[int]:
        for ledger_id in self._removable(limits or self.retention):
            await self._store.delete_ledger(ledger_id)
        return await trim(self, limits)

    patch.setattr(ManagedLedger, "_trim", files_first)


def cursors_forget_ledgers_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    def told_first(self: ManagedLedger, retention: RetentionLimits) -> list[int]:
        ids = removable(self, retention)
        if ids:
            self.ledgers.remove(ids)
            for cursor in self.cursors.values():
                cursor.state.forget_ledgers(ids)
        return ids

    removable = ManagedLedger._removable
    patch.setattr(ManagedLedger, "_removable", told_first)


def a_ledger_goes_before_its_last_entry_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def nearly(self: CursorState, ledger_id: int) -> bool:
        holes = self.holes.get(ledger_id, ())
        return original(self, ledger_id) or len(holes) > self._ledgers.entry_count_of(ledger_id) // 2

    original = CursorState.has_deleted_all_of
    patch.setattr(CursorState, "has_deleted_all_of", nearly)


def one_cursor_decides_for_all(patch: pytest.MonkeyPatch) -> None:
    removable = managed_ledger.removable  # type: ignore[attr-defined]
    patch.setattr(
        managed_ledger,
        "removable",
        lambda ledgers, current, durable, *args: removable(ledgers, current, durable[:1], *args),
    )


def what_waits_keeps_all_that_follows(patch: pytest.MonkeyPatch) -> None:
    def oldest_first(ledgers: LedgerList, *args: Any) -> list[int]:
        ids = removable(ledgers, *args)
        first_kept = min(set(ledgers.ledger_ids()) - set(ids))
        return [ledger_id for ledger_id in ids if ledger_id < first_kept]

    removable = managed_ledger.removable  # type: ignore[attr-defined]
    patch.setattr(managed_ledger, "removable", oldest_first)


def a_restart_keeps_acknowledgements_of_trimmed_ledgers(patch: pytest.MonkeyPatch) -> None:
    def settle(self: CursorState) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LedgerList, "entry_count_of", lambda self, ledger_id: 1 << 30)
            original(self)

    original = CursorState._settle
    patch.setattr(CursorState, "_settle", settle)


def a_deleted_topic_leaves_its_metadata(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: Any, path: str, expected_version: int = -1) -> bool:
        return True

    patch.setattr(managed_ledger_faults.SlowMetadata, "delete", delete)


def a_deleted_topic_leaves_its_ledgers(patch: pytest.MonkeyPatch) -> None:
    async def delete_stored(self: ManagedLedgerFactory, info: Any, record: InfoRecord) -> None:
        await record.delete()

    patch.setattr(ManagedLedgerFactory, "_delete_stored", delete_stored)


def termination_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    async def terminate(self: ManagedLedger) -> Position:
        self.document.is_terminated = True
        await asyncio.sleep(1)  # on a loop without time: until all is answered
        return self.last_confirmed

    patch.setattr(ManagedLedger, "terminate", terminate)
    save = StoredInfo.save

    async def as_if_not(self: StoredInfo) -> None:
        was, self.is_terminated = self.is_terminated, False
        try:
            await save(self)
        finally:
            self.is_terminated = was

    patch.setattr(StoredInfo, "save", as_if_not)


def a_stop_forgets_that_a_checkpoint_gave_up(patch: pytest.MonkeyPatch) -> None:
    never = property(lambda self: False, lambda self, value: None)
    patch.setattr(Checkpointer, "_has_given_up", never, raising=False)


def publishing_does_not_resume(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManagedLedger, "_go_on", lambda self: None)


BUGS: Sequence[Plant] = [
    receipts_come_before_the_sync,
    refused_batches_get_receipts,
    the_journal_is_cut_one_batch_too_early,
    checkpoints_commit_before_segments_are_synced,
    a_torn_tail_is_not_cut,
    payloads_are_not_checked,
    a_ledger_id_is_given_again_after_a_crash,
    recovery_counts_one_entry_less,
    recovery_counts_messages_as_entries,
    a_ledger_takes_appends_before_it_is_named,
    unknown_appends_count_as_stored,
    unknown_appends_are_always_appended_again,
    later_appends_overtake_unknown_ones,
    appends_after_an_unknown_one_are_refused,
    the_change_of_ledger_is_not_repeated,
    a_refusal_leaves_the_first_refused_entry,
    readers_see_what_is_not_durable_yet,
    what_was_read_ahead_serves_other_ledgers,
    an_ack_delta_is_lost,
    ack_receipts_do_not_wait,
    acks_without_receipt_are_never_written,
    a_snapshot_misses_holes,
    a_snapshot_misses_batches,
    a_reset_is_undone_by_an_older_delta,
    a_checkpoint_forgets_a_delta,
    a_deletion_counts_as_stored_before_it_is,
    a_deleted_cursor_is_named_for_ever,
    partly_acknowledged_batches_count_as_whole,
    trim_takes_one_ledger_too_many,
    retention_is_ignored,
    trim_keeps_what_retention_does_not,
    files_go_before_metadata_forgets_them,
    cursors_forget_ledgers_before_it_is_stored,
    entries_behind_a_gap_are_counted_as_if_it_were_none,
    a_ledger_goes_before_its_last_entry_is_acknowledged,
    one_cursor_decides_for_all,
    what_waits_keeps_all_that_follows,
    a_restart_keeps_acknowledgements_of_trimmed_ledgers,
    a_deleted_topic_leaves_its_metadata,
    a_deleted_topic_leaves_its_ledgers,
    termination_is_not_stored,
    a_stop_forgets_that_a_checkpoint_gave_up,
    publishing_does_not_resume,
]


def attempts() -> Iterator[tuple[int, list[Step]]]:
    """A few walks, the scripts that are known to matter, and more walks."""
    walks = ((seed, draw_script(seed, STEPS_OF_A_WALK)) for seed in range(FUZZ_SEED, FUZZ_SEED + WALKS))
    yield from islice(walks, 15)
    for script in SCRIPTS.values():
        for seed in range(SEEDS_OF_A_SCRIPT):
            yield seed, [*OPENING, *script]
    yield from walks


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_walks_find_a_planted_bug(plant: Plant) -> None:
    with found_by_walk(plant, StoreError):
        for seed, script in attempts():
            run_script(seed, script)
