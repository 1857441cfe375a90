"""Dispatchers with one active consumer, which receives all entries in order: Exclusive and Failover.

For redelivery, the cursor returns to the mark-delete position. So this dispatcher tracks neither pending acks nor
positions to replay, and acknowledgements cost it nothing.

Permits limit the number of entries read. All entries read are sent, so batches can make the permits very negative.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.delivery_log import DeliveryLog
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.dispatch.views import InOrderView
from pybroker.errors import ConsumerBusy
from pybroker.model import ack_set
from pybroker.model.position import Position


class SingleActiveDispatcher(Dispatcher):
    """Base of Exclusive and Failover: all entries go to the active consumer, which the subclass elects.

    Invariant: the active consumer is attached, and exists whenever a consumer is attached.
    """

    def __init__(
        self,
        redelivery_counts: RedeliveryCounts,
        max_read_batch_entries: int,
        max_read_size_bytes: int,
        is_flow_precise: bool = False,
    ) -> None:
        """With `is_flow_precise`, permits (messages) are converted to entries by recent batch sizes; otherwise one
        permit counts as one entry.
        """
        super().__init__(redelivery_counts)
        self._is_flow_precise = is_flow_precise
        self._max_read_batch_entries = max_read_batch_entries
        self._max_read_size_bytes = max_read_size_bytes
        self._active: ConsumerState | None = None
        self._log = DeliveryLog()

    @property
    def replay_entry_count(self) -> int:
        return 0

    @property
    def active_consumer(self) -> ConsumerState | None:
        return self._active

    @property
    def in_order(self) -> InOrderView:
        return self

    @property
    def ranges(self) -> StickyRangesSelector | None:
        return None

    def delivered_ms(self, position: Position) -> int | None:
        return self._log.at(position)

    def first_delivered_after(self, time_ms: int) -> Position | None:
        return self._log.first_after(time_ms)

    @abstractmethod
    def _elect(self) -> ConsumerState | None: ...

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        assert consumer not in self.consumers, "consumer attached twice"
        self.consumers.append(consumer)
        return self._elect_again()

    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Remove the consumer. The subscription must carry out the returned actions. If the consumer was the active one,
        they include a rewind of the cursor, so that the next active consumer receives the unacknowledged entries.
        """
        self.consumers.remove(consumer)
        return self._elect_again()

    def flow(self, consumer: ConsumerState, permits: int) -> bool:
        if permits <= 0:
            return False
        consumer.permits += permits
        return consumer is self._active and consumer.can_take()

    def next_read(self) -> ReadPlan | None:
        active = self._active
        if active is None or not active.can_take():
            return None
        permits = active.affordable_entries() if self._is_flow_precise else active.permits
        max_entries = min(permits, self._max_read_batch_entries)
        return ReadPlan(max_entries, self._max_read_size_bytes, None, self._epoch)

    def blocked_reason(self) -> BlockedReason:
        return BlockedReason.NO_CONSUMER if self._active is None else self._active.blocked_reason()

    def give_back(self, plan: ReadPlan) -> None:
        """Do nothing. The cursor's read position has not moved past the entries of `plan` that were not read, so the next
        plan contains them.
        """

    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        active = self._active
        if self.is_void(plan) or active is None or not run.entry_ids:
            return []
        messages = sum(run.message_counts)
        if run.ack_sets is not None:
            for message_count, words in zip(run.message_counts, run.ack_sets, strict=True):
                if words is not None:
                    messages -= message_count - ack_set.count(words)
        active.spend(messages, len(run.entry_ids))
        self._log.delivered(run.ledger_id, run.entry_ids[0], self.now_ms)
        return [
            Delivery(
                active, run.ledger_id, run.entry_ids, run.payloads, run.message_counts, messages, None, run.ack_sets
            )
        ]

    def acked(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        if self.redelivery_counts:
            self.redelivery_counts.forget(ledger_id, entry_ids)
        return False

    def acked_partly(self, ledger_id: int, entry_id: int, unacked_messages: int) -> bool:
        return False

    def acked_up_to(self, position: Position) -> bool:
        self._log.forget_up_to(position)
        if self.redelivery_counts:
            self.redelivery_counts.forget_up_to(position)
        return False

    def redeliver(self, consumer: ConsumerState, positions: Sequence[Position] | None) -> Redelivery:
        """Redeliver all unacknowledged entries, not only those at `positions`, because redelivery of single entries
        would break the order. Return the actions that the subscription must carry out.
        """
        if consumer is not self._active:
            return Redelivery(rewind=False, wake=False)
        self._void_reads()
        return Redelivery(rewind=True, wake=self._can_move())

    def take_back(self, groups: Sequence[tuple[int, Sequence[int]]]) -> Redelivery:
        """Redeliver all unacknowledged entries, not only those of `groups` (ledger id, entry ids), because redelivery
        of single entries would break the order. Return the actions that the subscription must carry out.
        """
        active = self._active
        return Redelivery(rewind=False, wake=False) if active is None else self.redeliver(active, None)

    def reset(self) -> None:
        self.redelivery_counts.clear()
        self._void_reads()

    def check_invariants(self) -> None:
        assert (self._active is None) == (not self.consumers)
        assert self._active is None or self._active in self.consumers
        assert self.unacked_messages == 0
        assert not self.blocked
        self._log.check_invariants()
        for consumer in self.consumers:
            assert consumer.unacked_messages == 0
            assert not consumer.blocked

    def _elect_again(self) -> Redelivery:
        """Elect the active consumer after consumers changed.

        A new active consumer begins at the first unacknowledged entry.
        """
        before = self._active
        self._active = self._elect()
        if self._active is before:
            return Redelivery(rewind=False, wake=False)
        self._void_reads()
        return Redelivery(rewind=True, wake=self._can_move())

    def _void_reads(self) -> None:
        """Make active reads void before the cursor is rewound.

        Otherwise their entries would be delivered twice and out of order.
        """
        self._epoch = object()
        self._log.clear()

    def _can_move(self) -> bool:
        return self._active is not None and self._active.can_take()


class ExclusiveDispatcher(SingleActiveDispatcher):
    """A dispatcher of at most one consumer, which can request entries of some hash ranges only. Readers use this to
    share a topic.

    Entries of other hashes are skipped and stay unacknowledged.
    """

    kind = "Exclusive"
    _ranges: StickyRangesSelector | None = None

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        if consumer.key_shared.ranges:
            ranges = StickyRangesSelector()
            ranges.add(consumer)
            self._ranges = ranges
            self.needs_key_hashes = True
        return super().add_consumer(consumer)

    @property
    def ranges(self) -> StickyRangesSelector | None:
        return self._ranges

    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        ranges = self._ranges
        if ranges is not None:
            assert run.key_hashes is not None
            hashes = ranges.sticky_hashes(run.key_hashes)
            run = run.rows([index for index, each in enumerate(hashes) if ranges.owner(each) is not None])
        return super().assign(plan, run)

    def _elect(self) -> ConsumerState | None:
        return self.consumers[0] if self.consumers else None
