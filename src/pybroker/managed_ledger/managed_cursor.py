"""The cursor of one subscription in a managed ledger: its read position, and its acknowledgements.

A durable cursor is stored as deltas, one at a time: changes during a write are in the next delta, so a burst of
acknowledgements costs a few records. An acknowledgement with a receipt is answered when a delta that includes it is
durable; other changes are written by the factory's flush timer.

Operations of an administrator (reset, skip, expire) change the state immediately and return when it is durable. The
record of a reset contains the whole state, so no older record overrides it.

Invariants: only `reset` moves the mark-delete position back; the read position is after the mark-delete position.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pybroker.errors import StateTooLarge, StoreError
from pybroker.ledgers.cursor_store import CursorLedger, CursorOwner, CursorStore
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.cache.entry_cache import part_of
from pybroker.managed_ledger.cursor_backlog import Backlog
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.oldest_unacked import OldestUnacked
from pybroker.managed_ledger.read_ahead import CursorReadAhead
from pybroker.managed_ledger.state_size_limit import StateSizeLimit
from pybroker.model.ack_set import WORD_BITS
from pybroker.model.position import EARLIEST, Position, position_of
from pybroker.model.skipped_ranges import SkippedRanges
from pybroker.runtime import logs
from pybroker.runtime.tasks import completion

if TYPE_CHECKING:
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

PersistDone = Callable[[StoreError | None], None]


class ManagedCursor(CursorOwner):
    """The cursor of one subscription, owned by its managed ledger."""

    def __init__(
        self,
        ledger: ManagedLedger,
        name: str,
        cursor_id: str,
        state: CursorState,
        store: CursorStore | None,
        properties: Mapping[str, str],
    ) -> None:
        """`store`: where the state is stored; None makes the cursor non-durable."""
        self.ledger = ledger
        self.name = name
        self.cursor_id = cursor_id
        self.state = state
        self.properties = dict(properties)
        self.is_durable = store is not None
        self.read_position = EARLIEST
        self.reader: Hashable = None
        """Reads of one reader share a queue position for memory."""
        self.stored_delayed: list[bytes] = []
        """The records of delayed entries found at the restore, until they are read."""
        self.skipped_ranges: Sequence[SkippedRanges] = ()
        """The last seeks, skips and expirations, which moved the cursor without acknowledgements."""
        # Numbers of written and failed deltas, and the bytes of all.
        self.writes = 0
        self.failed_writes = 0
        self.written_bytes = 0
        self.size_limit = StateSizeLimit()
        self.when_state_fits: Callable[[], None] = _ignore
        """Called when delivery may continue after a pause by `size_limit`; set by the subscription."""
        self.write_error = ""
        """The error of the last write, until a write succeeds."""
        self._failing_since_ms: float | None = None
        self._store = store
        self._is_closed = False
        self._mark_ledger_id = state.mark_ledger_id
        self._is_writing = False
        self._is_dirty = False
        self._is_flush_due = False
        """Whether the flush timer will write the changes."""
        self._waiting: list[PersistDone] = []
        self._in_flight: list[PersistDone] = []  # callbacks for the delta that is being written
        self._ahead = CursorReadAhead(ledger.read_ahead)
        self.oldest = OldestUnacked(
            state, ledger.ledgers, ledger.publish_time_at_hand, ledger.publish_time_of, ledger.clock
        )
        self.rewind()
        if store is not None:
            store.attach(cursor_id, self)

    @property
    def mark_delete_position(self) -> Position:
        return self.state.mark_delete_position

    @property
    def first_unacked_position(self) -> Position:
        return self.ledger.ledgers.next_position(self.state.mark_delete_position)

    @property
    def backlog_entries(self) -> int:
        return self.state.backlog_entries

    # --- reading -----------------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        self.read_position = self.first_unacked_position

    def pass_over(self, held_back: Mapping[int, BitMap]) -> None:
        if held_back or self.state.holes:
            self.read_position = self.state.first_wanted(self.read_position, held_back)

    def next_entry(self) -> Position | None:
        """Return the position of the next entry that can be read; None if there is none now."""
        position = self.ledger.ledgers.entry_from(self.read_position)
        limit = self.ledger.read_limit
        return position if position is None or limit.limit is None or limit.readable(position, 1) > 0 else None

    def has_more(self) -> bool:
        return self.next_entry() is not None

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Return entries from `position` on, if they are in memory, and advance the read position. `position` must be
        the result of `next_entry`. Return None if the entries must be read from the store.
        """
        if self.ledger.read_limit.limit is not None or self.size_limit.excess is not None:
            max_entries = self._readable(position, max_entries)
        run = None if self._ahead.held is None else self._ahead.take(position, max_entries, max_bytes)
        if run is None:
            run = self.ledger.read_cached(position, max_entries, max_bytes)
        if run is None and (recent := self.ledger.read_ahead.find(position)) is not None:
            run = self._hold(recent, position, max_entries, max_bytes)
        if run is not None:
            self.read_position = position_of((run.ledger_id, run.first_entry_id + len(run.payloads)))
        return run

    def _readable(self, position: Position, max_entries: int) -> int:
        limit, size_limit = self.ledger.read_limit, self.size_limit
        if limit.limit is not None:
            max_entries = limit.readable(position, max_entries)
        return max_entries if size_limit.excess is None else size_limit.readable(position, max_entries)

    @property
    def is_paused_by_size(self) -> bool:
        """Whether delivery is paused because the acknowledgements are too large to be stored."""
        return not self.size_limit.readable(self.ledger.ledgers.normalize(self.read_position), 1)

    def _hold(self, ahead: EntryRun, position: Position, max_entries: int, max_bytes: int) -> EntryRun:
        run = part_of(ahead, position.entry_id - ahead.first_entry_id, max_entries, max_bytes)
        is_known = self.ledger.cursors.get(self.name) is self  # otherwise deleted during the read
        end = ahead.first_entry_id + len(ahead.payloads)
        if is_known and run.first_entry_id + len(run.payloads) < end:
            following = self.ledger.ledgers.normalize(Position(ahead.ledger_id, end))
            is_readable = self.ledger.ledgers.has_entry(following) and self._readable(following, 1) > 0
            self._ahead.hold(
                ahead, following if is_readable else None, self.reader, has_neighbours=self._has_neighbours
            )
        else:
            self._ahead.drop()
        return run

    @property
    def _has_neighbours(self) -> bool:
        return len(self.ledger.cursors) > 1

    def drop_ahead(self) -> None:
        self._ahead.drop()

    async def read(self, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Read the next entries from the store and advance the read position. Raises StoreError.

        Return None if, during the read, the cursor was moved, the entries were trimmed, or an open transaction or
        `is_paused_by_size` began to block their delivery. The caller then calls `next_entry` again.
        """
        before = self.read_position
        position = self.ledger.ledgers.normalize(before)
        ahead = await self._ahead.read(position, self.reader, has_neighbours=self._has_neighbours)
        if ahead is None:
            return None
        if self.read_position != before or not self.ledger.ledgers.has_entry(position):
            return None
        max_entries = self._readable(position, max_entries)
        if not max_entries:
            return None
        run = self._hold(ahead, position, max_entries, max_bytes)
        self.read_position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
        return run

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def changed(self, done: PersistDone | None) -> None:
        """Record a change of the acknowledgements. With `done`, write the change now and call `done` when it is
        durable, or with the error; otherwise the flush timer writes the change.
        """
        self.ledger.counters.mark_deletes += 1
        mark_ledger_id = self.state.mark_ledger_id
        if mark_ledger_id != self._mark_ledger_id:
            self._mark_ledger_id = mark_ledger_id
            if self.is_durable:
                self.ledger.trim_soon()
        if self._store is None or self._is_closed:
            if done is not None:
                done(StoreError(f"cursor {self.name} is closed") if self._is_closed else None)
            return
        if done is not None:
            self._waiting.append(done)
            self._is_dirty = True
            if self.size_limit.is_stored:
                self.flush()
            else:
                self._flush_later()  # Each attempt encodes the whole state.
        elif not self._is_dirty or not self.size_limit.is_stored:
            self._is_dirty = True
            self._flush_later()

    def _flush_later(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self.ledger.cursor_dirty(self)

    def flush(self) -> None:
        """Write the unwritten changes now, or when the present write ends."""
        self._is_flush_due = False
        if self._is_writing or not self._is_dirty or self._store is None or self._is_closed:
            return
        self._is_dirty = False
        delta = self.state.take_whole() if self._store.needs_whole_states else self.state.take_delta()
        waiting, self._waiting = self._waiting, []
        if delta is None:
            for done in waiting:
                done(None)
            return
        self._is_writing = True
        self.written_bytes += len(delta)
        self._in_flight = waiting
        self._store.append_delta(self.cursor_id, delta, self._written)

    def _written(self, error: StoreError | None) -> None:
        self._is_writing = False
        waiting, self._in_flight = self._in_flight, []
        if error is None:
            self.writes += 1
            self._state_stored()
            self.write_error, self._failing_since_ms = "", None
        else:
            self.failed_writes += 1
            self.write_error = str(error)
            if self._failing_since_ms is None:
                self._failing_since_ms = self.ledger.clock.monotonic_ms()
            # The lost changes are no longer listed, so the next delta contains the whole state.
            self.state.forget_deltas()
            has_changed = self._is_dirty
            self._is_dirty = True
            if isinstance(error, StateTooLarge):
                self._state_refused(error)
                if has_changed and not self._is_closed:
                    self._flush_later()
            elif not self._is_closed:
                self._flush_later()
        for done in waiting:
            done(error)
        if self._waiting and self.size_limit.is_stored:
            self.flush()
        elif self._is_dirty and error is None and not self._is_closed:
            self._flush_later()  # the timer may have run during the write

    def _state_refused(self, error: StateTooLarge) -> None:
        now_ms = self.ledger.clock.monotonic_ms()
        ranges, end = self.state.deleted_range_count, self.state.last_acknowledged
        if self.size_limit.refused(error.size_bytes, error.limit_bytes, ranges, end, now_ms):
            logs.error(
                "cursor.state_too_large",
                managed_ledger=self.ledger.name,
                cursor=self.name,
                size_bytes=error.size_bytes,
                limit_bytes=error.limit_bytes,
                ranges=ranges,
                mark_delete=str(self.mark_delete_position),
            )

    def _state_stored(self) -> None:
        assert self._store is not None
        if self.size_limit.excess is None:
            return
        size_bytes = self._store.state_bytes(self.cursor_id)
        if self.size_limit.stored(size_bytes):
            logs.info("cursor.state_fits", managed_ledger=self.ledger.name, cursor=self.name, size_bytes=size_bytes)
            self.when_state_fits()

    @property
    def cursor_ledger(self) -> CursorLedger | None:
        """The ledger to which this cursor's states are written; None if the store has no cursor ledgers."""
        return None if self._store is None else self._store.ledger_of(self.cursor_id)

    @property
    def write_wait_ms(self) -> float | None:
        """The milliseconds since the present write of the acknowledgements began; None if no write is in progress, or
        if the store does not know.
        """
        return None if self._store is None else self._store.write_wait_ms(self.cursor_id)

    @property
    def failing_for_ms(self) -> float | None:
        """The milliseconds since writes of the acknowledgements began to fail; None if the last write succeeded."""
        return None if self._failing_since_ms is None else self.ledger.clock.monotonic_ms() - self._failing_since_ms

    @property
    def waiting_requests(self) -> int:
        """The number of requests that are answered when the current state is durable."""
        return len(self._waiting) + len(self._in_flight)

    def snapshot(self) -> bytes:
        return self.state.snapshot()

    async def persist(self) -> None:
        """Return when the current state is durable. Raises StoreError."""
        written, done = completion()
        self.changed(done)
        await written

    # --- operations of an administrator -----------------------------------------------------------------------------

    async def reset(self, position: Position, unacked_words: Sequence[int] = ()) -> None:
        """Seek to `position`: all earlier entries count as acknowledged, and all entries from `position` on as
        unacknowledged. `unacked_words`: the ack set of the batch at `position`; by default all its messages are
        unacknowledged.

        Durable on return. Raises StoreError; the reset then applies, but a restart may undo it.
        """
        self.state.reset(self.ledger.position_before(position))
        if any(unacked_words):
            message_count = self.ledger.message_count_at_hand(position) or len(unacked_words) * WORD_BITS
            self.state.acknowledge_batch(position, unacked_words, message_count)
        self.rewind()
        await self.persist()

    async def skip(self, entry_count: int) -> int:
        """Acknowledge the next `entry_count` unacknowledged entries, or all if there are fewer. Return their number.
        Durable on return. Raises StoreError.
        """
        return await self._delete_up_to(self.state.nth_undeleted(entry_count)) if entry_count > 0 else 0

    async def skip_all(self) -> int:
        """Acknowledge all entries. Return the number of newly acknowledged entries. Durable on return. Raises
        StoreError.
        """
        return await self._delete_up_to(self.ledger.ledgers.last_position)

    async def expire(self, publish_time_ms: int) -> int:
        """Acknowledge the entries that were published before `publish_time_ms` (milliseconds since 1970). Return their
        number. Durable on return. Raises StoreError.

        If publish times do not increase from entry to entry, expiry may stop early, or include newer entries between
        old ones. The first unacknowledged entry always expires if it is old enough.
        """
        first = self.state.first_undeleted(EARLIEST)
        found = await self._first_readable(first)
        if found is None or found[1] >= publish_time_ms:
            return 0
        ledgers = self.ledger.ledgers
        end = await self.ledger.publish_times.first_published_at(publish_time_ms, ledgers.next_position(found[0]))
        return await self._delete_up_to(ledgers.previous_position(end))

    async def expire_to(self, position: Position) -> int:
        """Acknowledge the entries up to and including `position`. Return the number of newly acknowledged entries.
        Durable on return. Raises StoreError.
        """
        return await self._delete_up_to(self.ledger.ledgers.floor(position))

    async def _delete_up_to(self, position: Position) -> int:
        deleted = self.state.mark_delete_to(position)
        self.read_position = max(self.read_position, self.ledger.ledgers.next_position(self.mark_delete_position))
        await self.persist()
        return deleted

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties of the subscription. Durable on return. Raises StoreError."""
        if self.is_durable:
            await self.ledger.document.set_cursor_properties(self.name, self.cursor_id, properties)
        self.properties = dict(properties)

    async def announce_delayed(self) -> str:
        """Record in the metadata that an index of delayed entries may be stored for this cursor. Return the id of the
        index in the cursor store. Raises StoreError.
        """
        return await self.ledger.document.announce_delayed(self.name, self.cursor_id)

    # --- queries -----------------------------------------------------------------------------------------------------

    async def backlog(self) -> Backlog:
        return await self.ledger.backlog_of(self)

    async def oldest_publish_time(self) -> int | None:
        """Return the publish time (milliseconds since 1970) of the first unacknowledged entry that is not damaged; None
        if there is no such entry. Raises StoreError.
        """
        found = await self._first_readable(self.state.first_undeleted(EARLIEST))
        return None if found is None else found[1]

    async def _first_readable(self, position: Position) -> tuple[Position, int] | None:
        while True:
            position = self.ledger.ledgers.normalize(position)
            try:
                return await self.ledger.publish_times.first_readable(position)
            except StoreError:
                if self.ledger.ledgers.has_entry(position):
                    raise
                # The entry was trimmed, because this cursor is a reader's.

    async def close(self) -> None:
        """Write the unwritten changes and remove the cursor from the memory of the cursor store. Raises StoreError; the
        cursor is then closed too.
        """
        self.drop_ahead()
        if self._store is None or self._is_closed:
            return
        self.flush()  # The store writes a snapshot only for a cursor of which it has seen a delta.
        self._is_closed = True
        failure: StoreError | None = None
        try:
            # Still dirty: a delta is in flight. If a checkpoint has stored it, the store knows of no change.
            await self._store.detach(self.cursor_id, is_changed=self._is_dirty)
        except StoreError as error:
            failure = error
        # Changes that wait for the delta in flight are in the snapshot.
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(failure)
        if failure is not None:
            raise failure


def _ignore() -> None: ...
