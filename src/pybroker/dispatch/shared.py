"""Shared: every entry to one consumer, round robin by priority level and permits.

An entry goes to a consumer that has at least one permit, whole: a batch may take the permits below zero. Consumers of
the best priority level take turns, each gets up to `max_round_robin_entries` a turn; the next level is served only
while nobody of the better ones can take anything: out of permits, at its limit of unacknowledged messages, or with a
full outbound buffer.

What was read and found no taker waits in the replay set, which goes before new reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TypeVar

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.replay import RedeliveryCounts, ReplaySet
from pybroker.model import ack_set
from pybroker.model.position import Position

_T = TypeVar("_T")


class _PriorityLevel:
    """The consumers of one level; `next_index` is whose turn it is."""

    __slots__ = ("consumers", "next_index", "priority_level")

    def __init__(self, priority_level: int) -> None:
        self.priority_level = priority_level
        self.consumers: list[ConsumerState] = []
        self.next_index = 0

    def remove(self, consumer: ConsumerState) -> None:
        """Whose turn it is stays the same, unless it was the leaver's."""
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self.next_index:
            self.next_index -= 1

    def take_turn(self) -> ConsumerState | None:
        """The next consumer of the level that can take an entry."""
        consumers = self.consumers
        count = len(consumers)
        for step in range(count):
            index = (self.next_index + step) % count
            if consumers[index].can_take():
                self.next_index = index + 1
                return consumers[index]
        return None


