"""Mutants of the BookKeeper client: random stories beside the model of bookies must find each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.ledger_story import random_steps, tell
from tests.support.planting import Plant, found_by_walk
from tests.support.stepped_loop import NothingHappens

from pybroker.bookkeeper import AppendOutcome, ledger_recovery, ledger_writer
from pybroker.bookkeeper.append_state import AppendState, PendingEntry
from pybroker.bookkeeper.bookie_connection import BookieConnection
from pybroker.bookkeeper.bookie_pool import BookiePool
from pybroker.bookkeeper.errors import BookKeeperError, NoSuchEntry, UnknownLedgerState
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from pybroker.bookkeeper.ledger_reader import LedgerReader
from pybroker.bookkeeper.ledger_recovery import LedgerRecovery
from pybroker.bookkeeper.ledger_writer import LedgerWriter, StoredEnsembles
from pybroker.bookkeeper.metadata_updates import Change, update_metadata
from pybroker.bookkeeper.protocol.entry_format import Entry, EntryFormat
from pybroker.bookkeeper.quorums import EntrySearch, FenceCoverage, Quorums, Verdict

SEEDS = range(1200)
STEP_COUNT = 60


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def _tell_all() -> None:
    for seed in SEEDS:
        tell(seed, random_steps(seed, STEP_COUNT))


def _confirms_with_one_ack_less(patch: pytest.MonkeyPatch) -> None:
    init = AppendState.__init__

    def fewer(self: AppendState, quorums: Quorums, *more: Any) -> None:
        init(self, quorums, *more)
        self._ack_quorum = max(1, self._ack_quorum - 1)

    patch.setattr(AppendState, "__init__", fewer)


def _confirms_out_of_order(patch: pytest.MonkeyPatch) -> None:
    def all_acked(self: AppendState) -> list[PendingEntry]:
        confirmed = [each for each in self.pending.values() if each.acked.bit_count() >= self._ack_quorum]
        for entry in confirmed:
            del self.pending[entry.entry_id]
            self.pending_bytes -= entry.size_bytes
            self.last_confirmed = max(self.last_confirmed, entry.entry_id)
        return confirmed

    patch.setattr(AppendState, "take_confirmed", all_acked)


def _confirms_during_a_change(patch: pytest.MonkeyPatch) -> None:
    take = AppendState.take_confirmed

    def always(self: AppendState) -> list[PendingEntry]:
        is_changing, self.is_changing = self.is_changing, False
        confirmed = take(self)
        self.is_changing = is_changing
        return confirmed

    def acked(self: AppendState, entry_id: int, index: int, bookie_id: str) -> bool:
        entry = self.pending.get(entry_id)
        if entry is None or self.ensemble[index] != bookie_id:
            return False
        entry.acked |= 1 << index
        return True

    patch.setattr(AppendState, "take_confirmed", always)
    patch.setattr(AppendState, "acked", acked)


def _keeps_acks_of_replaced_bookies(patch: pytest.MonkeyPatch) -> None:
    end = AppendState.end_change

    def keep(self: AppendState, ensemble: tuple[str, ...]) -> list[tuple[PendingEntry, int]]:
        acked = {each.entry_id: each.acked for each in self.pending.values()}
        again = end(self, ensemble)
        for entry in self.pending.values():
            entry.acked = acked[entry.entry_id]
        return again

    patch.setattr(AppendState, "end_change", keep)


def _takes_acks_of_replaced_bookies(patch: pytest.MonkeyPatch) -> None:
    acked = AppendState.acked
    patch.setattr(
        AppendState,
        "acked",
        lambda self, entry_id, index, _bookie_id: acked(self, entry_id, index, self.ensemble[index]),
    )


def _does_not_send_again(patch: pytest.MonkeyPatch) -> None:
    end = AppendState.end_change

    def nothing(self: AppendState, ensemble: tuple[str, ...]) -> list[tuple[PendingEntry, int]]:
        end(self, ensemble)
        return []

    patch.setattr(AppendState, "end_change", nothing)


def _segment_begins(offset: int) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        record = StoredEnsembles.record

        async def elsewhere(self: StoredEnsembles, first_entry_id: int, ensemble: tuple[str, ...]) -> None:
            least = self.known.metadata.last_segment.first_entry_id
            await record(self, max(least, first_entry_id + offset), ensemble)

        patch.setattr(StoredEnsembles, "record", elsewhere)

    return plant


def _ensemble_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    async def forget(self: StoredEnsembles, first_entry_id: int, ensemble: tuple[str, ...]) -> None:
        """Nothing."""

    patch.setattr(StoredEnsembles, "record", forget)


def _ensemble_changes_during_recovery(patch: pytest.MonkeyPatch) -> None:
    """The writer changes the metadata whatever their state is."""

    async def force(store: Any, ledger_id: int, known: Any, change: Change, *more: Any) -> Any:
        def forced(found: LedgerMetadata) -> LedgerMetadata | None:
            try:
                return change(found)
            except BookKeeperError:
                return change(known.metadata)

        return await update_metadata(store, ledger_id, known, forced, *more)

    patch.setattr(ledger_writer, "update_metadata", force)


def _recovery_changes_ensembles_of_others(patch: pytest.MonkeyPatch) -> None:
    """A recovery closes the ledger although another one was faster."""

    async def force(store: Any, ledger_id: int, known: Any, change: Change, *more: Any) -> Any:
        def forced(found: LedgerMetadata) -> LedgerMetadata | None:
            wanted = change(known.metadata)
            return wanted if wanted is not None and wanted.state.name == "CLOSED" else change(found)

        return await update_metadata(store, ledger_id, known, forced, *more)

    patch.setattr(ledger_recovery, "update_metadata", force)


def _recovery_does_not_fence(patch: pytest.MonkeyPatch) -> None:
    def plain(self: LedgerRecovery, bookie_id: str, entry_id: int) -> Any:
        return self._pool.connection(bookie_id).read(self._ledger_id, entry_id)

    patch.setattr(LedgerRecovery, "_fenced_read", plain)


def _recovery_is_content_with_one_bookie(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FenceCoverage, "is_covered", lambda self: bool(self._fenced))
    patch.setattr(EntrySearch, "__init__", _one_missing_is_enough(EntrySearch.__init__))


def _one_missing_is_enough(init: Callable[..., None]) -> Callable[..., None]:
    def fewer(self: EntrySearch, quorums: Quorums) -> None:
        init(self, quorums)
        self._missing_proof = 1

    return fewer


def _one_missing_decides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntrySearch, "__init__", _one_missing_is_enough(EntrySearch.__init__))

    def at_once(self: EntrySearch) -> Verdict:
        if self._is_found:
            return Verdict.FOUND
        return Verdict.MISSING if self._missing else Verdict.OPEN if self._unanswered else Verdict.UNDECIDED

    patch.setattr(EntrySearch, "verdict", property(at_once))


def _errors_prove_that_an_entry_is_missing(patch: pytest.MonkeyPatch) -> None:
    answered = EntrySearch.answered
    patch.setattr(EntrySearch, "answered", lambda self, _code: answered(self, NoSuchEntry.code))


def _lost_disk_proves_that_an_entry_is_missing(patch: pytest.MonkeyPatch) -> None:
    answered = EntrySearch.answered

    def missing(self: EntrySearch, code: int) -> None:
        answered(self, NoSuchEntry.code if code == UnknownLedgerState.code else code)

    patch.setattr(EntrySearch, "answered", missing)


def _recovery_ends_at_the_last_confirmed(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: LedgerRecovery, *_more: Any) -> None:
        """Find no entry."""

    patch.setattr(LedgerRecovery, "_search", nothing)


def _recovery_does_not_write_back(patch: pytest.MonkeyPatch) -> None:
    def skip(self: LedgerWriter, entry: Entry, stored: bytes) -> None:
        self._state.last_pushed = self._state.last_confirmed = entry.entry_id

    patch.setattr(LedgerWriter, "append_recovered", skip)


def _recovery_takes_entries_of_one_bookie_for_confirmed(patch: pytest.MonkeyPatch) -> None:
    fence = LedgerRecovery._fence

    async def later(self: LedgerRecovery, metadata: LedgerMetadata) -> int:
        return await fence(self, metadata) + 1

    patch.setattr(LedgerRecovery, "_fence", later)


def _recovery_records_no_ensembles(patch: pytest.MonkeyPatch) -> None:
    close = LedgerRecovery._close

    async def old(self: LedgerRecovery, known: Any, closed: LedgerMetadata) -> Any:
        return await close(self, known, replace(closed, segments=known.metadata.segments))

    patch.setattr(LedgerRecovery, "_close", old)


def _digests_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    unpack = EntryFormat.unpack

    def trust(self: EntryFormat, stored: bytes, entry_id: int | None) -> Entry:
        payload = stored[32 + self.digest_size :]
        digest = self._digest(stored[:32], payload)
        return unpack(self, stored[:32] + digest + payload, entry_id)

    patch.setattr(EntryFormat, "unpack", trust)


def _last_confirmed_is_the_last_sent(patch: pytest.MonkeyPatch) -> None:
    pack = EntryFormat.pack_add
    patch.setattr(
        EntryFormat,
        "pack_add",
        lambda self, entry_id, _confirmed, length, payload: pack(self, entry_id, entry_id - 1, length, payload),
    )


def _length_is_that_of_the_entry(patch: pytest.MonkeyPatch) -> None:
    pack = EntryFormat.pack_add
    patch.setattr(
        EntryFormat,
        "pack_add",
        lambda self, entry_id, confirmed, _length, payload: pack(self, entry_id, confirmed, len(payload), payload),
    )


def _all_failures_are_certain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppendState, "is_certainly_not_stored", lambda _self, _entry: True)


def _unknown_entries_are_stored(patch: pytest.MonkeyPatch) -> None:
    notify = LedgerWriter._notify

    def stored(self: LedgerWriter, entries: list[PendingEntry], outcome: Any, error: Any) -> None:
        if outcome is AppendOutcome.UNKNOWN and entries[0].acked:
            outcome, error = AppendOutcome.STORED, None
        notify(self, entries, outcome, error)

    patch.setattr(LedgerWriter, "_notify", stored)


def _reads_ask_one_replica(patch: pytest.MonkeyPatch) -> None:
    replicas = LedgerReader._replicas
    patch.setattr(LedgerReader, "_replicas", lambda self, entry_id: replicas(self, entry_id)[:1])


def _reads_use_the_last_ensemble(patch: pytest.MonkeyPatch) -> None:
    def last(self: LedgerMetadata, entry_id: int) -> Segment:
        return self.segments[-1]

    patch.setattr(LedgerMetadata, "segment_of", last)


def _readers_go_ahead_of_the_writer(patch: pytest.MonkeyPatch) -> None:
    confirmed = LedgerReader.confirmed
    patch.setattr(LedgerReader, "confirmed", lambda self, entry_id: confirmed(self, entry_id + 1))


def _timeouts_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BookieConnection, "_check_time", lambda self: self._arm() if self._adds else None)
    patch.setattr(LedgerWriter, "_check_time", lambda _self: None)


def _lost_connections_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BookieConnection, "_fail_all", lambda _self: None)
    patch.setattr(LedgerWriter, "_check_time", lambda _self: None)


def _closed_client_leaves_its_entries(patch: pytest.MonkeyPatch) -> None:
    close = BookiePool.close

    def forget(self: BookiePool) -> None:
        close(self)
        self.is_closing = False

    patch.setattr(BookiePool, "close", forget)


def _later_failures_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A bookie that fails while the ensemble changes is not replaced."""
    failed = AppendState.add_failed

    def forget(self: AppendState, *arguments: Any, is_refused: bool) -> bool:
        return not self.is_changing and failed(self, *arguments, is_refused=is_refused)

    patch.setattr(AppendState, "add_failed", forget)
    patch.setattr(LedgerWriter, "_check_time", lambda _self: None)


