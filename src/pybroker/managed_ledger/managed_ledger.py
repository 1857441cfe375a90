"""The endless stream of entries of one topic, stored in numbered ledgers: append, read and trim.

Operation: `append` assigns entry ids immediately; readers see the entries after `append_completed`, when they are
durable. The next ledger is created, and the previous one sealed, in the background, so the switch at a limit needs no
wait. `trim` deletes whole ledgers: first from the list in the metadata store, then from the list in memory and the
cursors, then from the cache and the store. So a cursor forgets the acknowledgements of a ledger only when no crash can
restore that ledger.

Concurrency: changes of the list of ledgers run one at a time under `_changing`, and never beside `close`.

Failure: when the store refuses an append, all later appends to that ledger are refused too. The ledger is sealed at its
last durable entry, and appends continue in the next one; until it is ready, appends fail with the same error.

Invariants: `last_confirmed` never moves back; entry ids of a ledger have no gaps; the ledger list in the metadata store
contains a ledger from before its first append until it is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Hashable, Mapping

from pybroker.errors import LedgerFenced, LedgerTerminated, StorageFull, StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, EntryRun
from pybroker.managed_ledger.cursor_backlog import Backlog, count_backlog
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.max_read_position import ReadLimit
from pybroker.managed_ledger.publish_time_search import PublishTimes
from pybroker.managed_ledger.read_ahead import LEAST_READ_BYTES, ReadAhead
from pybroker.managed_ledger.retention import KEEP_ALL, RetentionLimits, removable
from pybroker.managed_ledger.rollover import PREPARE_AT, RolloverStep, rollover_step
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.model.counters import LedgerCounters
from pybroker.model.position import Position
from pybroker.runtime import logs

PREPARE_RETRY_MS = 200
"""The pause after a failed creation of the next ledger."""


class ManagedLedger(AppendListener):
    """Owned by the factory; used by one topic."""

    def __init__(
        self,
        resources: LedgerResources,
        document: StoredInfo,
        ledger_id: int,
        closed: Callable[[ManagedLedger], None],
    ) -> None:
        """`ledger_id`, one of the listed ledgers, is new and empty, or contains the last entry of a terminated managed
        ledger. `closed` is called when the managed ledger may be opened again.
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
        """A compaction that began before the last drop must not become the view."""
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
        self._made_ledger_id: int | None = None  # created, but perhaps not yet in the stored list
        self._next_ledger_id: int | None = None  # ready for appends
        self._left_ledger_ids: list[int] = []  # not sealed yet
        self._changing = asyncio.Lock()
        self.read_ahead = ReadAhead(resources, self.read_if_there)
        self._is_preparing = self._is_sealing = self._is_trim_due = False
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
        """The ledger of the next, or the last, append."""
        return self._ledger_id

    @property
    def last_confirmed(self) -> Position:
        """The last entry that readers may see; the position before the first one if there is none."""
        return self.ledgers.last_position

    @property
    def size_bytes(self) -> int:
        return self.ledgers.size_bytes

    def message_count_at_hand(self, position: Position) -> int:
        """Return 0 if the entry is not in memory or does not exist."""
        if not self.ledgers.has_entry(position):
            return 0
        run = self.read_cached(position, 1, 0)
        return 0 if run is None else run.message_counts[0]

    def publish_time_at_hand(self, position: Position) -> int | None:
        """Return None if the entry is not in memory or does not exist."""
        run = self.read_cached(position, 1, 0) if self.ledgers.has_entry(position) else None
        return None if run is None else self._resources.publish_time_of(run.payloads[0])

    async def publish_time_of(self, position: Position) -> int:
        """Return milliseconds since 1970 by the client's clock. Raises StoreError."""
        run = self.read_cached(position, 1, 0) if self.ledgers.has_entry(position) else None
        if run is None:
            run = await self.read(position, 1, 0)
        return self._resources.publish_time_of(run.payloads[0])

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        """Return the first entry published at that time or later; `ledgers.end_position` if there is none. Raises
        StoreError.

        If publish times do not increase, the bisection finds one such entry that follows an earlier one.
        """
        return await self.publish_times.first_published_at(publish_time_ms, self.ledgers.first_position)

    async def backlog_of(self, cursor: ManagedCursor) -> Backlog:
        return await count_backlog(self.ledgers, self._store, cursor.state)

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, payloads: list[bytes], message_counts: list[int], size_bytes: int, context: object) -> None:
        """Store entries; the listener receives the run. Raises LedgerTerminated, StorageFull, and LedgerFenced when
        closed or after a failed write.
        """
        if self.is_closed or self.is_write_failed or self.document.is_terminated:
            raise self._refusal()
        run = AppendRun(self, self._ledger_id, self._next_entry_id, payloads, message_counts, size_bytes, context)
        self._store.append(run)  # first, because it raises StorageFull without space
        count = len(payloads)
        self._next_entry_id += count
        self._ledger_bytes += size_bytes
        self.pending_entries += count
        now_ms = self._last_append_ms = self._resources.clock.monotonic_ms()
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
        return StorageFull(reason) if reason else LedgerFenced(f"{self.name} cannot be written now, try again")

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        listener = self._listener
        assert listener is not None
        entries = sum(len(run.payloads) for run in runs)
        self.pending_entries -= entries
        if error is not None:
            self._write_failed(runs, error)
            listener.append_failed(runs, error)
            self._go_on()
            return
        keep = bool(self.cursors)
        for run in runs:
            self.ledgers.added(run.ledger_id, len(run.payloads), run.message_count, run.size_bytes)
            self.bytes_added_total += run.size_bytes
            if keep:
                self._resources.keep_cached(run)
        self.entries_added_total += entries
        listener.entries_added(runs)
        self._go_on()

    def _write_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        if self.is_closed or self.document.is_terminated or all(run.ledger_id != self._ledger_id for run in runs):
            return  # The ledger accepts no more appends anyway.
        if not self.is_write_failed:
            logs.error("append.failed", managed_ledger=self.name, ledger_id=self._ledger_id, error=str(error))
        self.is_write_failed = True

    def _go_on(self) -> None:
        """Accept appends again after a failed write, when the next ledger is ready and all older appends are
        answered.
        """
        if not self.is_write_failed or self.is_closed or self.document.is_fenced:
            return
        if self._next_ledger_id is None:
            self._prepare()
        elif not self.pending_entries:
            self._switch(self._next_ledger_id)

    # --- the next ledger ---------------------------------------------------------------------------------------------

    def roll_if_old(self) -> None:
        """Begin the next ledger if the current one is old enough. Called periodically."""
        if self.is_closed or self.document.is_terminated:
            return
        if self._left_ledger_ids:
            self._seal()
        self._go_on()
        if self._next_entry_id and not self.is_write_failed:
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
            self._switch(self._next_ledger_id)

    def _is_acknowledged(self) -> bool:
        durable = (cursor.state for cursor in self.cursors.values() if cursor.is_durable)
        return not self.pending_entries and all(state.has_deleted_all_of(self._ledger_id) for state in durable)

    def _prepare(self) -> None:
        """Create the next ledger, unless that is in progress or has just failed."""
        is_too_soon = self._resources.clock.monotonic_ms() < self._prepare_not_before_ms
        if not (self._is_preparing or self.is_closed or is_too_soon):
            self._is_preparing = True
            self._resources.tasks.start(self._make_next(), f"prepare {self.name}")

    async def _make_next(self) -> None:
        try:
            async with self._changing:
                if self.is_closed or self.document.is_terminated or self._next_ledger_id is not None:
                    return
                if self._made_ledger_id is None:
                    self._made_ledger_id = await self._store.create_ledger()
                    self.ledgers.add_ledger(self._made_ledger_id)
                await self.document.save()
                self._next_ledger_id, self._made_ledger_id = self._made_ledger_id, None
        except StoreError as error:
            self._prepare_not_before_ms = self._resources.clock.monotonic_ms() + PREPARE_RETRY_MS
            logs.error("ledger.rollover_failed", managed_ledger=self.name, error=str(error))
            return
        finally:
            self._is_preparing = False
        if self.is_write_failed:
            self._go_on()
        elif self._next_entry_id and not self.is_closed:
            self._roll_if_due(self._resources.clock.monotonic_ms())

    def _switch(self, ledger_id: int) -> None:
        self._left_ledger_ids.append(self._ledger_id)
        self._ledger_id = ledger_id
        self._next_ledger_id = None
        self._next_entry_id = 0
        self._ledger_bytes = 0
        self._ledger_opened_ms = self._last_append_ms = self._resources.clock.monotonic_ms()
        self.is_write_failed = False
        self._seal()

    def _seal(self) -> None:
        if not self._is_sealing:
            self._is_sealing = True
            self._resources.tasks.start(self._seal_left(), f"seal {self.name}")

    async def _seal_left(self) -> None:
        """Seal ledgers whose pending appends are complete."""
        try:
            async with self._changing:
                if self.is_closed or not self._left_ledger_ids:
                    return
                while self._left_ledger_ids:
                    await self._close_ledger(self._left_ledger_ids[0])
                    del self._left_ledger_ids[0]
                await self.document.save()
        except StoreError as error:
            logs.error("ledger.seal_failed", managed_ledger=self.name, error=str(error))
        finally:
            self._is_sealing = False
        self.trim_soon()

    async def _close_ledger(self, ledger_id: int) -> None:
        self.ledgers.close_ledger(await self._store.seal(ledger_id), self._resources.clock.wall_ms())

    # --- trimming ---------------------------------------------------------------------------------------------------

    async def trim(self) -> list[int]:
        """Delete the ledgers that no durable cursor needs and `retention` does not keep. Return their ids. Raises
        StoreError.

        After an error, the next call completes the deletion.
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
        """Trim by `limits` instead of `retention`, which may change meanwhile."""
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
        """Remove these ledgers from memory and the store. Their removal from the stored list is durable."""
        leaving, self.document.leaving_ledger_ids = self.document.leaving_ledger_ids, []
        self.document.gone.add(self.ledgers.entry_counts_of(leaving))
        self.ledgers.remove(leaving)
        for cursor in self.cursors.values():
            cursor.state.forget_ledgers(leaving)
        self.document.trimmed_ledger_ids += leaving

    def remove_empty_ledgers(self) -> list[int]:
        """Return the sealed ledgers without entries, which remain to be deleted."""
        ids = removable(self.ledgers, self._ledger_id, (), KEEP_ALL, 0)
        self.ledgers.remove(ids)
        return ids

    async def truncate(self, kept_cursors: Container[str] = ()) -> None:
        """Acknowledge all entries on all cursors but `kept_cursors`, and delete each closed ledger that those do not
        need, regardless of retention. Raises StoreError.
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
        """Refuse appends permanently; those in flight complete. Return the last position. Durable on return.

        Raises StoreError, and then appends continue.
        """
        async with self._changing:
            if self.is_closed:
                raise LedgerFenced(f"{self.name} is closed")
            if self.document.is_terminated:
                return self.last_confirmed
            self.document.is_terminated = True
            # The next ledger is sealed too: it is empty.
            self._left_ledger_ids += [i for i in (self._next_ledger_id, self._made_ledger_id) if i is not None]
            self._next_ledger_id = self._made_ledger_id = None
            try:
                for ledger_id in self.ledgers.open_ledger_ids():
                    await self._close_ledger(ledger_id)
                await self.document.save()
                self._left_ledger_ids.clear()
                self._forget_leaving()
                self._ledger_id = self.ledgers.last_position.ledger_id  # the ledger that trimming always keeps
            except BaseException:
                # Its ledgers may be sealed: appends can continue only in a new one.
                self.document.is_terminated = False
                self.is_write_failed = True
                self._go_on()
                raise
        self.trim_soon()
        return self.last_confirmed

    # --- the compacted view ------------------------------------------------------------------------------------------

    async def begin_compacted(self, drops: int) -> int:
        """Create the ledger of the next compacted view, unless the view was dropped since `drops` was read. Raises
        StoreError.
        """
        async with self._changing:
            if self.is_closed or self.compacted_drops != drops:
                raise LedgerFenced(f"{self.name} was closed, or its compacted view was deleted, during the read")
            ledger_id = await self._store.create_ledger()
            self.document.unfinished_ledger_ids.append(ledger_id)
            try:
                await self.document.save()
            except BaseException:
                self.discard_compacted(ledger_id)
                raise
            return ledger_id

    async def replace_compacted(self, before: CompactedInfo | None, view: CompactedInfo) -> None:
        """Replace the view `before` by the written and sealed `view`, and delete the ledger of `before`. Durable on
        return. Raises StoreError.
        """
        async with self._changing:
            if (
                self.is_closed
                or self.document.compacted is not before
                or view.ledger not in self.document.unfinished_ledger_ids
            ):
                raise LedgerFenced(f"{self.name} was closed, or its compacted view was deleted, during the read")
            self.document.unfinished_ledger_ids.remove(view.ledger)
            try:
                await self._store_compacted(view)
            except BaseException:
                self.document.unfinished_ledger_ids.append(view.ledger)
                raise
        self.trim_soon()

    async def drop_compacted(self) -> None:
        """Delete the compacted view, and an unfinished next one. Raises StoreError."""
        self.compacted_drops += 1
        async with self._changing:
            for ledger_id in list(self.document.unfinished_ledger_ids):
                self.discard_compacted(ledger_id)
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
        """Return the mark-delete position of a cursor whose next entry is the one at `position` or behind it, also
        in the compacted view.
        """
        before = self.ledgers.previous_position(self.ledgers.normalize(position))
        if self.document.compacted is None:
            return before
        # The view may have entries of trimmed ledgers, which the list has not.
        return min(before, Position(position.ledger_id, max(-1, position.entry_id - 1)))

    # --- reading -----------------------------------------------------------------------------------------------------

    def _readable(self, position: Position, max_entries: int) -> int:
        """Limit a read to the entries that exist."""
        return min(max_entries, self.ledgers.entry_count_of(position.ledger_id) - position.entry_id)

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        count = self._readable(position, max_entries)
        assert count > 0, f"{self.name} has no entry {position}"
        ledger_id, entry_id = position
        run = self._cache.read(ledger_id, entry_id, count, max_bytes) or self._store.read_buffered(
            ledger_id, entry_id, count, max_bytes
        )
        if run is not None:
            self._count_read(run, is_from_store=False)
        return run

    async def read(self, position: Position, max_entries: int, max_bytes: int, group: Hashable = None) -> EntryRun:
        """Read entries, after waiting for memory in the queue of `group`. Raises StoreError."""
        memory = self.memory
        # A read returns at least one entry, of any size.
        taken_bytes = await memory.take(memory.reads, group or self, max(max_bytes, LEAST_READ_BYTES))
        try:
            count = self._readable(position, max_entries)
            if count <= 0:
                raise StoreError(f"{self.name} has no entry {position}")
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
        """Like `read`, but None if the entry does not exist, or was trimmed during the read. Raises StoreError."""
        try:
            return await self.read(position, max_entries, max_bytes, group)
        except StoreError:
            if self.ledgers.has_entry(position):
                raise
            return None

    # --- cursors and life --------------------------------------------------------------------------------------------

    def cursor_dirty(self, cursor: ManagedCursor) -> None:
        self._resources.flush_soon(cursor.flush)

    async def close(self) -> None:
        """Accept no more appends, and write pending changes of cursors. Raises StoreError; it is closed in any case.

        A fenced managed ledger seals no ledger and writes no metadata.
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
                self._closed(self)