class SharedDispatcher(Dispatcher):
    """Invariants: an entry is held in `PendingAcks`, or waits in the replay set, or neither; never both."""

    kind = "Shared"

    def __init__(
        self,
        redelivery_counts: RedeliveryCounts,
        max_read_batch_entries: int,
        max_read_size_bytes: int,
        max_round_robin_entries: int,
        max_unacked_messages: int,
    ) -> None:
        """`max_unacked_messages` is the limit of the whole subscription, 0 for none."""
        super().__init__(redelivery_counts)
        self._max_read_batch_entries = max_read_batch_entries
        self._max_read_size_bytes = max_read_size_bytes
        self._max_round_robin_entries = max_round_robin_entries
        self._max_unacked_messages = max_unacked_messages
        self._levels: list[_PriorityLevel] = []  # best first, none is empty
        self._pending = PendingAcks()
        self._replay = ReplaySet()

    @property
    def replay_entry_count(self) -> int:
        return len(self._replay)

    @property
    def active_consumer(self) -> ConsumerState | None:
        return None

    @property
    def pending(self) -> PendingAcks:
        """Who holds what, to look at."""
        return self._pending

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        assert consumer not in self.consumers, "consumer attached twice"
        self.consumers.append(consumer)
        level = self._level_of(consumer.priority_level)
        level.consumers.append(consumer)
        return Redelivery(rewind=False, wake=False)

    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Its unacknowledged entries go to the others at once.

        When it was the last one, only their counts are kept: the cursor reads them again for whoever comes next, of
        whatever type, and a subscription that nobody uses holds no sets of positions.
        """
        self._take_back_all(consumer)
        self.consumers.remove(consumer)
        self._level_of(consumer.priority_level).remove(consumer)
        self._levels = [level for level in self._levels if level.consumers]
        if self.consumers:
            return Redelivery(rewind=False, wake=self._can_move())
        self._forget_deliveries()
        return Redelivery(rewind=True, wake=False)

    def flow(self, consumer: ConsumerState, permits: int) -> bool:
        if permits <= 0:
            return False
        consumer.permits += permits
        return consumer.can_take() and not self.blocked

    def next_read(self) -> ReadPlan | None:
        """As many entries as the permits will probably pay for, judged by the batches that each consumer got lately."""
        if self.blocked:
            return None
        max_entries = 0
        for consumer in self.consumers:
            if consumer.can_take():
                permits = consumer.permits
                average = consumer.messages_per_entry
                max_entries += permits if average <= 1.0 else ceil(permits / average)
                if max_entries >= self._max_read_batch_entries:
                    max_entries = self._max_read_batch_entries
                    break
        if not max_entries:
            return None
        replay = self._replay.take(max_entries) if self._replay else None
        return ReadPlan(max_entries, self._max_read_size_bytes, replay, self._epoch)

    def give_back(self, plan: ReadPlan) -> None:
        if self.is_void(plan) or plan.replay is None:
            return
        for ledger_id, entry_id in plan.replay:
            if not self._pending.holds(ledger_id, entry_id):
                self._replay.add(ledger_id, (entry_id,))

    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        if self.is_void(plan):
            return []
        if self._pending.overlaps(run.ledger_id, run.entry_ids):
            run = self._without_pending(run)
        if self._replay:
            self._replay.discard(run.ledger_id, run.entry_ids)
        message_counts = run.message_counts
        if run.ack_sets is not None:
            message_counts = [
                message_count if words is None else ack_set.count(words)
                for message_count, words in zip(message_counts, run.ack_sets, strict=True)
            ]
        deliveries: list[Delivery] = []
        start = 0
        while start < len(run.entry_ids):
            consumer = self._take_turn()
            if consumer is None:
                self._replay.add(run.ledger_id, run.entry_ids[start:])
                break
            end = self._end_of_turn(consumer, message_counts, start)
            deliveries.append(self._deliver(consumer, run, message_counts, start, end))
            start = end
        return deliveries

    def acked(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        if self._replay:
            self._replay.discard(ledger_id, entry_ids)
        if self.redelivery_counts:
            self.redelivery_counts.forget(ledger_id, entry_ids)
        return self._released(self._pending.remove(ledger_id, entry_ids))

    def acked_partly(self, ledger_id: int, entry_id: int, unacked_messages: int) -> bool:
        return self._released(self._pending.lower(ledger_id, entry_id, unacked_messages))

    def acked_up_to(self, position: Position) -> bool:
        if self._replay:
            self._replay.discard_up_to(position)
        if self.redelivery_counts:
            self.redelivery_counts.forget_up_to(position)
        return self._released(self._pending.remove_up_to(position))

    def redeliver(self, consumer: ConsumerState, positions: Sequence[Position] | None) -> Redelivery:
        """Only what `consumer` holds: what it acknowledged meanwhile, or lost to others, does not come again."""
        if positions is None:
            self._take_back_all(consumer)
        else:
            for ledger_id, entry_id in positions:
                self._take_back(consumer, ledger_id, (entry_id,))
        return Redelivery(rewind=False, wake=self._can_move())

    def reset(self) -> None:
        self.redelivery_counts.clear()
        self._forget_deliveries()

    def check_invariants(self) -> None:
        held: dict[int, int] = {}
        for ledger_id, entry_id, consumer, message_count in self._pending:
            assert consumer in self.consumers, "an entry is held by a consumer that left"
            assert message_count > 0, "an entry without unacknowledged messages is held"
            assert Position(ledger_id, entry_id) not in self._replay, "a held entry waits in the replay set"
            held[id(consumer)] = held.get(id(consumer), 0) + message_count
        assert self.unacked_messages == self._pending.total_messages == sum(held.values())
        for consumer in self.consumers:
            assert consumer.unacked_messages == held.get(id(consumer), 0), "a consumer's count is not what it holds"
            _check_blocked(consumer.blocked, consumer.unacked_messages, consumer.max_unacked_messages)
        _check_blocked(self.blocked, self.unacked_messages, self._max_unacked_messages)
        by_level = [consumer for level in self._levels for consumer in level.consumers]
        assert len(by_level) == len(self.consumers)
        assert all(level.consumers for level in self._levels)

    def _level_of(self, priority_level: int) -> _PriorityLevel:
        """The level, made when nobody is on it yet."""
        for level in self._levels:
            if level.priority_level == priority_level:
                return level
        level = _PriorityLevel(priority_level)
        self._levels.append(level)
        self._levels.sort(key=lambda level: level.priority_level)
        return level

    def _take_turn(self) -> ConsumerState | None:
        if self.blocked:
            return None
        for level in self._levels:
            consumer = level.take_turn()
            if consumer is not None:
                return consumer
        return None

    def _end_of_turn(self, consumer: ConsumerState, message_counts: list[int], start: int) -> int:
        """Behind the last entry that `consumer` gets in this turn: while it has a permit and no limit is reached."""
        budget = consumer.permits
        if consumer.max_unacked_messages:
            budget = min(budget, consumer.max_unacked_messages - consumer.unacked_messages)
        if self._max_unacked_messages:
            budget = min(budget, self._max_unacked_messages - self.unacked_messages)
        end = min(len(message_counts), start + self._max_round_robin_entries)
        for index in range(start, end):
            budget -= message_counts[index]
            if budget <= 0:
                return index + 1
        return end

    def _deliver(
        self, consumer: ConsumerState, run: AssignInput, message_counts: list[int], start: int, end: int
    ) -> Delivery:
        """`message_counts` are those to be acknowledged; the delivery carries the counts of the whole batches."""
        entry_ids = _part(run.entry_ids, start, end)
        messages = self._pending.add(consumer, run.ledger_id, entry_ids, _part_of_list(message_counts, start, end))
        consumer.spend(messages, end - start)
        self.unacked_messages += messages
        if 0 < self._max_unacked_messages <= self.unacked_messages:
            self.blocked = True
        counts = self.redelivery_counts
        return Delivery(
            consumer,
            run.ledger_id,
            entry_ids,
            _part_of_list(run.payloads, start, end),
            _part_of_list(run.message_counts, start, end),
            messages,
            counts.column(run.ledger_id, entry_ids) if counts else None,
            None if run.ack_sets is None else _part_of_list(run.ack_sets, start, end),
        )

    def _without_pending(self, run: AssignInput) -> AssignInput:
        """Entries that somebody holds already were read a second time: they are not sent to anybody else."""
        kept = [
            index for index, entry_id in enumerate(run.entry_ids) if not self._pending.holds(run.ledger_id, entry_id)
        ]
        return AssignInput(
            run.ledger_id,
            [run.entry_ids[index] for index in kept],
            [run.payloads[index] for index in kept],
            [run.message_counts[index] for index in kept],
            None if run.ack_sets is None else [run.ack_sets[index] for index in kept],
        )

    def _take_back(self, consumer: ConsumerState, ledger_id: int, entry_ids: Sequence[int]) -> None:
        taken = self._pending.take_back(consumer, ledger_id, entry_ids)
        self._replay.add(ledger_id, taken)
        self.redelivery_counts.increase(ledger_id, taken)
        self._released(False)

    def _take_back_all(self, consumer: ConsumerState) -> None:
        for ledger_id, entry_ids in self._pending.held_by(consumer).items():
            self._take_back(consumer, ledger_id, entry_ids)

    def _released(self, unblocked: bool) -> bool:
        """Bring the subscription's own count and limit up to date after the pending acks shrank."""
        self.unacked_messages = self._pending.total_messages
        if self.blocked and self.unacked_messages <= self._max_unacked_messages // 2:
            self.blocked = False
            return True
        return unblocked and not self.blocked

    def _can_move(self) -> bool:
        return not self.blocked and any(consumer.can_take() for consumer in self.consumers)

    def _forget_deliveries(self) -> None:
        """The cursor reads everything again: void the read under way with the sets."""
        self._epoch = object()
        self._pending.clear()
        self._replay.clear()
        self._released(False)


def _part(entry_ids: Sequence[int], start: int, end: int) -> Sequence[int]:
    return entry_ids if start == 0 and end == len(entry_ids) else entry_ids[start:end]


def _part_of_list(column: list[_T], start: int, end: int) -> list[_T]:
    """`column[start:end]` without a copy of the whole."""
    return column if start == 0 and end == len(column) else column[start:end]


def _check_blocked(blocked: bool, unacked_messages: int, max_unacked_messages: int) -> None:
    if not max_unacked_messages:
        assert not blocked, "blocked without a limit"
    elif unacked_messages >= max_unacked_messages:
        assert blocked, "over the limit and not blocked"
    elif unacked_messages <= max_unacked_messages // 2:
        assert not blocked, "blocked at half of the limit"
