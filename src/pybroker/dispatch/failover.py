"""Dispatcher of Failover subscriptions: one active consumer receives all entries, the others wait to replace it.

Only consumers of the best priority level are eligible. On a partition, the consumers are ordered by name, and the
partition's number modulo their count is the index of the active one, so that partitions spread over the consumers. On
other topics, and on partitions if so configured, a hash ring of the consumer names is used, with the topic's name as
key.

A change of the active consumer stops dispatch. After a delay for acknowledgements of the former active consumer, the
new one starts at the first unacknowledged entry. Only then are all consumers notified, as in Pulsar.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import ReadPlan, Redelivery
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.single_active import SingleActiveDispatcher
from pybroker.model.hashing import key_hash

_RING_POINTS = 100


class FailoverDispatcher(SingleActiveDispatcher):
    """Dispatcher of one Failover subscription. Invariant: between a change of the active consumer and `start()`,
    nothing is read.
    """

    kind = "Failover"

    def __init__(
        self,
        redelivery_counts: RedeliveryCounts,
        max_read_batch_entries: int,
        max_read_size_bytes: int,
        topic_name: str,
        partition: int | None,
        is_flow_precise: bool = False,
    ) -> None:
        """`topic_name` is the full name; with `partition` None, the consumer is elected by the hash ring."""
        super().__init__(redelivery_counts, max_read_batch_entries, max_read_size_bytes, is_flow_precise)
        self._topic_name = topic_name
        self._partition = partition
        self._is_starting = False

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        before = self._active
        redelivery = super().add_consumer(consumer)
        if self._active is before:
            redelivery.notices = [(consumer, False)]
        return redelivery

    def flow(self, consumer: ConsumerState, permits: int) -> bool:
        return super().flow(consumer, permits) and not self._is_starting

    def next_read(self) -> ReadPlan | None:
        return None if self._is_starting else super().next_read()

    def blocked_reason(self) -> BlockedReason:
        return BlockedReason.STARTING if self._is_starting else super().blocked_reason()

    def start(self) -> Redelivery:
        if not self._is_starting:
            return Redelivery(rewind=False, wake=False)
        self._is_starting = False
        self._void_reads()
        notices = [(consumer, consumer is self._active) for consumer in self.consumers]
        return Redelivery(rewind=True, wake=self._can_move(), notices=notices)

    def check_invariants(self) -> None:
        super().check_invariants()
        assert self._active is self._elect()
        assert self._active is not None or not self._is_starting

    def _elect(self) -> ConsumerState | None:
        return elect(self.consumers, self._topic_name, self._partition)

    def _elect_again(self) -> Redelivery:
        redelivery = super()._elect_again()
        if self._active is None:
            self._is_starting = False
            return redelivery
        if not redelivery.rewind:
            return redelivery
        was_starting, self._is_starting = self._is_starting, True
        return Redelivery(rewind=False, wake=False, start_later=not was_starting)

    def _can_move(self) -> bool:
        return not self._is_starting and super()._can_move()


def elect(consumers: Sequence[ConsumerState], topic_name: str, partition: int | None) -> ConsumerState | None:
    """Return the active consumer of a Failover subscription; None without consumers. `topic_name` is the full name.
    `partition`: the number of the partition, or None to elect by the hash ring.
    """
    if not consumers:
        return None
    best_level = min(consumer.priority_level for consumer in consumers)
    best = [consumer for consumer in consumers if consumer.priority_level == best_level]
    best.sort(key=_name)
    if partition is not None:
        return best[partition % len(best)]
    ring: dict[int, ConsumerState] = {}
    for consumer in best:
        for index in range(_RING_POINTS):
            ring[key_hash(f"{consumer.name}{index}".encode())] = consumer
    points = sorted(ring)
    index = bisect_left(points, key_hash(topic_name.encode()))
    return ring[points[index % len(points)]]


def _name(consumer: ConsumerState) -> str:
    return consumer.name
