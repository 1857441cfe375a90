"""Common base of the dispatchers of Shared and Key_Shared subscriptions, which serve several consumers.

Entries that a consumer returns, or has when it leaves, wait for redelivery with an increased redelivery count. A
consumer and the subscription stop at their limits of unacknowledged messages and continue at half of them. A subclass
assigns entries to consumers, and keeps entries that must wait.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.chunks.chunked_messages import ChunkedMessages
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.redelivery_queue import RedeliveryCounts, Waiting
from pybroker.dispatch.views import IndividualView
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position


class MultiConsumerDispatcher(Dispatcher):
    """The base of Shared and Key_Shared dispatchers.

    Invariant: an entry is in `PendingAcks`, or waits to be sent, or neither; never both.
    """

    keeps_chunks_together = True

    def __init__(
        self,
        redelivery_counts: RedeliveryCounts,
        max_read_batch_entries: int,
        max_read_size_bytes: int,
        max_unacked_messages: int,
        replay: Waiting,
        draining: DrainingHashes | None = None,
    ) -> None:
        """`max_unacked_messages` is the limit of the whole subscription; 0 means no limit."""
        super().__init__(redelivery_counts)
        self._max_read_batch_entries = max_read_batch_entries
        self._max_read_size_bytes = max_read_size_bytes
        self._max_unacked_messages = max_unacked_messages
        self._pending = PendingAcks(draining)
        self._chunked = ChunkedMessages(self._pending)
        self._replay = replay

    @property
    def replay_entry_count(self) -> int:
        return len(self._replay)

    @property
    def redelivery_entry_count(self) -> int:
        return self.redelivery_counts.count_waiting(self._replay)

    @property
    def active_consumer(self) -> ConsumerState | None:
        return None

    @property
    def individual(self) -> IndividualView:
        return self

    @property
    def chunked(self) -> ChunkedMessages:
        return self._chunked

    @property
    def max_unacked_messages(self) -> int:
        return self._max_unacked_messages

    @property
    def waiting(self) -> Waiting:
        return self._replay

    @property
    def pending(self) -> PendingAcks:
        return self._pending

    def chunks_beside(self, consumer: ConsumerState, position: Position) -> list[Position]:
        return self._chunked.chunks_beside(consumer, position) if self._chunked else [position]

    @abstractmethod
    def _add_to_replay(self, ledger_id: int, entry_ids: Sequence[int], sticky_hashes: Sequence[int]) -> None: ...

    def blocked_reason(self) -> BlockedReason:
        if self.blocked:
            return BlockedReason.UNACKED_SUBSCRIPTION
        if not self.consumers:
            return BlockedReason.NO_CONSUMER
        if any(consumer.can_take() for consumer in self.consumers):
            return BlockedReason.LOOK_AHEAD
        # Report the reason of the consumer that is closest to receiving an entry.
        gates = {consumer.blocked_reason() for consumer in self.consumers}
        return next(
            blocked_reason
            for blocked_reason in (
                BlockedReason.CONNECTION_FULL,
                BlockedReason.NO_PERMITS,
                BlockedReason.UNACKED_CONSUMER,
            )
            if blocked_reason in gates
        )

    def flow(self, consumer: ConsumerState, permits: int) -> bool:
        if permits <= 0:
            return False
        consumer.permits += permits
        return consumer.can_take() and not self.blocked

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
        if positions is None:
            self._take_back_all(consumer)
        else:
            for ledger_id, entry_id in positions:
                self._take_back(consumer, ledger_id, (entry_id,))
        return Redelivery(rewind=False, wake=self._can_move())

    def take_back(self, groups: Sequence[tuple[int, Sequence[int]]]) -> Redelivery:
        holder = self._pending.holder
        for ledger_id, entry_ids in groups:
            of_consumer: dict[ConsumerState, list[int]] = {}
            for entry_id in entry_ids:
                consumer = holder(Position(ledger_id, entry_id))
                if consumer is not None:
                    of_consumer.setdefault(consumer, []).append(entry_id)
            for consumer, held in of_consumer.items():
                self._take_back(consumer, ledger_id, held)
        return Redelivery(rewind=False, wake=self._can_move())

    def reset(self) -> None:
        self.redelivery_counts.clear()
        self._forget_deliveries()

    def limit_unacked(self, max_of_consumer: int, max_in_all: int) -> bool:
        unblocked = [consumer for consumer in self.consumers if consumer.limit_unacked(max_of_consumer)]
        was_blocked = self.blocked
        self._max_unacked_messages = max_in_all
        self.blocked = 0 < max_in_all <= self.unacked_messages
        return not self.blocked and (was_blocked or bool(unblocked))

    def check_invariants(self) -> None:
        held: dict[int, int] = {}
        for ledger_id, entry_id, consumer, message_count, _ in self._pending:
            assert consumer in self.consumers, "an entry in pending acks belongs to a consumer that has left"
            assert message_count >= 0, "an entry in pending acks has a negative number of messages"
            assert Position(ledger_id, entry_id) not in self._replay, (
                "an entry in pending acks is also in the replay set"
            )
            held[id(consumer)] = held.get(id(consumer), 0) + message_count
        assert self.unacked_messages == self._pending.total_messages == sum(held.values())
        for consumer in self.consumers:
            assert consumer.unacked_messages == held.get(id(consumer), 0), (
                "a consumer's count differs from its pending acks"
            )
            _check_blocked(consumer.blocked, consumer.unacked_messages, consumer.max_unacked_messages)
        _check_blocked(self.blocked, self.unacked_messages, self._max_unacked_messages)
        self._pending.check_invariants()

    def _message_budget(self, consumer: ConsumerState) -> int:
        """Return how many messages the consumer may receive. The entry that exceeds this is sent whole."""
        budget = consumer.permits
        if consumer.max_unacked_messages:
            budget = min(budget, consumer.max_unacked_messages - consumer.unacked_messages)
        if self._max_unacked_messages:
            budget = min(budget, self._max_unacked_messages - self.unacked_messages)
        return budget

    def _deliver(
        self,
        consumer: ConsumerState,
        part: AssignInput,
        unacked_counts: list[int],
        sticky_hashes: list[int] | None = None,
    ) -> Delivery:
        """Return a delivery, which counts all messages of batches, not only unacknowledged ones."""
        messages = self._pending.add(
            consumer, part.ledger_id, part.entry_ids, unacked_counts, sticky_hashes, self.now_ms
        )
        consumer.spend(messages, len(part.entry_ids))
        self.unacked_messages += messages
        if 0 < self._max_unacked_messages <= self.unacked_messages:
            self.blocked = True
        if part.chunks is not None:
            self._chunks_delivered(consumer, part, part.chunks, sticky_hashes)
        counts = self.redelivery_counts
        return Delivery(
            consumer,
            part.ledger_id,
            part.entry_ids,
            part.payloads,
            part.message_counts,
            messages,
            counts.column(part.ledger_id, part.entry_ids) if counts.by_ledger else None,
            part.ack_sets,
        )

    def _chunks_delivered(
        self,
        consumer: ConsumerState,
        part: AssignInput,
        chunks: list[Chunk | None],
        sticky_hashes: list[int] | None,
    ) -> None:
        for index, chunk in enumerate(chunks):
            if chunk is not None:
                position = Position(part.ledger_id, part.entry_ids[index])
                self._chunked.delivered(chunk, consumer, position, sticky_hashes[index] if sticky_hashes else 0)

    def _without_pending(self, run: AssignInput) -> AssignInput:
        """Return the entries of `run` that no consumer has, for a run of which a consumer has some."""
        pending = self._pending
        return run.rows(
            [index for index, entry_id in enumerate(run.entry_ids) if not pending.holds(run.ledger_id, entry_id)]
        )

    def _take_back(self, consumer: ConsumerState, ledger_id: int, entry_ids: Sequence[int]) -> None:
        taken, sticky_hashes = self._pending.take_back(consumer, ledger_id, entry_ids)
        self._add_to_replay(ledger_id, taken, sticky_hashes)
        self.redelivery_counts.increase(ledger_id, taken)
        self._released(False)

    def _forget_consumer(self, consumer: ConsumerState) -> None:
        self._pending.forget(consumer)
        self._chunked.forget(consumer)

    def _take_back_all(self, consumer: ConsumerState) -> None:
        for ledger_id, entry_ids in self._pending.held_by(consumer).items():
            self._take_back(consumer, ledger_id, entry_ids)

    def _released(self, unblocked: bool) -> bool:
        self.unacked_messages = self._pending.total_messages
        if self.blocked and self.unacked_messages <= self._max_unacked_messages // 2:
            self.blocked = False
            return True
        return unblocked and not self.blocked

    def _can_move(self) -> bool:
        return not self.blocked and any(consumer.can_take() for consumer in self.consumers)

    def _plan(self, max_entries: int, replay: list[Position] | None, scan: Position | None = None) -> ReadPlan:
        return ReadPlan(max_entries, self._max_read_size_bytes, replay, self._epoch, scan)

    def _forget_deliveries(self) -> None:
        """Void the active read, because the cursor reads everything again."""
        self._epoch = object()
        self._pending.clear()
        self._chunked.clear()
        self._replay.clear()
        self._released(False)


def _check_blocked(blocked: bool, unacked_messages: int, max_unacked_messages: int) -> None:
    if not max_unacked_messages:
        assert not blocked, "blocked without a limit"
    elif unacked_messages >= max_unacked_messages:
        assert blocked, "over the limit and not blocked"
    elif unacked_messages <= max_unacked_messages // 2:
        assert not blocked, "blocked at half of the limit"
