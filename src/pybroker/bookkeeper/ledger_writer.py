"""The writer of a ledger: sends entries to the bookies, replaces bookies that fail, and closes the ledger.

Operation: `append` is called on the event loop and never blocks. The listener is notified in the order of the appends.
An entry ends as stored; as fenced (certainly not stored); or as unknown, which only closing the ledger decides.

Failure: after an entry that was not stored, all later ones fail too, because ids have no gaps.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import Enum
from typing import Protocol

from pybroker.bookkeeper.append_state import AppendState, PendingEntry
from pybroker.bookkeeper.bookie_connection import BookieConnection
from pybroker.bookkeeper.bookie_pool import BookiePool
from pybroker.bookkeeper.change_pacing import ChangePacing
from pybroker.bookkeeper.errors import (
    OK,
    UNREACHABLE,
    AppendUnknown,
    BookieUnavailable,
    BookKeeperError,
    EntryTooLarge,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    ReadOnlyBookie,
    TooManyPending,
    TooManyRequests,
    WrongKey,
    error_of,
)
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from pybroker.bookkeeper.metadata_store import LedgerMetadataStore
from pybroker.bookkeeper.metadata_updates import VersionedMetadata, update_metadata
from pybroker.bookkeeper.options import NO_LIMIT, BookKeeperOptions
from pybroker.bookkeeper.protocol.entry_format import Entry, EntryFormat
from pybroker.bookkeeper.protocol.frames import RECOVERY_ADD, add_request
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

_REFUSALS = frozenset({LedgerFenced.code, ReadOnlyBookie.code, TooManyRequests.code, WrongKey.code})
"""Codes that prove that the bookie did not store the entry."""
_HEAD_BYTES = 100
"""Upper bound of the bytes of a frame in front of its payload."""
_CHECK_S = 1.0


class AppendOutcome(Enum):
    """The result of an append. An append that is refused raises an error instead."""

    STORED = "stored"
    FENCED = "fenced"
    """Not stored: the ledger takes no more entries."""
    UNKNOWN = "unknown"


class AppendListener(Protocol):
    """The owner of appended entries, which is notified of results."""

    def append_completed(
        self, first_entry_id: int, contexts: list[object], outcome: AppendOutcome, error: BookKeeperError | None
    ) -> None:
        """Handle the result of consecutive entries: `contexts[i]` belongs to entry `first_entry_id` + i. `error`: why
        the entries are not stored, or why this is unknown; None if they are stored. Called on the event loop, never
        inside of `append`.
        """


class EnsembleRecorder(ABC):
    """Stores a change of the ensemble. Called before an entry of the new ensemble is confirmed."""

    @abstractmethod
    async def record(self, first_entry_id: int, ensemble: tuple[str, ...]) -> None:
        """Store the new ensemble for entries from `first_entry_id` on. Raises LedgerFenced if another client recovers or
        has closed the ledger, MetadataConflict if another client has changed the last ensemble, and MetadataUnknown.
        """


class StoredEnsembles(EnsembleRecorder):
    """Stores ensembles in the metadata store, for the owner of an open ledger."""

    def __init__(
        self,
        store: LedgerMetadataStore,
        ledger_id: int,
        known: VersionedMetadata,
        options: BookKeeperOptions,
        clock: Clock,
    ) -> None:
        self.known = known
        self._store = store
        self._ledger_id = ledger_id
        self._options = options
        self._clock = clock

    async def record(self, first_entry_id: int, ensemble: tuple[str, ...]) -> None:
        own = self.known.metadata
        wanted = own.with_ensemble(first_entry_id, ensemble)

        def change(found: LedgerMetadata) -> LedgerMetadata | None:
            if found.state is not LedgerState.OPEN:
                raise LedgerFenced(
                    f"Another client is recovering ledger {self._ledger_id} (state {found.state.name}), so this "
                    "client cannot write to it any more."
                )
            if found.last_segment == wanted.last_segment:
                return None
            if found.last_segment != own.last_segment:
                raise MetadataConflict(f"Another client changed the last ensemble of ledger {self._ledger_id}.")
            return found.with_ensemble(first_entry_id, ensemble)

        self.known = await update_metadata(self._store, self._ledger_id, self.known, change, self._options, self._clock)


class LedgerWriter:
    """Appends entries to one ledger. `BookKeeperClient.close_ledger` closes it."""

    def __init__(
        self,
        format_: EntryFormat,
        metadata: LedgerMetadata,
        pool: BookiePool,
        recorder: EnsembleRecorder,
        options: BookKeeperOptions,
        tasks: TaskOwner,
        listener: AppendListener | None = None,
    ) -> None:
        self.ledger_id = format_.ledger_id
        self.ensemble_change_count = 0
        self._format = format_
        self._pool = pool
        self.recorder = recorder
        self._options = options
        self._tasks = tasks
        self._listener = listener if listener is not None else _Futures()
        first = metadata.last_segment.first_entry_id
        self._state = AppendState(metadata.quorums, metadata.last_segment.ensemble, first - 1, metadata.length_bytes)
        self._connections = [pool.connection(each) for each in self._state.ensemble]
        limits = (options.max_pending_entries, options.max_pending_bytes, options.max_bookie_bytes)
        self._has_limits = min(limits) < NO_LIMIT
        self._error: BookKeeperError | None = None
        self._is_changing_task_alive = False
        self._pacing = ChangePacing(options.reconnect_ms, options.max_change_pause_ms)
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._tick = 0
        self._loop = asyncio.get_running_loop()

    @property
    def last_confirmed(self) -> int:
        return self._state.last_confirmed

    @property
    def confirmed_length_bytes(self) -> int:
        return self._state.confirmed_length_bytes

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self._state.ensemble

    @property
    def error(self) -> BookKeeperError | None:
        """The error because of which the writer accepts no more entries; None if the writer has not ended."""
        return self._error

    def refusal(self) -> str | None:
        """Return the reason why `append` refuses entries now: a limit of the writer that is reached. None if no limit
        is reached.
        """
        state, options = self._state, self._options
        if len(state.pending) >= options.max_pending_entries or state.pending_bytes >= options.max_pending_bytes:
            return f"{len(state.pending)} entries ({state.pending_bytes} bytes) of ledger {self.ledger_id} are not confirmed"
        for connection in self._connections:
            if connection.unanswered_bytes >= options.max_bookie_bytes:
                return f"bookie {connection.bookie_id} has not responded to requests of {connection.unanswered_bytes} bytes"
        return None

    def append(self, payload: bytes, context: object = None) -> int:
        """Send an entry and return its id. The listener receives the result together with `context`. Raises
        TooManyPending, EntryTooLarge, LedgerClosed, LedgerFenced, or the error that ended the writer; the entry is then
        not sent.
        """
        if self._error is not None:
            raise self._error
        if self._has_limits and (reason := self.refusal()) is not None:
            raise TooManyPending(
                f"An entry cannot be added to ledger {self.ledger_id} now: {reason}. Append the entry again later."
            )
        if len(payload) + _HEAD_BYTES > self._options.max_frame_bytes:
            raise EntryTooLarge(
                f"An entry of {len(payload)} bytes cannot be added to ledger {self.ledger_id}: bookies accept at most "
                f"{self._options.max_frame_bytes - _HEAD_BYTES} bytes."
            )
        state = self._state
        entry_id = state.last_pushed + 1
        length_bytes = state.length_bytes + len(payload)
        frame = self._format.pack_add(entry_id, state.last_confirmed, length_bytes, payload)
        self._push(entry_id, frame, len(payload), length_bytes, context)
        return entry_id

    def append_recovered(self, entry: Entry, stored: bytes) -> None:
        """Send an entry that a recovery has read, with its original bytes `stored`."""
        frame = add_request(self._format.master_key, stored, RECOVERY_ADD)
        self._push(entry.entry_id, frame, len(entry.payload), entry.length_bytes, None)

    async def add(self, payload: bytes) -> int:
        """Append an entry and return its id when it is stored. Only for writers without a listener. Raises the errors
        of `append`, LedgerFenced (not stored) and AppendUnknown.
        """
        done: asyncio.Future[int] = self._loop.create_future()
        self.append(payload, done)
        return await done

    async def drained(self) -> None:
        await self._idle.wait()

    def end(self, error: BookKeeperError) -> None:
        """Refuse further entries with `error`. Entries in flight still get their results."""
        if self._error is None:
            self._error = error

    # The listener of connections

    def add_answered(self, entry_id: int, index: int, bookie_id: str, code: int) -> bool:
        if code == OK:
            return self._state.acked(entry_id, index, bookie_id)
        if code in {LedgerFenced.code, WrongKey.code}:
            self._state.add_failed(entry_id, index, bookie_id, is_refused=True)
            reason = " (wrong password, or no authentication)" if code == WrongKey.code else ""
            error = error_of(code, f"Bookie {bookie_id} refused ledger {self.ledger_id}{reason}")
            self._loop.call_soon(self._fail, error)
        elif self._state.add_failed(entry_id, index, bookie_id, is_refused=code in _REFUSALS):
            if code != UNREACHABLE:
                self._pool.failed(bookie_id)
            self._start_change()
        return False

    def confirm(self) -> None:
        confirmed = self._state.take_confirmed()
        if confirmed:
            if self._pacing.has_unlogged:
                self._log_change(self._pacing.confirmed())
            self._notify(confirmed, AppendOutcome.STORED, None)

    def _push(self, entry_id: int, frame: bytes, size_bytes: int, length_bytes: int, context: object) -> None:
        state = self._state
        if not state.pending:
            self._idle.clear()
        state.push(PendingEntry(entry_id, frame, size_bytes, length_bytes, context, self._tick))
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_S, self._check_time)
        if state.failed:
            self._start_change()
        connections, failed, ledger_id = self._connections, state.failed, self.ledger_id
        for index in state.write_sets[entry_id % len(connections)]:
            if index not in failed:
                connection = connections[index]
                if connection.is_closed:
                    connection = self._connection(index)
                connection.add(self, index, ledger_id, entry_id, frame)

    def _connection(self, index: int) -> BookieConnection:
        connection = self._connections[index]
        if connection.is_closed:
            connection = self._connections[index] = self._pool.connection(self._state.ensemble[index])
        return connection

    def _start_change(self) -> None:
        if self._pool.is_closing:
            self._loop.call_soon(self._fail, BookieUnavailable("The client is closed."))
        elif not self._is_changing_task_alive and self._error_ends_pending() is None:
            self._is_changing_task_alive = True
            self._tasks.start(self._change(), f"ensemble of ledger {self.ledger_id}")

    def _error_ends_pending(self) -> BookKeeperError | None:
        """The error that ended all pending entries; None while a writer that is being closed still waits for them."""
        return None if isinstance(self._error, LedgerClosed) else self._error

    async def _change(self) -> None:
        state = self._state
        try:
            while state.failed and state.pending and self._error_ends_pending() is None:
                if wait_ms := self._pacing.wait_ms(state.last_confirmed):
                    await asyncio.sleep(wait_ms / 1000)
                    self._pacing.waited()
                    continue
                state.begin_change()
                ensemble = self._replacement()
                await self.recorder.record(state.last_confirmed + 1, ensemble)
                again = state.end_change(ensemble)
                self.ensemble_change_count += 1
                self._pool.ensemble_change_count += 1
                if self._pacing.changed():
                    self._log_change(1)
                self._connections = [self._pool.connection(each) for each in ensemble]
                for entry, index in again:
                    if index not in state.failed:
                        self._connection(index).add(self, index, self.ledger_id, entry.entry_id, entry.frame)
                self.confirm()
        except BookKeeperError as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(BookieUnavailable("The client is closed."))
            raise
        finally:
            self._is_changing_task_alive = False

    def _log_change(self, changes: int) -> None:
        ensemble = ",".join(self._state.ensemble)
        logs.info("ledger.ensemble_changed", ledger=self.ledger_id, ensemble=ensemble, changes=changes)

    def _replacement(self) -> tuple[str, ...]:
        state = self._state
        chosen = iter(self._pool.choose(len(state.failed), state.ensemble))
        return tuple(next(chosen) if index in state.failed else each for index, each in enumerate(state.ensemble))

    def _fail(self, error: BookKeeperError) -> None:
        if self._error_ends_pending() is not None:
            return
        self._error = error
        state = self._state
        dropped = state.drop_pending()
        is_fenced = isinstance(error, LedgerFenced)
        while dropped:
            outcome = AppendOutcome.UNKNOWN
            if is_fenced and state.is_certainly_not_stored(dropped[0]):
                outcome = AppendOutcome.FENCED
            count = 1
            while count < len(dropped) and (outcome is AppendOutcome.FENCED) == (
                is_fenced and state.is_certainly_not_stored(dropped[count])
            ):
                count += 1
            self._notify(dropped[:count], outcome, error)
            del dropped[:count]

    def _notify(self, entries: list[PendingEntry], outcome: AppendOutcome, error: BookKeeperError | None) -> None:
        if not self._state.pending:
            self._idle.set()
        self._listener.append_completed(entries[0].entry_id, [each.context for each in entries], outcome, error)

    def _check_time(self) -> None:
        """End the writer if its oldest entry is not confirmed in time."""
        self._timer = None
        self._tick += 1
        oldest = next(iter(self._state.pending.values()), None)
        if oldest is None:
            return
        if (self._tick - oldest.tick - 1) * _CHECK_S * 1000 >= self._options.append_timeout_ms:
            self._fail(
                AppendUnknown(
                    f"Entry {oldest.entry_id} was not confirmed within {self._options.append_timeout_ms:g} ms."
                )
            )
        else:
            self._timer = self._loop.call_later(_CHECK_S, self._check_time)


class _Futures:
    """Completes the futures of `LedgerWriter.add`, which are the contexts of its entries."""

    def append_completed(
        self, first_entry_id: int, contexts: list[object], outcome: AppendOutcome, error: BookKeeperError | None
    ) -> None:
        for entry_id, done in enumerate(contexts, first_entry_id):
            if not isinstance(done, asyncio.Future) or done.done():
                continue
            if outcome is AppendOutcome.STORED:
                done.set_result(entry_id)
            elif outcome is AppendOutcome.FENCED:
                done.set_exception(LedgerFenced(f"Entry {entry_id} is not stored: {error}"))
            else:
                done.set_exception(AppendUnknown(f"It is unknown whether entry {entry_id} is stored: {error}"))
