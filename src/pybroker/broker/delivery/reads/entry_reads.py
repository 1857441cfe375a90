"""All entry reads of one subscription: redelivered, rescanned, and due delayed entries, and new entries at the cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from pyroaring import BitMap

from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
from pybroker.broker.delivery.reads import failed_reads
from pybroker.broker.delivery.reads.compacted_reads import CompactedReads, CompactedRun
from pybroker.broker.delivery.reads.due_reads import read_due, read_due_cached
from pybroker.dispatch.delayed.delayed_entries import Delayed
from pybroker.dispatch.dispatcher import AssignInput, ReadPlan
from pybroker.errors import NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.cache.entry_cache import part_of
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_ENTRIES
from pybroker.model.position import Position

AT_END: tuple[EntryRun, ...] = ()
"""There is nothing to read."""
NO_MEMORY: Sequence[EntryRun] = []
"""The memory budget for delayed entries is exhausted, and the next entries may have to be delayed."""

STATE_TOO_LARGE: Sequence[EntryRun] = []
"""The cursor state is too large to be stored, and acknowledging the next entry would enlarge it."""


class Rescans:
    """Reads entries before the cursor's read position again, at the request of the dispatcher. The cursor does not
    move.

    Skips acknowledged and delayed entries.
    """

    def __init__(self, cursor: ManagedCursor) -> None:
        self._cursor = cursor
        self._ahead: EntryRun | None = None

    def next_position(self, position: Position, held_back: Mapping[int, BitMap]) -> Position | None:
        """Return the position of the first entry to read again, from `position` on; None if no such entry is before the
        cursor. `held_back`: delayed entries, which are skipped.
        """
        found = self._cursor.state.first_wanted(position, held_back)
        ledgers = self._cursor.ledger.ledgers
        if ledgers.has_entry(found) and found < ledgers.normalize(self._cursor.read_position):
            return found
        self._ahead = None
        return None

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Return entries of one ledger from `position` up to the cursor if they are in memory, else None."""
        max_entries = self._within_passed(position, max_entries)
        ahead = self._ahead
        if ahead is not None and ahead.ledger_id == position.ledger_id:
            index = position.entry_id - ahead.first_entry_id
            if 0 <= index < len(ahead.payloads):
                return part_of(ahead, index, max_entries, max_bytes)
        self._ahead = None
        return self._cursor.ledger.read_cached(position, max_entries, max_bytes)

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Read entries of one ledger, from `position` up to the cursor, from the store. Return None if the entry at
        `position` was trimmed. Raises StoreError.
        """
        ahead = await self._cursor.ledger.read_if_there(
            position,
            self._within_passed(position, max(max_entries, READ_AHEAD_ENTRIES)),
            READ_AHEAD_BYTES,
            self._cursor.reader,
        )
        if ahead is None:
            return None
        run = part_of(ahead, 0, self._within_passed(position, max_entries), max_bytes)
        self._ahead = ahead if len(run.payloads) < len(ahead.payloads) else None
        return run

    def _within_passed(self, position: Position, max_entries: int) -> int:
        end = self._cursor.ledger.ledgers.normalize(self._cursor.read_position)
        if end.ledger_id == position.ledger_id:
            return max(1, min(max_entries, end.entry_id - position.entry_id))
        return max_entries


class EntryReads:
    """Executes the dispatcher's read plans. At most one store read is in progress, for the last plan that was passed to
    `cached`.
    """

    def __init__(self, cursor: ManagedCursor, delayed: DelayedDelivery) -> None:
        self._cursor = cursor
        self._delayed = delayed
        self.compacted: CompactedReads | None = None
        """Source of entries while the active consumer uses `readCompacted`; None: the cursor is the source."""
        self._next: ManagedCursor | CompactedReads = cursor
        self._second = Rescans(cursor)
        self._due: Sequence[Delayed] = ()

    def read_compacted(self, compacted: CompactedReads | None) -> None:
        """Read from the compacted view from now on, or from the topic if `compacted` is None."""
        self.compacted = compacted
        self._next = self._cursor if compacted is None else compacted

    @property
    def has_more(self) -> bool:
        if isinstance(self._next, CompactedReads):
            return self._next.has_more()
        ledger, cursor = self._cursor.ledger, self._cursor
        position = cursor.state.first_wanted(cursor.read_position, self._delayed.held_back)
        return ledger.ledgers.has_entry(position) and ledger.read_limit.readable(position, 1) > 0

    @property
    def is_at_end(self) -> bool:
        """True only if no entry is left to read. A quick check, which may return False although no entry is left."""
        if self._delayed.is_in_use or self._next is not self._cursor:
            return False
        return self._cursor.ledger.ledgers.is_at_end(self._cursor.read_position)

    @property
    def waits_for_transaction(self) -> bool:
        ledger = self._cursor.ledger
        return ledger.read_limit.limit is not None and self._cursor.read_position <= ledger.last_confirmed

    def rewind(self) -> None:
        self._next.rewind()

    def cached(self, plan: ReadPlan) -> Sequence[EntryRun] | None:
        """Return the plan's entries if they are in memory, or None if they must be read from the store with `stored`.

        If nothing may be read now, return one of the empty sequences `AT_END`, `NO_MEMORY` and `STATE_TOO_LARGE` of this
        module, which name the reason. Compare the result with them by `is`.
        """
        if plan.replay is not None:
            return self._replay_cached(plan)
        if plan.scan is not None:
            return self._scan_cached(plan, plan.scan)
        delayed, cursor, reads = self._delayed, self._cursor, self._next
        if delayed.is_in_use:
            self._due = delayed.take_due(plan.max_entries)
            if self._due:
                return read_due_cached(cursor.ledger, self._due, plan.max_bytes)
            if delayed.is_full:
                return NO_MEMORY
        else:
            self._due = ()
        if delayed.is_in_use or cursor.state.holes:
            reads.pass_over(delayed.held_back)
        position = reads.next_entry()
        if position is None:
            return AT_END
        if cursor.size_limit.excess is not None and reads is cursor and cursor.is_paused_by_size:
            return STATE_TOO_LARGE
        run = reads.read_cached(position, plan.max_entries, plan.max_bytes)
        return None if run is None else (run,)

    async def stored(self, plan: ReadPlan) -> AsyncIterator[EntryRun | None]:
        """Read the plan's entries from the store, and yield them. Call it directly after `cached(plan)` has returned None. A
        final None means that some entries could not be read now; the caller then returns the plan to the dispatcher
        (`give_back`), which plans them again. Raises StoreError.
        """
        if plan.replay is not None:
            async for run in self._replay_stored(plan):
                yield run
        elif plan.scan is not None:
            scanned = await self._scan_stored(plan, plan.scan)
            if scanned is not None:
                yield scanned
        elif self._due:
            due, self._due = self._due, ()
            for each in await self._read_due(plan, due):
                yield each
        else:
            next_run = await self._next.read(plan.max_entries, plan.max_bytes)
            if next_run is not None:
                yield next_run

    async def _read_due(self, plan: ReadPlan, due: Sequence[Delayed]) -> list[EntryRun]:
        try:
            runs, unread = await read_due(self._cursor.ledger, due, plan.max_bytes)
        except StoreError:
            self._delayed.give_back(due)
            raise
        self._delayed.give_back(unread)
        return runs

    def undelivered(self, run: EntryRun) -> AssignInput:
        if isinstance(run, CompactedRun):
            assert self.compacted is not None
            return self.compacted.undelivered(run)
        state = self._cursor.state
        first, count = run.first_entry_id, len(run.payloads)
        kept = state.undeleted_in(run.ledger_id, first, count)
        ack_sets = state.ack_sets_in(run.ledger_id, first, count) if state.ack_sets else None
        entries = AssignInput(run.ledger_id, range(first, first + count), run.payloads, run.message_counts, ack_sets)
        return entries if kept is None else entries.rows([entry_id - first for entry_id in kept])

    def next_to_scan(self, position: Position) -> Position | None:
        return self._second.next_position(position, self._delayed.held_back)

    # --- replays and rescans -----------------------------------------------------------------------------------------

    def _replay_cached(self, plan: ReadPlan) -> list[EntryRun] | None:
        runs: list[EntryRun] = []
        for ledger_id, first, last in self._wanted(plan):
            run = self._cursor.ledger.read_cached(Position(ledger_id, first), last - first + 1, plan.max_bytes)
            if run is None or len(run.payloads) <= last - first:
                return None
            runs.append(run)
        return runs

    async def _replay_stored(self, plan: ReadPlan) -> AsyncIterator[EntryRun | None]:
        ledger, left_bytes = self._cursor.ledger, plan.max_bytes
        for ledger_id, entry_id, last in self._wanted(plan):
            first = entry_id
            while first <= last:
                if left_bytes <= 0:
                    yield None
                    return
                try:
                    run = await ledger.read_if_there(Position(ledger_id, first), last - first + 1, left_bytes)
                except NoSuchLedger as error:
                    raise failed_reads.whole_ledger(ledger.ledgers, ledger_id, error) from error
                if run is None:
                    break  # acknowledged and trimmed since
                left_bytes -= sum(map(len, run.payloads))
                first += len(run.payloads)
                yield run

    def _scan_cached(self, plan: ReadPlan, scan: Position) -> list[EntryRun] | None:
        position = self.next_to_scan(scan)
        if position is None:
            return []
        run = self._second.read_cached(position, plan.max_entries, plan.max_bytes)
        return None if run is None else [run]

    async def _scan_stored(self, plan: ReadPlan, scan: Position) -> EntryRun | None:
        position = self.next_to_scan(scan)
        if position is None:
            return None  # Acknowledged since: the next plan accounts for it.
        try:
            return await self._second.read(position, plan.max_entries, plan.max_bytes)
        except NoSuchLedger as error:
            raise failed_reads.whole_ledger(self._cursor.ledger.ledgers, position.ledger_id, error) from error

    def _wanted(self, plan: ReadPlan) -> list[tuple[int, int, int]]:
        spans: list[tuple[int, int, int]] = []
        state = self._cursor.state
        for ledger_id, entry_id in plan.replay or ():
            if state.is_deleted(ledger_id, entry_id):
                continue
            if spans and spans[-1][0] == ledger_id and spans[-1][2] == entry_id - 1:
                spans[-1] = (ledger_id, spans[-1][1], entry_id)
            else:
                spans.append((ledger_id, entry_id, entry_id))
        return spans
