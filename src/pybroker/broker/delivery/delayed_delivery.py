"""Delayed delivery of one subscription: entries wait outside its dispatcher until they are due.

For types that serve several consumers, entries that are not due go to an index instead of to the dispatcher, so they block neither
the entries behind them nor those of their key. Due entries are read again and assigned like new ones. Types with one active
consumer delay nothing. One timer, set to the time of the next due entry, wakes the pump.

The index of a durable cursor is stored when it is large: each run when it is created, all of it at checkpoints. After a restart it
is read back in slices of the pump's time, and the cursor skips the entries in it; the newest entries, which are not stored, are
read from the topic again. A small index is not stored: its entries are found again by reading only unacknowledged entries.

The due time of an entry can be changed (`change`). The new time is kept until the entry is acknowledged, and is stored immediately.

Invariants: nothing is stored before the metadata records that an index may exist. While entries wait and consumers are connected,
the timer is set or the pump will run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from pybroker.broker.delivery.stages import Stage
from pybroker.dispatch.delayed.changed_delays import CHANGED_BYTES, MAX_CHANGED_DELAYS, ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import (
    MAX_DUE_MS,
    RUN_ENTRIES,
    Delayed,
    DelayedIndex,
    DelayedRun,
    DeliveryTimes,
)
from pybroker.dispatch.delayed.delayed_record import encode_more, encode_whole, stored_changes, stored_runs
from pybroker.errors import StoreError, TooManyRequests
from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.runtime.tasks import completion
from pybroker.wire.entry_metadata import deliver_at_ms

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.runtime.runtime import Timer

MAX_ALARM_S = 60.0
"""How long an alarm is set at most: the clock by which entries are due may be set meanwhile."""
READ_GAP_ENTRIES = 8
"""Due entries with no more than so many others between them are read at once: cheaper than two reads."""
ENTRY_BYTES, NEWEST_BYTES = 10, 120
"""Bytes counted for each waiting entry, and additionally for the newest entries, which are in no run yet."""
COUNTED_STEP_BYTES = 4096
"""Smaller changes are not reported to the memory budget."""
RESTORE_SLICE_MS = 2.0
STALE_ENTRIES = 65_536
"""The stored index is rewritten when it has this many more removed entries than waiting ones."""
_NOTHING: Mapping[int, BitMap] = {}


class DelayedDelivery(CursorOwner, Stage):
    """Owned by its subscription; the store asks it for snapshots of the index."""

    def __init__(
        self, topic: TopicContext, subscription_name: str, cursor: ManagedCursor, wake: Callable[[], None]
    ) -> None:
        """`wake` has the pump run."""
        self.serves_several = False
        """Whether the subscription is of a type that serves several consumers at once, as it says."""
        self._topic = topic
        self._subscription_name = subscription_name
        self.wake = wake
        self._broker_context = topic.broker_context
        self._runtime = topic.runtime
        self._cursor = cursor
        self._changed = ChangedDelays()
        self._index = DelayedIndex(self._changed)
        self._times = _delivery_times(topic)
        self._alarm: Timer | None = None
        self._alarm_ms = 0
        self._last_alarm_ms = 0
        records, self._cursor.stored_delayed = self._cursor.stored_delayed, []
        self._unread: Iterator[DelayedRun] | None = stored_runs(records) if records else None
        self._unread_records = records
        self._has_changed = False  # whether there are any: asked with every acknowledgement
        self._record_id = ""  # where the index is stored; none yet
        self._is_announcing = False
        self._announcing = asyncio.Lock()
        self._is_closed = False
        self._stored_serial = 0  # of the last run that was handed to the store
        self._stored_entries = 0
        self._memory = topic.runtime.memory
        self._counted_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no memory for more of them; the pump runs again once there is."""
        return self._counted_bytes > 0 and self._memory.delays.stops(self)

    def _count(self) -> None:
        """Say how much memory this takes, and have others go on that wait for some."""
        entries = 0 if self._is_closed else len(self._index)
        size_bytes = ENTRY_BYTES * entries + NEWEST_BYTES * min(entries, RUN_ENTRIES)
        size_bytes += 0 if self._is_closed else CHANGED_BYTES * len(self._changed)
        if entries and abs(size_bytes - self._counted_bytes) < COUNTED_STEP_BYTES:
            return
        if size_bytes != self._counted_bytes:
            self._counted_bytes = size_bytes
            memory = self._memory
            memory.follow(memory.delays.report(self, size_bytes))
            for other in memory.delays.freed():
                assert isinstance(other, DelayedDelivery)
                other.wake()

    @property
    def entry_count(self) -> int:
        """Entries that wait for their time."""
        return len(self._index)

    @property
    def next_due_ms(self) -> int | None:
        """When the next of them is due; None when none waits."""
        return self._index.next_due_ms()

    @property
    def overdue_entries(self) -> int:
        """The approximate number of entries that have been due for longer than a tick; 0 only if there are none. They wait for a
        consumer.
        """
        first_ms = self._index.next_due_ms() if self.serves_several else None
        if first_ms is None:
            return 0
        if self._times is None:
            return len(self._index)
        cutoff_ms = self._runtime.clock.wall_ms() - self._times.tick_ms
        return self._index.due_count(cutoff_ms) if first_ms <= cutoff_ms else 0

    @property
    def index_size_bytes(self) -> int:
        """About how much memory that takes."""
        return self._index.size_bytes if self._index else 0

    @property
    def is_enabled(self) -> bool:
        return self._times is not None

    @property
    def held_back(self) -> Mapping[int, BitMap]:
        """The entries that the cursor need not read, by ledger."""
        return self._index.members if self.serves_several else _NOTHING

    # --- waiting -----------------------------------------------------------------------------------------------------

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Return the entries that may be delivered now, and add the others to the index."""
        if (
            plan.scan is not None
        ):  # A scan finds an entry outside of the index: it was due before, unless its due time was changed.
            entries = self._without_waiting(entries)
        times = self._times
        if times is None or not self.serves_several or (plan.scan is not None and not self._has_changed):
            return entries
        due_times_ms: Sequence[int] = [
            0 if plan.scan is not None else deliver_at_ms(payload) for payload in entries.payloads
        ]
        if self._has_changed:
            due_times_ms = self._changed.applied(entries.ledger_id, entries.entry_ids, due_times_ms)
        if not any(due_times_ms):
            return entries
        cutoff_ms = times.cutoff_ms(self._runtime.clock.wall_ms())
        held = [index for index, due_ms in enumerate(due_times_ms) if due_ms > cutoff_ms]
        if not held:
            return entries
        entry_ids = [entries.entry_ids[index] for index in held]
        has_new_runs = self._index.add(entries.ledger_id, entry_ids, [due_times_ms[index] for index in held])
        if has_new_runs:
            self._store_runs()
        self._set_alarm()
        self._count()
        passed = entries.rows([index for index, due_ms in enumerate(due_times_ms) if due_ms <= cutoff_ms])
        self._index.discard(passed.ledger_id, passed.entry_ids)  # those that the cursor came to while they were due
        return passed

    def _without_waiting(self, entries: AssignInput) -> AssignInput:
        """Those of `entries` that do not wait for their time."""
        members = self.held_back.get(entries.ledger_id)
        if members is None:
            return entries
        return entries.rows([index for index, entry_id in enumerate(entries.entry_ids) if entry_id not in members])

    def take_due(self, max_entries: int) -> list[Delayed]:
        """Entries that are due, in the order of their times; they wait no more. All of them when nothing is delayed any more."""
        if not self._index or not self.serves_several:
            return []
        cutoff_ms = MAX_DUE_MS if self._times is None else self._times.cutoff_ms(self._runtime.clock.wall_ms())
        taken = self._index.take_due(cutoff_ms, max_entries)
        self._set_alarm()
        if taken:
            self._count()
            self._store_anew_if_stale()
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        return [
            due
            for due in taken
            if ledgers.has_entry(due.position) and not state.is_deleted(due.ledger_id, due.entry_id)
        ]

    def give_back(self, due: Sequence[Delayed]) -> None:
        """These could not be read now: they are due still."""
        for each in due:
            if self._index.add(each.ledger_id, (each.entry_id,), (each.due_ms,)):
                self._store_runs()
        self._count()

    def forget(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Entries were acknowledged."""
        if self._has_changed:
            self._changed.discard(ledger_id, entry_ids)
            self._changes_discarded()
        if self._index:
            self._index.discard(ledger_id, entry_ids)
            self._count()

    def forget_up_to(self, position: Position) -> None:
        """Everything up to and including `position` is acknowledged."""
        if self._has_changed:
            self._changed.discard_up_to(position)
            self._changes_discarded()
        if self._index:
            self._index.discard_up_to(position)
            self._count()
            self._store_anew_if_stale()

    def policies_changed(self) -> None:
        """Apply changed policies."""
        self._times = _delivery_times(self._topic)
        if self._index:
            self.wake()

    # --- looking, and changing a time --------------------------------------------------------------------------------

    def is_waiting(self, position: Position) -> bool:
        """Whether the entry waits for its time."""
        members = self._index.members.get(position.ledger_id)
        return members is not None and position.entry_id in members

    def waiting_in(self, ledger_id: int) -> BitMap:
        """The entries of a ledger that wait, as a bitmap of their own."""
        return BitMap(self._index.members.get(ledger_id, ()))

    def ledger_ids(self) -> list[int]:
        """The ledgers of which entries wait, rising."""
        return sorted(self._index.members)

    def changed_ms(self, position: Position) -> int | None:
        """Return the changed due time of the entry, 0 for immediately; None if its own due time applies."""
        return self._changed.get(position)

    async def change(self, position: Position, due_ms: int) -> None:
        """Set the due time of an entry that no consumer has; 0 for immediately. Durable on return, if the subscription is durable.

        Raises TooManyRequests at `MAX_CHANGED_DELAYS`, and StoreError: the change applies now, but may be lost at a restart.
        """
        clock = self._runtime.clock
        while not self.restore(clock.monotonic_ms() + RESTORE_SLICE_MS):  # noqa: ASYNC110  (each round does a part of it)
            await asyncio.sleep(0)
        if not self._changed.has_room(position):
            raise TooManyRequests(
                f"The delivery times of {MAX_CHANGED_DELAYS} messages of the subscription are changed already: acknowledge some"
            )
        self._changed.set(position, due_ms)
        self._has_changed = True
        self._index.move(position)
        self._set_alarm()
        self._count()
        self.wake()
        if self._cursor.is_durable:
            await self._store_change(position, due_ms)

    def _changes_discarded(self) -> None:
        self._has_changed = bool(self._changed)
        self._count()

    async def _store_change(self, position: Position, due_ms: int) -> None:
        await self._announce()
        if not self._record_id or self._is_closed:
            raise StoreError(f"subscription {self._subscription_name} is closed")
        self._store_runs()  # Those of before there was a record.
        stored, done = completion()
        record = encode_more((), [(position, due_ms)])
        self._broker_context.ledgers.cursor_store.append_delta(self._record_id, record, done)
        await stored

    # --- the alarm ---------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """See to it that the pump runs when the next entry is due."""
        due_ms = self._index.next_due_ms()
        if due_ms is None or self._times is None:
            self._stop_alarm()
            return
        alarm_ms = self._times.alarm_ms(due_ms, self._last_alarm_ms)
        if self._alarm is not None:
            if self._alarm_ms == alarm_ms:
                return
            self._alarm.cancel()
        self._alarm_ms = alarm_ms
        wait_s = (alarm_ms - self._runtime.clock.wall_ms()) / 1000
        self._alarm = self._runtime.call_later(max(0.0, min(wait_s, MAX_ALARM_S)), self._ring)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        """Wake the pump if something is due. It may not get to it now, for want of permits: then it is woken for these."""
        self._alarm = None
        now_ms = self._runtime.clock.wall_ms()
        if now_ms < self._alarm_ms:
            self._set_alarm()
        else:
            self._last_alarm_ms = now_ms
            self.wake()

    # --- reading due entries -----------------------------------------------------------------------------------------

    def cached(self, plan: ReadPlan, due: Sequence[Delayed]) -> list[EntryRun] | None:
        """Entries that are due if all are in memory; None when the store must be asked."""
        runs = []
        for ledger_id, first, last in _spans(due, 0):
            run = self._cursor.ledger.read_cached(Position(ledger_id, first), last - first + 1, plan.max_bytes)
            if run is None or len(run.payloads) <= last - first:
                return None
            runs.append(run)
        return runs

    async def read(self, plan: ReadPlan, due: Sequence[Delayed]) -> list[EntryRun]:
        """Entries that are due; those that are not among them are due still. So are all when it raises StoreError."""
        found: dict[Position, tuple[bytes, int]] = {}
        left_bytes = plan.max_bytes
        wanted = {each.position for each in due}
        try:
            for ledger_id, first, last in _spans(sorted(due, key=lambda each: each[1:]), READ_GAP_ENTRIES):
                at = first
                while at <= last and left_bytes > 0:
                    run = await self._cursor.ledger.read_if_there(Position(ledger_id, at), last - at + 1, left_bytes)
                    if run is None:
                        break  # acknowledged and trimmed meanwhile
                    for payload, message_count in zip(run.payloads, run.message_counts, strict=True):
                        left_bytes -= len(payload)
                        if Position(ledger_id, at) in wanted:
                            found[Position(ledger_id, at)] = (payload, message_count)
                        at += 1
        except StoreError:
            self.give_back(due)
            raise
        self.give_back([each for each in due if each.position not in found])
        read = [each for each in due if each.position in found]
        runs = []
        for ledger_id, first, last in _spans(read, 0):
            entries = [found[Position(ledger_id, entry_id)] for entry_id in range(first, last + 1)]
            runs.append(
                EntryRun(ledger_id, first, [payload for payload, _ in entries], [count for _, count in entries])
            )
        return runs

    # --- storing and restoring the index ------------------------------------------------------------------------------

    def restore(self, deadline_ms: float) -> bool:
        """Read the stored index back until `deadline_ms`. Return True if nothing is left to read, which is the usual case."""
        if self._unread is None or not self.serves_several:
            return True
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        clock = self._runtime.clock
        try:
            for run in self._unread:
                if ledgers.row_of(run.ledger_id) is not None:
                    self._index.add_run(run, state.deleted_in(run.ledger_id))
                    self._count()
                if clock.monotonic_ms() >= deadline_ms:
                    return False
        except StoreError as error:
            # Nothing is lost: the cursor reads those entries again.
            logs.error("delayed.not_restored", **self._names(), error=str(error))
        self._unread = None
        self._restore_changes()
        self._stored_serial = self._index.last_serial
        self._stored_entries = len(self._index)
        logs.info("delayed.restored", **self._names(), entries=len(self._index))
        self._store_runs()
        self._set_alarm()
        return True

    def _restore_changes(self) -> None:
        """Restore changed due times of entries that are not delivered yet."""
        records, self._unread_records = self._unread_records, []
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        try:
            changes = stored_changes(records)
        except StoreError:
            return  # `restore` has said so
        for position, due_ms in changes.items():
            if ledgers.has_entry(position) and not state.is_deleted(*position) and self._changed.has_room(position):
                self._changed.set(position, due_ms)
                self._has_changed = True
                self._index.move(position)

    def _names(self) -> dict[str, Any]:
        return {"topic": self._topic.name, "subscription": self._subscription_name}

    def _store_runs(self) -> None:
        """Give the runs that are new to the store."""
        if not self._cursor.is_durable or self._unread is not None or self._is_closed:
            return
        if self._record_id:
            runs = self._index.runs_after(self._stored_serial)
            if runs:
                self._append(encode_more(runs), runs)
        elif not self._is_announcing:
            self._is_announcing = True
            self._topic.tasks.start(self._begin_storing(), f"store delayed {self._subscription_name}")

    async def _begin_storing(self) -> None:
        try:
            await self._announce()
        except StoreError as error:
            logs.error("delayed.not_stored", **self._names(), error=str(error))
            return
        finally:
            self._is_announcing = False
        self._store_runs()

    async def _announce(self) -> None:
        """See to it that there may be something stored; one at a time, since the second one must not be ahead of the first."""
        async with self._announcing:
            if self._record_id or self._is_closed:
                return
            record_id = await self._cursor.announce_delayed()
            if not self._is_closed:
                self._record_id = record_id
                self._broker_context.ledgers.cursor_store.attach(record_id, self)

    def _store_anew(self) -> None:
        runs = self._index.runs_after(0)
        self._stored_entries = 0
        self._append(encode_whole(runs, self._changed), runs)

    def _store_anew_if_stale(self) -> None:
        """Rewrite the stored index if too much of it is stale, so its size stays in proportion to the waiting entries. An empty
        index is deleted.
        """
        waiting = len(self._index)
        is_stale = self._stored_entries > (2 * waiting + STALE_ENTRIES if waiting else 0)
        if is_stale and self._record_id and not self._is_closed:
            self._store_anew()

    def _append(self, record: bytes, runs: Sequence[DelayedRun]) -> None:
        self._stored_serial = self._index.last_serial
        self._stored_entries += sum(len(run.packed) - run.index for run in runs)
        # No one awaits this write: entries that are not stored are read from the topic again.
        self._broker_context.ledgers.cursor_store.append_delta(self._record_id, record, None)

    def snapshot(self) -> bytes:
        self._index.seal_newest()
        runs = self._index.runs_after(0)
        self._stored_serial = self._index.last_serial
        self._stored_entries = sum(len(run.packed) - run.index for run in runs)
        return encode_whole(runs, self._changed)

    async def close(self) -> None:
        """Store the rest of the index and stop. Raises StoreError; it is closed in any case."""
        if self._is_closed:
            return
        self._stop_alarm()
        if self._record_id:
            self._index.seal_newest()
            self._store_runs()  # The store writes a snapshot only for a record of which it has seen a delta.
        self._is_closed = True
        if self._record_id:
            await self._broker_context.ledgers.cursor_store.detach(self._record_id)

    def drop(self) -> None:
        """The subscription is deleted: stop, and store nothing more."""
        self._is_closed = True
        self._stop_alarm()
        self.release()

    def release(self) -> None:
        """Nothing of it is in memory any more."""
        self._is_closed = True
        self._count()


def _delivery_times(topic: TopicContext) -> DeliveryTimes | None:
    """How exact delivery times are kept; None when nothing is delayed."""
    policies = topic.policies.delayed_delivery
    if not policies.active:
        return None
    config = topic.runtime.config
    return DeliveryTimes(max(0, policies.tickTime), config.is_delayed_delivery_deliver_at_time_strict)


def _spans(due: Sequence[Delayed], max_gap: int) -> list[tuple[int, int, int]]:
    """(ledger id, first, last) of neighbours in the list that follow each other, with no more than `max_gap` entries between."""
    spans: list[tuple[int, int, int]] = []
    for _, ledger_id, entry_id in due:
        if spans and spans[-1][0] == ledger_id and 0 < entry_id - spans[-1][2] <= max_gap + 1:
            spans[-1] = (ledger_id, spans[-1][1], entry_id)
        else:
            spans.append((ledger_id, entry_id, entry_id))
    return spans
