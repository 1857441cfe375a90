"""The managed ledger: the endless stream of entries of one topic, stored in numbered ledgers. Append, read and trim.

Operation: readers see entries after `append_completed`, when they are durable, in the order of their positions. The
next ledger is created in the background before the current one is full. The change to it has three steps: the current
ledger is sealed, the list of ledgers is stored with the sealed and the next ledger, and appends continue in the next
ledger. So the list in the metadata store never contains two open ledgers. Appends wait during the change
(`PendingAppends`).

`trim` deletes whole ledgers: first from the list in the metadata store, then from the list in memory and the cursors,
then from the cache and the store.

Concurrency: changes of the list of ledgers run one at a time under `_changing`, and never beside `close`.

Failure: when the store refuses an append, all later appends to that ledger are refused too, until the change to the
next ledger is complete. When it is unknown whether an append is stored, that append and all later ones wait for the
change. A change that fails is repeated.

Invariants: `last_confirmed` never moves back; entry ids of a ledger have no gaps; the ledger list in the metadata store
contains a ledger from before its first append until it is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Hashable, Mapping

from pybroker.errors import AppendUnknown, LedgerFenced, LedgerTerminated, NoSuchLedger, StorageFull, StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, EntryRun, LedgerPurpose, LedgerSummary
from pybroker.managed_ledger.cursor_backlog import Backlog, count_backlog
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.max_read_position import ReadLimit
from pybroker.managed_ledger.publish_time_search import PublishTimes
from pybroker.managed_ledger.read_ahead import LEAST_READ_BYTES, ReadAhead
from pybroker.managed_ledger.retention import KEEP_ALL, RetentionLimits, removable
from pybroker.managed_ledger.rollover import PREPARE_AT, PendingAppends, RolloverStep, rollover_step
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.model.counters import LedgerCounters
from pybroker.model.position import Position
from pybroker.runtime import logs

CHANGE_RETRY_MS = 200
"""The pause after a failed creation of the next ledger, and after a failed change to it."""
NO_LEDGER = -1
"""The ledger of an append that waits for the next ledger."""


class ManagedLedger(AppendListener):
    """The managed ledger of one topic, owned by the factory."""

    def __init__(
        self,
        resources: LedgerResources,
        document: StoredInfo,
        ledger_id: int,
        closed: Callable[[ManagedLedger], None],
    ) -> None:
        """`ledger_id` is one of the listed ledgers. It is new and empty, or, if the managed ledger is terminated,
        contains the last entry. `closed` is called when the managed ledger may be opened again.
        """
        self.name = document.path
        self.document = document
        self.ledgers = document.ledgers
        self.cursors: dict[str, ManagedCursor] = {}
        self.retention: RetentionLimits = KEEP_ALL
        """Set by the topic; until then nothing is trimmed."""
        self.held_from: Callable[[], int | None] = lambda: None
        """Returns the first ledger that readers hold by a lease; set by the topic."""
        self.is_write_failed = self.is_closed = False
        self.pending_entries = self.entries_added_total = self.bytes_added_total = 0
        self.counters = LedgerCounters()
        self.compacted_drops = 0
        """Number of dropped compacted views. A compaction that began before the last drop must not become the view."""
        self.read_limit = ReadLimit()
        self.memory = resources.memory
        self.clock = resources.clock
        self.publish_times = PublishTimes(self.ledgers, resources.store, self.publish_time_of)
        self._resources = resources
        self._closed = closed
        self._store = resources.store
        self._cache = resources.cache
        document.when_fenced = self._fenced
        self._listener: ManagedLedgerListener | None = None
        self._ledger_id = ledger_id
        self._next_entry_id = 0
        self._ledger_bytes = 0
        self._ledger_opened_ms = self._last_append_ms = resources.clock.monotonic_ms()
        self._prepare_at_entries = int(resources.limits.max_entries_per_ledger * PREPARE_AT)
        self._prepare_at_bytes = int(resources.limits.max_bytes_per_ledger * PREPARE_AT)
        self._next_ledger_id: int | None = None  # exists in the store, and is empty
        self.is_changing_ledger = False
        """Whether appends wait for the next ledger."""
        self.change_error = ""
        """The error of the last attempt, while the change is repeated."""
        self._has_ended = False
        """Whether `close` is complete: no later seal decides an unknown append."""
        self.changing_since_ms = 0.0
        """The start of the last change to the next ledger, by the monotonic clock."""
        self.pending_appends = PendingAppends()
        self._changing = asyncio.Lock()
        self.read_ahead = ReadAhead(resources, self.read_if_there)
        self._is_preparing = self._is_trim_due = False
        self._prepare_not_before_ms = 0.0

    def listen(self, listener: ManagedLedgerListener) -> None:
        self._listener = listener
        if self.document.is_fenced:
            self._resources.tasks.start(self._tell_fenced(listener), f"fence {self.name}")

    async def _tell_fenced(self, listener: ManagedLedgerListener) -> None:
        try:
            self.document.require_owned()
        except LedgerFenced as error:
            listener.fenced(error)

    def _fenced(self, error: LedgerFenced) -> None:
        """Report that another process is the owner. Pending appends complete, because their ledger is in the stored
        list.
        """
        self.is_write_failed = True
        if self._listener is not None:
            self._listener.fenced(error)

    # --- metadata ------------------------------------------------------------------------------------------

    @property
    def created_ms(self) -> int:
        return self.document.created_ms

    @property
    def properties(self) -> Mapping[str, str]:
        return self.document.properties

    @property
    def is_terminated(self) -> bool:
        return self.document.is_terminated

    @property
    def compacted(self) -> CompactedInfo | None:
        return self.document.compacted

    # --- positions ---------------------------------------------------------------------------------------------------

    @property
    def current_ledger_id(self) -> int:
        return self._ledger_id

    @property
    def last_confirmed(self) -> Position:
        """The position of the last durable entry, even if open transactions hide it; the position before the first
        entry if there is none.
        """
        return self.ledgers.last_position

    @property
    def size_bytes(self) -> int:
        return self.ledgers.size_bytes

    @property
    def copy_count(self) -> int:
        return self._store.copy_count

    def message_count_at_hand(self, position: Position) -> int:
        """Return the number of messages in the entry at `position` if it is in memory, else 0."""
        if not self.ledgers.has_entry(position):
            return 0
        run = self.read_cached(position, 1, 0)
        return 0 if run is None else run.message_counts[0]

    def publish_time_at_hand(self, position: Position) -> int | None:
        """Return the publish time of the entry at `position` in milliseconds since 1970 if it is in memory, else None."""
        run = self.read_cached(position, 1, 0) if self.ledgers.has_entry(position) else None
        return None if run is None else self._resources.publish_time_of(run.payloads[0])

    async def publish_time_of(self, position: Position) -> int:
        """Return the publish time of the entry at `position` in milliseconds since 1970, by the client's clock. Raises
        StoreError.
        """
        run = self.read_cached(position, 1, 0) if self.ledgers.has_entry(position) else None
        if run is None:
            run = await self.read(position, 1, 0)
        return self._resources.publish_time_of(run.payloads[0])

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        """Return the position of the first entry that was published at `publish_time_ms` (milliseconds since 1970) or
        later; the position after the last entry if there is none. Raises StoreError.

        If publish times do not increase from entry to entry, the search may skip this entry and return a later
        position.
        """
        return await self.publish_times.first_published_at(publish_time_ms, self.ledgers.first_position)

    async def backlog_of(self, cursor: ManagedCursor) -> Backlog:
        return await count_backlog(self.ledgers, self._store, cursor.state)

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(
        self,
        payloads: list[bytes],
        message_counts: list[int],
        size_bytes: int,
        context: object,
        now_ms: float | None = None,
    ) -> None:
        """Append `payloads`, with `size_bytes` in total, as entries. The listener is notified, with `context`, when they
        are durable or have failed. `now_ms`: the time of the monotonic clock, if the caller has already read it.

        Raises LedgerTerminated and StorageFull. Raises LedgerFenced if the managed ledger is closed, if another process
        owns it, or if an earlier write failed and the next ledger is not ready yet.
        """
        if self.is_closed or self.is_write_failed or self.document.is_terminated:
            raise self._refusal()
        count = len(payloads)
        if self.is_changing_ledger:
            self.pending_appends.wait(AppendRun(self, NO_LEDGER, 0, payloads, message_counts, size_bytes, context))
            self.pending_entries += count
            return
        run = AppendRun(self, self._ledger_id, self._next_entry_id, payloads, message_counts, size_bytes, context)
        self._store.append(run)  # first: without space it raises
        self._next_entry_id += count
        self._ledger_bytes += size_bytes
        self.pending_entries += count
        if now_ms is None:
            now_ms = self._resources.clock.monotonic_ms()
        self._last_append_ms = now_ms
        if (
            self._next_entry_id >= self._prepare_at_entries
            or self._ledger_bytes >= self._prepare_at_bytes
            or now_ms - self._ledger_opened_ms >= self._resources.limits.max_rollover_ms
        ):
            self._roll_if_due(now_ms)

    def _refusal(self) -> StoreError:
        if self.document.is_terminated:
            return LedgerTerminated(f"{self.name} is terminated")
        self.document.require_owned()
        self._go_on()
        reason = self._store.refusal()
        return (
            StorageFull(reason)
            if reason
            else LedgerFenced(f"managed ledger {self.name} cannot be written now, try again")
        )

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        listener = self._listener
        assert listener is not None
        if error is not None:
            self._append_failed(runs, error)
            return
        entries = 0
        keep = bool(self.cursors)
        for run in runs:
            count = len(run.payloads)
            entries += count
            self.ledgers.added(run.ledger_id, count, run.message_count, run.size_bytes)
            self.bytes_added_total += run.size_bytes
            if keep:
                self._resources.keep_cached(run)
        self.pending_entries -= entries
        self.entries_added_total += entries
        listener.entries_added(runs)
        if self.is_write_failed:
            self._go_on()

    def _append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        is_unknown = isinstance(error, AppendUnknown)
        is_behind_unknown = self.pending_appends.has_unknown and isinstance(error, LedgerFenced)
        if (is_unknown or is_behind_unknown) and not self._has_ended:
            if is_unknown:
                logs.warning("append.unknown", managed_ledger=self.name, ledger_id=self._ledger_id, error=str(error))
            self.pending_appends.add_unknown(runs)
            self._change_ledger()
            return
        self._write_failed(runs, error)
        self._refused(runs, error)
        self._go_on()

    def _refused(self, runs: list[AppendRun], error: StoreError) -> None:
        if runs:
            assert self._listener is not None
            self.pending_entries -= sum(len(run.payloads) for run in runs)
            self._listener.append_failed(runs, error)

    def _write_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        if self.is_closed or self.document.is_terminated or all(run.ledger_id != self._ledger_id for run in runs):
            return  # The ledger accepts no more appends anyway.
        if not self.is_write_failed:
            logs.error("append.failed", managed_ledger=self.name, ledger_id=self._ledger_id, error=str(error))
        self.is_write_failed = True

    def _go_on(self) -> None:
        if self.is_write_failed and not self.is_closed and not self.document.is_fenced:
            if self._next_ledger_id is None:
                self._prepare()
            else:
                self._change_ledger()

    # --- the next ledger ---------------------------------------------------------------------------------------------

    def roll_if_old(self) -> None:
        if self.is_closed or self.document.is_terminated:
            return
        self._go_on()
        if self._next_entry_id and not self.is_write_failed and not self.is_changing_ledger:
            self._roll_if_due(self._resources.clock.monotonic_ms())

    def _roll_if_due(self, now_ms: float) -> None:
        """Begin the next ledger if a limit is reached. The current ledger must have entries."""
        step = rollover_step(
            self._resources.limits,
            self._next_entry_id,
            self._ledger_bytes,
            now_ms - self._ledger_opened_ms,
            now_ms - self._last_append_ms,
            frees_space=self._store.refusal() is not None and self._is_acknowledged(),
        )
        if self._next_ledger_id is None:
            if step is not RolloverStep.STAY:
                self._prepare()
        elif step is RolloverStep.SWITCH:
            self._change_ledger()

    def _is_acknowledged(self) -> bool:
        durable = (cursor.state for cursor in self.cursors.values() if cursor.is_durable)
        return not self.pending_entries and all(state.has_deleted_all_of(self._ledger_id) for state in durable)

    def _prepare(self) -> None:
        is_too_soon = self._resources.clock.monotonic_ms() < self._prepare_not_before_ms
        if not (self._is_preparing or self.is_closed or is_too_soon):
            self._is_preparing = True
            self._resources.tasks.start(self._make_next(), f"prepare {self.name}")

    async def _make_next(self) -> None:
        try:
            async with self._changing:
                if self.is_closed or self.document.is_terminated or self._next_ledger_id is not None:
                    return
                self._next_ledger_id = await self._store.create_ledger(LedgerPurpose.ENTRIES, self.name)
        except StoreError as error:
            self._prepare_not_before_ms = self._resources.clock.monotonic_ms() + CHANGE_RETRY_MS
            logs.error("ledger.rollover_failed", managed_ledger=self.name, error=str(error))
            return
        finally:
            self._is_preparing = False
        if self.is_write_failed:
            self._go_on()
        elif self._next_entry_id and not self.is_closed:
            self._roll_if_due(self._resources.clock.monotonic_ms())

    def _change_ledger(self) -> None:
        if not self.is_changing_ledger and not self.is_closed:
            self.is_changing_ledger = True
            self.change_error = ""
            self.changing_since_ms = self._resources.clock.monotonic_ms()
            self._resources.tasks.start(self._change_until_done(), f"change ledger {self.name}")

    async def _change_until_done(self) -> None:
        while True:
            try:
                async with self._changing:
                    if self.is_closed or self.document.is_terminated:
                        return  # `close` or `terminate` has answered the appends.
                    await self._change()
                break
            except LedgerFenced as error:
                self.is_write_failed = True
                self._end_change(error)
                return
            except NoSuchLedger as error:
                self._ledger_is_gone(error)
                return
            except StoreError as error:
                if str(error) != self.change_error:
                    logs.error("ledger.rollover_failed", managed_ledger=self.name, error=str(error))
                self.change_error = str(error)
                if self._has_timed_out() or self._store.refusal() is not None:
                    self._refused(self.pending_appends.take_all(), error)
            except Exception:  # a bug: the appends must not wait forever
                self.is_write_failed = True
                self._end_change(LedgerFenced(f"managed ledger {self.name} cannot be written now, try again"))
                raise
            await asyncio.sleep(CHANGE_RETRY_MS / 1000)
        self.trim_soon()

    def _ledger_is_gone(self, error: NoSuchLedger) -> None:
        """Close the topic because the ledger was deleted.

        Only another owner deletes a ledger to which this owner writes. All appends with an unknown outcome are
        answered.
        """
        logs.error("ledger.deleted_by_other", managed_ledger=self.name, ledger_id=self._ledger_id, error=str(error))
        fenced_error = LedgerFenced(
            f"managed ledger {self.name} has another owner, which deleted ledger {self._ledger_id}"
        )
        self.document.lose(fenced_error)
        self._end_change(fenced_error)

    async def _change(self) -> None:
        """Seal the current ledger, store the list with the next one, and continue there. Raises StoreError; the caller
        may repeat the call.
        """
        await self._close_ledger(self._ledger_id)
        while True:
            next_ledger_id = await self._ledger_to_name()
            if not self.ledgers.has_ledger(next_ledger_id):
                self.ledgers.add_ledger(next_ledger_id)
            await self.document.save()
            if self._store.may_be_named(next_ledger_id):
                break
        self._next_ledger_id = None
        self._ledger_id = next_ledger_id
        self._next_entry_id = self._ledger_bytes = 0
        self._ledger_opened_ms = self._last_append_ms = self._resources.clock.monotonic_ms()
        self.is_write_failed = self.is_changing_ledger = False
        self._send_waiting()

    async def _ledger_to_name(self) -> int:
        """Return the prepared next ledger, or create another if it may not be listed any more.

        Raises StoreError.
        """
        ledger_id = self._next_ledger_id
        if ledger_id is not None and not self._store.may_be_named(ledger_id):
            logs.warning("ledger.named_too_late", managed_ledger=self.name, ledger_id=ledger_id)
            await self._discard_next()
            if self.ledgers.has_ledger(ledger_id):  # Trimming deletes it.
                self.ledgers.close_ledger(LedgerSummary(ledger_id, 0, 0, 0), self._resources.clock.wall_ms())
        if self._next_ledger_id is None:
            self._next_ledger_id = await self._store.create_ledger(LedgerPurpose.ENTRIES, self.name)
        return self._next_ledger_id

    def _send_waiting(self) -> None:
        waiting = self.pending_appends.take_all()
        for index, run in enumerate(waiting):
            count = len(run.payloads)
            self.pending_entries -= count
            try:
                self.append(run.payloads, run.message_counts, run.size_bytes, run.context)
            except StoreError as error:  # no space: later appends must not overtake it
                self.pending_entries += count
                self._refused(waiting[index:], error)
                return

    def _has_timed_out(self) -> bool:
        timeout_ms = self._resources.limits.add_entry_timeout_ms
        return 0 < timeout_ms <= self._resources.clock.monotonic_ms() - self.changing_since_ms

    def _end_change(self, error: StoreError) -> None:
        self.is_changing_ledger = False
        self._refused(self.pending_appends.take_all(), error)

    async def _close_ledger(self, ledger_id: int) -> None:
        """Seal the ledger, and find out which of its appends with an unknown outcome are stored. Raises StoreError."""
        summary = await self._store.seal(ledger_id)
        if ledger_id == self._ledger_id and self.pending_appends:
            assert self._listener is not None
            stored = self.pending_appends.decide(ledger_id, summary.entry_count, self._listener.split_context)
            if stored:
                self.append_completed(stored, None)
        self.ledgers.close_ledger(summary, self._resources.clock.wall_ms())

    async def _discard_next(self) -> None:
        """Delete the prepared next ledger, which is in no stored list.

        If that fails, an empty ledger stays in the store.
        """
        ledger_id, self._next_ledger_id = self._next_ledger_id, None
        if ledger_id is None or self.ledgers.has_ledger(ledger_id):
            return
        try:
            await self._store.delete_ledger(ledger_id)
        except StoreError as error:
            logs.warning("ledger.delete_failed", managed_ledger=self.name, ledger_id=ledger_id, error=str(error))

    # --- trimming ---------------------------------------------------------------------------------------------------

    async def trim(self) -> list[int]:
        """Delete the ledgers that no durable cursor needs and `retention` does not keep. Return their ids. Raises
        StoreError; the next call then completes the deletion.
        """
        self.roll_if_old()
        return await self._trim()

    def trim_soon(self) -> None:
        if not self._is_trim_due and not self.is_closed:
            self._is_trim_due = True
            self._resources.tasks.start(self._trim_in_background(), f"trim {self.name}")

    async def _trim_in_background(self) -> None:
        try:
            await self._trim()
        except StoreError as error:
            logs.error("ledger.trim_failed", managed_ledger=self.name, error=str(error))

    async def _trim(self, limits: RetentionLimits | None = None) -> list[int]:
        """Delete the ledgers that no durable cursor needs and the retention does not keep. Return their ids.

        `limits` replaces `retention`, which may change during the call. Raises StoreError.
        """
        async with self._changing:
            self._is_trim_due = False
            if self.is_closed:
                return []
            self.document.require_owned()
            dropped: list[int] = []
            # Ledgers whose deletion an earlier trim could not store come first.
            while leaving := self.document.leaving_ledger_ids or self._removable(limits or self.retention):
                self.document.leaving_ledger_ids = leaving
                await self.document.save()
                self._forget_leaving()
                dropped += leaving
            while self.document.trimmed_ledger_ids:
                ledger_id = self.document.trimmed_ledger_ids[0]
                self._resources.drop_ledger(ledger_id)
                await self._store.delete_ledger(ledger_id)
                self.document.trimmed_ledger_ids.remove(ledger_id)
            return dropped

    def _removable(self, retention: RetentionLimits) -> list[int]:
        durable = [cursor.state for cursor in self.cursors.values() if cursor.is_durable]
        now_ms = self._resources.clock.wall_ms()
        return removable(self.ledgers, self._ledger_id, durable, retention, now_ms, self.held_from())

    def _forget_leaving(self) -> None:
        """Remove the ledgers to be deleted from memory and the store.

        Their removal from the stored list is already durable.
        """
        leaving, self.document.leaving_ledger_ids = self.document.leaving_ledger_ids, []
        self.document.gone.add(self.ledgers.entry_counts_of(leaving))
        self.ledgers.remove(leaving)
        for cursor in self.cursors.values():
            cursor.state.forget_ledgers(leaving)
        self.document.trimmed_ledger_ids += leaving

    def remove_empty_ledgers(self) -> list[int]:
        """Remove the sealed ledgers without entries from the list of ledgers. Return their ids; the caller deletes them
        from the store.
        """
        ids = removable(self.ledgers, self._ledger_id, (), KEEP_ALL, 0)
        self.ledgers.remove(ids)
        return ids

    async def truncate(self, kept_cursors: Container[str] = ()) -> None:
        """Acknowledge all entries on all cursors except `kept_cursors`, and delete each sealed ledger that
        `kept_cursors` do not need, regardless of retention. Raises StoreError.
        """
        for cursor in list(self.cursors.values()):
            if cursor.name not in kept_cursors:
                try:
                    await cursor.skip_all()
                except StoreError:
                    if self.cursors.get(cursor.name) is cursor:
                        raise
                    continue  # The cursor was deleted.
        await self._trim(RetentionLimits())

    async def terminate(self) -> Position:
        """Terminate the topic: refuse further appends permanently; appends in flight complete. Return the position of
        the last entry. Durable on return. Raises StoreError, and then appends continue.
        """
        async with self._changing:
            if self.is_closed:
                raise LedgerFenced(f"the managed ledger {self.name} cannot be terminated, because it is closed")
            if self.document.is_terminated:
                return self.last_confirmed
            self.document.is_terminated = True
            try:
                for ledger_id in self.ledgers.open_ledger_ids():
                    await self._close_ledger(ledger_id)
                await self.document.save()
                self._end_change(LedgerTerminated(f"{self.name} is terminated"))
                self._forget_leaving()
                self._ledger_id = self.ledgers.last_position.ledger_id  # the ledger that trimming always keeps
            except BaseException:
                # Its ledgers may be sealed: appends can continue only in a new one.
                self.document.is_terminated = False
                self.is_write_failed = True
                self._go_on()
                raise
            await self._discard_next()
        self.trim_soon()
        return self.last_confirmed

    # --- the compacted view ------------------------------------------------------------------------------------------

    async def begin_compacted(self, drops: int, up_to: Position | None = None) -> int:
        """Create the ledger for a new compacted view, and return the ledger's id. `up_to`: the last entry that the view
        covers, for the ledger's metadata in BookKeeper; None omits it. `drops`: the value of `compacted_drops` when the
        compaction began.

        Raises StoreError, and LedgerFenced if the managed ledger was closed, or its compacted view deleted, during the
        compaction.
        """
        async with self._changing:
            if self.is_closed or self.compacted_drops != drops:
                raise LedgerFenced(
                    f"managed ledger {self.name} was closed, or its compacted view was deleted, during the compaction"
                )
            ledger_id = await self._store.create_ledger(LedgerPurpose.COMPACTED, self.name, up_to)
            self.document.unfinished_ledger_ids.append(ledger_id)
            try:
                await self.document.save()
            except BaseException:
                self.discard_compacted(ledger_id)
                raise
            return ledger_id

    async def replace_compacted(self, before: CompactedInfo | None, view: CompactedInfo) -> None:
        """Replace the compacted view `before` (None: no view) by `view`, whose ledger is written and sealed. The ledger
        of `before` is deleted later. Durable on return.

        Raises StoreError, and LedgerFenced if the managed ledger was closed, or its compacted view deleted, during the
        compaction.
        """
        async with self._changing:
            if (
                self.is_closed
                or self.document.compacted is not before
                or view.ledger not in self.document.unfinished_ledger_ids
            ):
                raise LedgerFenced(
                    f"managed ledger {self.name} was closed, or its compacted view was deleted, during the compaction"
                )
            self.document.unfinished_ledger_ids.remove(view.ledger)
            try:
                await self._store_compacted(view)
            except BaseException:
                self.document.unfinished_ledger_ids.append(view.ledger)
                raise
        self.trim_soon()

    def interrupt_compaction(self) -> None:
        """Discard a compacted view that is being written. Its compaction then fails."""
        self.compacted_drops += 1
        self._discard_unfinished()

    def _discard_unfinished(self) -> None:
        for ledger_id in list(self.document.unfinished_ledger_ids):
            self.discard_compacted(ledger_id)

    async def drop_compacted(self) -> None:
        """Delete the compacted view, also one that is being written. Raises StoreError."""
        self.interrupt_compaction()
        async with self._changing:
            self._discard_unfinished()  # A compaction may have begun meanwhile.
            if self.document.compacted is not None and not self.is_closed:
                await self._store_compacted(None)
        self.trim_soon()

    async def _store_compacted(self, view: CompactedInfo | None) -> None:
        before, self.document.compacted = self.document.compacted, view
        leaving = [] if before is None else [before.ledger]
        self.document.trimmed_ledger_ids += leaving
        try:
            await self.document.save()
        except BaseException:
            self.document.compacted = before
            for ledger_id in leaving:
                self.document.trimmed_ledger_ids.remove(ledger_id)
            raise

    def discard_compacted(self, ledger_id: int) -> None:
        if ledger_id in self.document.unfinished_ledger_ids:
            self.document.unfinished_ledger_ids.remove(ledger_id)
            self.document.trimmed_ledger_ids.append(ledger_id)
            self.trim_soon()

    def position_before(self, position: Position) -> Position:
        """Return the mark-delete position with which a cursor begins to read at `position`, even if the entry at
        `position` was trimmed and exists only in the compacted view.
        """
        before = self.ledgers.previous_position(self.ledgers.normalize(position))
        if self.document.compacted is None:
            return before
        # The view may have entries of trimmed ledgers, which the list has not.
        return min(before, Position(position.ledger_id, max(-1, position.entry_id - 1)))

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        ledger_id, entry_id = position
        count = min(max_entries, self.ledgers.entry_count_of(ledger_id) - entry_id)
        assert count > 0, f"{self.name} has no entry {position}"
        run = self._cache.read(ledger_id, entry_id, count, max_bytes) or self._store.read_buffered(
            ledger_id, entry_id, count, max_bytes
        )
        if run is not None:
            self._count_read(run, is_from_store=False)
        return run

    async def read(self, position: Position, max_entries: int, max_bytes: int, group: Hashable = None) -> EntryRun:
        """Read entries from `position` on: at least one, at most `max_entries`, and about `max_bytes`. The read may
        wait for memory; readers with the same `group` share one slot in the queue for memory. Raises StoreError.
        """
        memory = self.memory
        # A read returns at least one entry, of any size.
        taken_bytes = await memory.take(
            memory.reads, self if group is None else group, max(max_bytes, LEAST_READ_BYTES)
        )
        try:
            count = min(max_entries, self.ledgers.entry_count_of(position.ledger_id) - position.entry_id)
            if count <= 0:
                raise StoreError(
                    f"entry {position} cannot be read: it was deleted, or the managed ledger {self.name} ends before it"
                )
            run = await self._store.read(position.ledger_id, position.entry_id, count, min(max_bytes, taken_bytes))
        except StoreError:
            self.counters.read_errors += 1
            raise
        finally:
            memory.give_back(memory.reads, taken_bytes)
        self._count_read(run, is_from_store=True)
        return run

    def _count_read(self, run: EntryRun, *, is_from_store: bool) -> None:
        entries, size_bytes = len(run.payloads), sum(map(len, run.payloads))
        for counters in (self.counters, self._resources.counters):
            counters.entries_read += entries
            counters.bytes_read += size_bytes
            if is_from_store:
                counters.store_entries_read += entries
                counters.store_bytes_read += size_bytes

    async def read_if_there(
        self, position: Position, max_entries: int, max_bytes: int, group: Hashable = None
    ) -> EntryRun | None:
        """Like `read`, but return None if the first entry does not exist, or was trimmed during the read. Raises
        StoreError.
        """
        try:
            return await self.read(position, max_entries, max_bytes, group)
        except StoreError:
            if self.ledgers.has_entry(position):
                raise
            return None

    # --- cursors and lifecycle ---------------------------------------------------------------------------------------

    def cursor_dirty(self, cursor: ManagedCursor) -> None:
        self._resources.flush_soon(cursor.flush)

    async def close(self) -> None:
        """Refuse appends, write the unwritten changes of cursors, seal the open ledger, and store the list of ledgers.
        After another process has taken over the managed ledger, only the changes of cursors are written. Raises
        StoreError; the managed ledger is then closed too.
        """
        if self.is_closed:
            return
        self.is_closed = True
        async with self._changing:
            try:
                for cursor in list(self.cursors.values()):
                    await cursor.close()
                if self.document.is_fenced:
                    return
                for ledger_id in self.ledgers.open_ledger_ids():
                    await self._close_ledger(ledger_id)
                await self.document.save()
            finally:
                self._has_ended = True
                self._end_change(LedgerFenced(f"{self.name} is closed"))
                await self._discard_next()
                self._closed(self)
