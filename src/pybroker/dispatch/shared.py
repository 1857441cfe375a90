"""Dispatcher of Shared subscriptions: each entry goes to one consumer, round robin by priority level and permits.

An entry is sent whole to a consumer with at least one permit; a batch may make the permits negative. Each consumer of a
level receives up to `max_round_robin_entries` at a time. The next level is served only while no consumer of a better
level can take entries. Entries that were read and could not be delivered precede new reads.

All chunks of a large message go to the consumer that received the first, even if they must wait for it. Chunks that
wait are kept within `look_ahead_bytes`, as long as the chunks of one consumer cost less than the free memory. If the
consumer leaves, all entries are read again, and the chunks go to one other consumer.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.dispatch.chunks.parked_chunks import ParkedChunks
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, ReadPlan, Redelivery
from pybroker.dispatch.look_ahead import ChunkLookAhead, ChunksOfConsumer
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.priority_levels import PriorityLevels
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.shared_redelivery import BoundReplay
from pybroker.dispatch.views import ChunkOrderView
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position


class SharedDispatcher(MultiConsumerDispatcher):
    """Dispatcher of one Shared subscription. Invariant: every consumer is on its priority level."""

    kind = "Shared"
    _replay: BoundReplay

    def __init__(
        self,
        redelivery_counts: RedeliveryCounts,
        max_read_batch_entries: int,
        max_read_size_bytes: int,
        max_round_robin_entries: int,
        max_unacked_messages: int,
        look_ahead_bytes: int = 0,
    ) -> None:
        """`max_unacked_messages`: the limit of the whole subscription. 0 means no limit, also for `look_ahead_bytes`."""
        super().__init__(
            redelivery_counts, max_read_batch_entries, max_read_size_bytes, max_unacked_messages, BoundReplay()
        )
        self._max_round_robin_entries = max_round_robin_entries
        self._levels = PriorityLevels()
        self._most_look_ahead_bytes = self._look_ahead_bytes = look_ahead_bytes
        self._parked = ParkedChunks()
        self._is_scans_turn = False

    @property
    def waiting(self) -> BoundReplay:
        return self._replay

    @property
    def chunk_order(self) -> ChunkOrderView:
        return self

    @property
    def parked_chunks(self) -> ParkedChunks:
        return self._parked

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def bound_entries(self) -> dict[ConsumerState, int]:
        return self._replay.bound_counts()

    @property
    def holds_chunks_back(self) -> bool:
        return bool(self._parked.first_by_consumer or self._replay.bound)

    @property
    def look_ahead_size_bytes(self) -> int:
        return self._replay.bound_bytes()

    def limit_look_ahead(self, size_bytes: int) -> None:
        self._look_ahead_bytes = min(self._most_look_ahead_bytes or size_bytes, size_bytes)

    def look_ahead(self) -> ChunkLookAhead:
        replay, aside = self._replay, self._parked
        counts = {**dict.fromkeys(aside, 0), **replay.bound_counts()}
        return ChunkLookAhead(
            sum(counts.values()),
            self.look_ahead_size_bytes,
            self._look_ahead_bytes,
            aside.position,
            [
                ChunksOfConsumer(consumer, entries, replay.bound_since_ms(consumer), aside.from_position(consumer))
                for consumer, entries in counts.items()
            ],
        )

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        assert consumer not in self.consumers, "consumer attached twice"
        self.consumers.append(consumer)
        self._levels.add(consumer)
        return Redelivery(rewind=False, wake=False)

    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Remove the consumer. Return the actions that the subscription must carry out. The unacknowledged entries of
        the consumer go to other consumers immediately. When the last consumer leaves, only the redelivery counts are
        kept.
        """
        self._take_back_all(consumer)
        self._forget_consumer(consumer)
        self._replay.unbind(consumer)
        self.consumers.remove(consumer)
        self._levels.remove(consumer)
        if self.consumers and self._parked.forget(consumer):
            # The positions of this consumer's parked chunks are unknown, and other consumers must receive them in
            # order. The cursor is rewound to find them, and the parked chunks of other consumers.
            self._parked.clear()
            self._epoch = object()
            return Redelivery(rewind=True, wake=self._can_move())
        if self.consumers:
            return Redelivery(rewind=False, wake=self._can_move())
        self._forget_deliveries()
        return Redelivery(rewind=True, wake=False)

    def next_read(self) -> ReadPlan | None:
        if self.blocked:
            return None
        max_entries = 0
        for consumer in self.consumers:
            max_entries += consumer.affordable_entries()
            if max_entries >= self._max_read_batch_entries:
                max_entries = self._max_read_batch_entries
                break
        if not max_entries:
            return None
        if self._parked.first_by_consumer:
            self._is_scans_turn = not self._is_scans_turn
            scan = self._scan() if self._is_scans_turn else None
            if scan is not None:
                return scan
        waiting = self._replay
        replay = waiting.take(max_entries) or None if waiting.free.by_ledger or waiting.bound else None
        return ReadPlan(max_entries, self._max_read_size_bytes, replay, self._epoch)

    def next_scan(self) -> ReadPlan | None:
        if self.blocked or not self._parked.first_by_consumer:
            return None
        self._is_scans_turn = True
        return self._scan()

    def _scan(self) -> ReadPlan | None:
        """Plan a scan for consumers that can take entries, unless free entries wait."""
        self._replay.unbind_able()
        able = [consumer for consumer in self._parked if consumer.can_take()]
        if not able or self._replay.free.by_ledger:
            return None
        position = self._parked.position
        if position is None:
            position = self._parked.begin_scan(able)
        return self._plan(self._max_read_batch_entries, None, position)

    def scanned(self, plan: ReadPlan, up_to: Position, *, is_at_end: bool) -> None:
        aside = self._parked
        if self.is_void(plan) or aside.position is None:
            return
        aside.advance_scan(max(up_to, aside.position))
        if is_at_end:
            aside.finish_scan()

    def give_back(self, plan: ReadPlan) -> None:
        if self.is_void(plan) or plan.replay is None:
            return
        for ledger_id, entry_id in plan.replay:
            if not self._pending.holds(ledger_id, entry_id):
                self._replay.add(ledger_id, (entry_id,))

    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        if plan.epoch is not self._epoch:  # `is_void`, without its call: this runs for each message
            return []
        last_entry_id = run.entry_ids[-1]
        if self._pending.overlaps(run.ledger_id, run.entry_ids):
            run = self._without_pending(run)
        waiting = self._replay
        if plan.scan is not None:
            run = self._set_aside_rows(run)
        elif waiting.free.by_ledger or waiting.bound:
            waiting.discard(run.ledger_id, run.entry_ids)
        unacked_counts = run.message_counts if run.ack_sets is None else run.unacked_counts()
        deliveries: list[Delivery] = []
        start = 0
        if run.chunks is not None:
            for index, chunk in enumerate(run.chunks):
                if chunk is not None:
                    self._assign_rows(run, unacked_counts, start, index, deliveries)
                    self._assign_chunk(plan, run, unacked_counts, index, chunk, deliveries)
                    start = index + 1
        self._assign_rows(run, unacked_counts, start, len(run.entry_ids), deliveries)
        if plan.scan is not None and self._parked.position is not None:
            self._parked.advance_scan(Position(run.ledger_id, last_entry_id + 1))
        return deliveries

    def _set_aside_rows(self, run: AssignInput) -> AssignInput:
        chunks = run.chunks or ()
        return run.rows(
            [
                index
                for index, chunk in enumerate(chunks)
                if chunk is not None and Position(run.ledger_id, run.entry_ids[index]) not in self._replay
            ]
        )

    def _assign_rows(
        self, run: AssignInput, unacked_counts: list[int], start: int, end: int, deliveries: list[Delivery]
    ) -> None:
        while start < end:
            consumer = None if self.blocked else self._levels.take_turn()
            if consumer is None:
                self._replay.add(run.ledger_id, run.entry_ids[start:end])
                break
            turn_end = end if start + 1 == end else self._end_of_turn(consumer, unacked_counts, start, end)
            if turn_end - start == len(unacked_counts):
                deliveries.append(self._deliver(consumer, run, unacked_counts))
            else:
                part = _part(run, start, turn_end)
                deliveries.append(self._deliver(consumer, part, unacked_counts[start:turn_end]))
            start = turn_end

    def _assign_chunk(
        self,
        plan: ReadPlan,
        run: AssignInput,
        unacked_counts: list[int],
        index: int,
        chunk: Chunk,
        deliveries: list[Delivery],
    ) -> None:
        """Keep chunks of a message in order at one consumer; a first chunk may go to any."""
        consumer = self._chunked.holder(chunk.uuid)
        if consumer is None:
            self._assign_rows(run, unacked_counts, index, index + 1, deliveries)
            return
        position = Position(run.ledger_id, run.entry_ids[index])
        is_scanned = plan.scan is not None and self._parked.is_scanned(consumer)
        if plan.replay is None and not is_scanned and self._parked.covers(consumer, position):
            return  # An earlier chunk is parked; a scan will find both.
        if self.blocked or not consumer.can_take() or self._replay.is_behind_bound(consumer, position):
            self.looks_ahead = True
            if plan.replay is not None or self._has_room(consumer):
                self._replay.now_ms = self.now_ms
                self._replay.bind(consumer, position)
            elif is_scanned:
                self._parked.leave_scan(consumer, position)
            else:
                self._replay.discard_bound_from(consumer, position)
                self._parked.add(consumer, position)
        else:
            deliveries.append(self._deliver(consumer, _part(run, index, index + 1), unacked_counts[index : index + 1]))

    def _has_room(self, consumer: ConsumerState) -> bool:
        if not self._look_ahead_bytes:
            return True
        return self._replay.bound_bytes_of(consumer) < self._look_ahead_bytes - self._replay.bound_bytes()

    def _forget_deliveries(self) -> None:
        self._parked.clear()
        super()._forget_deliveries()

    def check_invariants(self) -> None:
        super().check_invariants()
        self._replay.check_invariants()
        self._parked.check_invariants()
        assert all(consumer in self.consumers for consumer in self._parked), (
            "an entry is parked for a consumer that has left"
        )
        self._levels.check_invariants(self.consumers)

    def _add_to_replay(self, ledger_id: int, entry_ids: Sequence[int], sticky_hashes: Sequence[int]) -> None:
        self._replay.add(ledger_id, entry_ids)

    def _end_of_turn(self, consumer: ConsumerState, unacked_counts: list[int], start: int, end: int) -> int:
        """Return the index after the last entry that `consumer` receives now: it receives entries while it has a permit
        and no limit is reached.
        """
        budget = self._message_budget(consumer)
        end = min(end, start + self._max_round_robin_entries)
        for index in range(start, end):
            budget -= unacked_counts[index]
            if budget <= 0:
                return index + 1
        return end


def _part(run: AssignInput, start: int, end: int) -> AssignInput:
    return AssignInput(
        run.ledger_id,
        run.entry_ids[start:end],
        run.payloads[start:end],
        run.message_counts[start:end],
        None if run.ack_sets is None else run.ack_sets[start:end],
        None,
        None if run.chunks is None else run.chunks[start:end],
    )
