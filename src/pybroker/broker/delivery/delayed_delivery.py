"""Delayed delivery of one subscription. Entries wait in an index outside the dispatcher until their delivery time.

Exclusive and Failover subscriptions deliver immediately. Delayed entries block neither later entries nor entries with
the same key. Due entries are read again and dispatched like new entries. A delivery time that an administrator has
changed is stored, and applies until the entry is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pybroker.broker.delivery.delayed_alarm import DelayedAlarm
from pybroker.broker.delivery.delayed_index_storage import DelayedIndexStorage
from pybroker.broker.delivery.stages import Stage
from pybroker.dispatch.delayed.changed_delays import CHANGED_BYTES, MAX_CHANGED_DELAYS, ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import (
    MAX_DUE_MS,
    RUN_ENTRIES,
    Delayed,
    DelayedIndex,
    DeliveryTimes,
)
from pybroker.errors import TooManyRequests
from pybroker.model.position import Position
from pybroker.wire import entry_columns

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan
    from pybroker.managed_ledger.managed_cursor import ManagedCursor

ENTRY_BYTES, NEWEST_BYTES = 10, 120
"""Estimated memory per delayed entry, and additional memory per new entry that is in no sorted run yet."""
COUNTED_STEP_BYTES = 4096
"""Smaller changes of the index size are not reported to the memory budget."""
RESTORE_SLICE_MS = 2.0
_NOTHING: Mapping[int, BitMap] = {}


class DelayedDelivery(Stage):
    """Index of delayed entries, and the step of dispatching that adds entries to it."""

    def __init__(
        self, topic: TopicContext, subscription_name: str, cursor: ManagedCursor, wake: Callable[[], None]
    ) -> None:
        self.serves_several = False
        """Whether the subscription type serves several consumers; set by the subscription."""
        self._topic = topic
        self.wake = wake
        self._runtime = topic.runtime
        self._cursor = cursor
        self._changed = ChangedDelays()
        self._index = DelayedIndex(self._changed)
        self._times = _delivery_times(topic)
        self._alarm = DelayedAlarm(topic.runtime, self._index, self._times, wake)
        self._storage = DelayedIndexStorage(topic, subscription_name, cursor, self._index, self._changed)
        self._has_changed = False  # cached for the check at each acknowledgement
        self._memory = topic.runtime.memory
        self._counted_bytes = 0
        self.is_restored = self._storage.is_restored
        """Whether the index is complete; if not, call `restore`."""
        self.is_in_use = False
        """Whether entries are delayed, or memory is counted for them. If not, reads need not ask for delayed entries."""

    @property
    def is_full(self) -> bool:
        """Return whether the broker's memory budget allows no more delayed entries."""
        return self._counted_bytes > 0 and self._memory.delays.stops(self)

    def _count(self) -> None:
        """Report the memory of the index. Called after each change of the index."""
        self._count_bytes()
        self.is_in_use = bool(self._index) or self._counted_bytes > 0

    def _count_bytes(self) -> None:
        entries = 0 if self._storage.is_closed else len(self._index)
        size_bytes = ENTRY_BYTES * entries + NEWEST_BYTES * min(entries, RUN_ENTRIES)
        size_bytes += 0 if self._storage.is_closed else CHANGED_BYTES * len(self._changed)
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
        return len(self._index)

    @property
    def next_due_ms(self) -> int | None:
        return self._index.next_due_ms()

    @property
    def overdue_entries(self) -> int:
        """Approximate number of entries that have been due for longer than the tick time of delayed delivery, and wait
        for a consumer. 0 only if there are none.
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
        return self._index.size_bytes if self._index else 0

    @property
    def is_enabled(self) -> bool:
        return self._times is not None

    @property
    def held_back(self) -> Mapping[int, BitMap]:
        """Delayed entries, which reads at the cursor must skip, as one bitmap of entry ids per ledger id."""
        return self._index.members if self.serves_several else _NOTHING

    # --- waiting -----------------------------------------------------------------------------------------------------

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Return the entries that can be dispatched now, and add the delayed ones to the index."""
        if (
            plan.scan is not None
        ):  # An entry of a scan that is not in the index was due before, unless its due time was changed.
            entries = self._without_waiting(entries)
        times = self._times
        if times is None or not self.serves_several or (plan.scan is not None and not self._has_changed):
            return entries
        due_times_ms: Sequence[int] = (
            entry_columns.deliver_at_times_ms(entries.payloads) if plan.scan is None else [0] * len(entries.payloads)
        )
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
            self._storage.store_runs()
        self._alarm.set()
        self._count()
        passed = entries.rows([index for index, due_ms in enumerate(due_times_ms) if due_ms <= cutoff_ms])
        self._index.discard(
            passed.ledger_id, passed.entry_ids
        )  # These entries are in the index: the cursor reads them when they are due.
        return passed

    def _without_waiting(self, entries: AssignInput) -> AssignInput:
        members = self.held_back.get(entries.ledger_id)
        if members is None:
            return entries
        return entries.rows([index for index, entry_id in enumerate(entries.entry_ids) if entry_id not in members])

    def take_due(self, max_entries: int) -> list[Delayed]:
        """Remove up to `max_entries` due entries from the index and return them, sorted by due time. If delayed
        delivery is disabled, all entries are due.
        """
        if not self._index or not self.serves_several:
            return []
        cutoff_ms = MAX_DUE_MS if self._times is None else self._times.cutoff_ms(self._runtime.clock.wall_ms())
        taken = self._index.take_due(cutoff_ms, max_entries)
        self._alarm.set()
        if taken:
            self._count()
            self._storage.store_anew_if_stale()
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        return [
            due
            for due in taken
            if ledgers.has_entry(due.position) and not state.is_deleted(due.ledger_id, due.entry_id)
        ]

    def give_back(self, due: Sequence[Delayed]) -> None:
        """Put due entries back into the index, because they could not be read."""
        for each in due:
            if self._index.add(each.ledger_id, (each.entry_id,), (each.due_ms,)):
                self._storage.store_runs()
        self._count()

    def forget(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        if self._has_changed:
            self._changed.discard(ledger_id, entry_ids)
            self._changes_discarded()
        if self._index:
            self._index.discard(ledger_id, entry_ids)
            self._count()

    def forget_up_to(self, position: Position) -> None:
        if self._has_changed:
            self._changed.discard_up_to(position)
            self._changes_discarded()
        if self._index:
            self._index.discard_up_to(position)
            self._count()
            self._storage.store_anew_if_stale()

    def policies_changed(self) -> None:
        self._times = self._alarm.times = _delivery_times(self._topic)
        if self._index:
            self.wake()

    # --- queries, and changes of a due time --------------------------------------------------------------------------------

    def is_waiting(self, position: Position) -> bool:
        members = self._index.members.get(position.ledger_id)
        return members is not None and position.entry_id in members

    def waiting_in(self, ledger_id: int) -> BitMap:
        return BitMap(self._index.members.get(ledger_id, ()))

    def ledger_ids(self) -> list[int]:
        return sorted(self._index.members)

    def changed_ms(self, position: Position) -> int | None:
        """Return the delivery time that an administrator has set for the entry, in milliseconds since 1970 (0:
        immediately); None if the producer's delivery time applies.
        """
        return self._changed.get(position)

    async def change(self, position: Position, due_ms: int) -> None:
        """Set the delivery time of an undelivered entry, in milliseconds since 1970 (0: immediately). Durable on return
        if the subscription is durable.

        Raises TooManyRequests if `MAX_CHANGED_DELAYS` delivery times are already changed. Raises StoreError if the
        change is not stored; the change then applies until the broker restarts.
        """
        clock = self._runtime.clock
        while not self.restore(clock.monotonic_ms() + RESTORE_SLICE_MS):  # noqa: ASYNC110  (each round does a part of it)
            await asyncio.sleep(0)
        if not self._changed.has_room(position):
            raise TooManyRequests(
                f"The delivery time cannot be changed: {MAX_CHANGED_DELAYS} messages of the subscription "
                "already have a changed delivery time, which is the maximum. Acknowledge some of these "
                "messages first"
            )
        self._changed.set(position, due_ms)
        self._has_changed = True
        self._index.move(position)
        self._alarm.set()
        self._count()
        self.wake()
        if self._cursor.is_durable:
            await self._storage.store_change(position, due_ms)

    def _changes_discarded(self) -> None:
        self._has_changed = bool(self._changed)
        self._count()

    # --- storing and restoring the index ------------------------------------------------------------------------------

    def restore(self, deadline_ms: float) -> bool:
        """Continue reading the stored index until `deadline_ms` of the monotonic clock. Return whether the index has
        been read completely.
        """
        if self.is_restored or not self.serves_several:
            return True
        is_complete = self.is_restored = self._storage.restore(deadline_ms)
        self._has_changed = bool(self._changed)
        self._count()
        if is_complete:
            self._alarm.set()
        return is_complete

    async def close(self) -> None:
        """Stop the timer, and store the unstored part of the index. Raises StoreError if the store fails; the index is closed
        even then."""
        self._alarm.stop()
        await self._storage.close()

    def drop(self) -> None:
        """Stop the timer without storing the index, because the subscription is deleted."""
        self._storage.is_closed = True
        self._alarm.stop()
        self.release()

    def release(self) -> None:
        self._storage.is_closed = True
        self._count()


def _delivery_times(topic: TopicContext) -> DeliveryTimes | None:
    policies = topic.policies.delayed_delivery
    if not policies.active:
        return None
    config = topic.runtime.config
    return DeliveryTimes(max(0, policies.tickTime), config.is_delayed_delivery_deliver_at_time_strict)