MUTANTS: Sequence[Plant] = (
    _closed_client_leaves_its_entries,
    _confirms_with_one_ack_less,
    _confirms_out_of_order,
    _confirms_during_a_change,
    _keeps_acks_of_replaced_bookies,
    _takes_acks_of_replaced_bookies,
    _does_not_send_again,
    _segment_begins(1),
    _segment_begins(-1),
    _ensemble_is_not_recorded,
    _ensemble_changes_during_recovery,
    _recovery_changes_ensembles_of_others,
    _recovery_does_not_fence,
    _recovery_is_content_with_one_bookie,
    _one_missing_decides,
    _errors_prove_that_an_entry_is_missing,
    _lost_disk_proves_that_an_entry_is_missing,
    _recovery_ends_at_the_last_confirmed,
    _recovery_does_not_write_back,
    _recovery_takes_entries_of_one_bookie_for_confirmed,
    _recovery_records_no_ensembles,
    _digests_are_not_checked,
    _last_confirmed_is_the_last_sent,
    _length_is_that_of_the_entry,
    _all_failures_are_certain,
    _unknown_entries_are_stored,
    _reads_ask_one_replica,
    _reads_use_the_last_ensemble,
    _readers_go_ahead_of_the_writer,
    _timeouts_are_not_noticed,
    _lost_connections_are_not_noticed,
    _later_failures_are_forgotten,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__.strip("_"))
def test_stories_find_the_mutant(mutant: Plant) -> None:
    with found_by_walk(mutant, BookKeeperError, NothingHappens, TimeoutError):
        _tell_all()
