"""Helpers of the dispatcher tests: consumers, runs of entries, and a subscription reduced to a read position."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher, ReadPlan
from pybroker.dispatch.key_shared_classic import ClassicKeySharedDispatcher
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher, KeySharedSettings
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

LEDGER = 5


def consumer(name: str = "c", *, priority_level: int = 0, max_unacked_messages: int = 0) -> ConsumerState:
    return ConsumerState(name, priority_level, max_unacked_messages, None)


def sticky_consumer(name: str, *ranges: tuple[int, int]) -> ConsumerState:
    return ConsumerState(name, 0, 0, None, KeySharedOptions(list(ranges), False))


def shared(
    *,
    counts: RedeliveryCounts | None = None,
    max_read_batch_entries: int = 100,
    max_round_robin_entries: int = 20,
    max_unacked_messages: int = 0,
    look_ahead_bytes: int = 0,
) -> SharedDispatcher:
    return SharedDispatcher(
        RedeliveryCounts() if counts is None else counts,
        max_read_batch_entries,
        1 << 20,
        max_round_robin_entries,
        max_unacked_messages,
        look_ahead_bytes,
    )


def exclusive(*, counts: RedeliveryCounts | None = None, max_read_batch_entries: int = 100) -> ExclusiveDispatcher:
    return ExclusiveDispatcher(RedeliveryCounts() if counts is None else counts, max_read_batch_entries, 1 << 20)


def key_shared(
    *,
    counts: RedeliveryCounts | None = None,
    ring_points: int = 0,
    per_consumer: int = 0,
    per_subscription: int = 0,
    max_read_batch_entries: int = 100,
    max_unacked_messages: int = 0,
    classic: bool = False,
    look_ahead_bytes: int = 0,
) -> KeySharedDispatcher:
    """The first consumer has all hashes, the second one takes the lower half."""
    kind = ClassicKeySharedDispatcher if classic else KeySharedDispatcher
    return kind(
        RedeliveryCounts() if counts is None else counts,
        max_read_batch_entries,
        1 << 20,
        max_unacked_messages,
        KeySharedSettings(ring_points, per_consumer, per_subscription, look_ahead_bytes),
    )


LOW, LOW_2, HIGH, HIGH_2 = 100, 200, 40_000, 50_000
"""Key hashes in the lower and in the upper half of the space."""


def run_of(
    entry_ids: Sequence[int],
    messages_each: int = 1,
    ack_sets: list[list[int] | None] | None = None,
    key_hashes: list[int] | None = None,
) -> AssignInput:
    payloads = [b"%d" % entry_id for entry_id in entry_ids]
    return AssignInput(LEDGER, entry_ids, payloads, [messages_each] * len(entry_ids), ack_sets, key_hashes)


def got(deliveries: list[Delivery]) -> list[tuple[str, list[int]]]:
    return [(delivery.consumer.name, list(delivery.entry_ids)) for delivery in deliveries]


class Feed:
    """The part of a subscription that a dispatcher needs: a read position over existing entries of one ledger."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        entry_count: int,
        messages_each: int = 1,
        key_hashes: Sequence[int] = (0,),
        chunks: Sequence[Chunk | None] = (None,),
    ) -> None:
        """The entries have these keys, and are these chunks of larger messages, in turn."""
        self.chunks = chunks
        self.dispatcher = dispatcher
        self.key_hashes = key_hashes
        self.entry_count = entry_count
        self.messages_each = messages_each
        self.read_position = 0
        self.scanned_entries = 0

    def pump(self) -> list[tuple[str, list[int]]]:
        """Read and assign until no consumer can take an entry or none is left. Return the deliveries."""
        deliveries: list[Delivery] = []
        while True:
            plan = self.dispatcher.next_read()
            if plan is None:
                return got(deliveries)
            if plan.replay is not None:
                entry_ids: Sequence[int] = [position.entry_id for position in plan.replay]
            elif plan.scan is not None:
                entry_ids = self._scanned_by(plan)
            else:
                entry_ids = range(self.read_position, min(self.entry_count, self.read_position + plan.max_entries))
                self.read_position += len(entry_ids)
            if not entry_ids and plan.scan is None:
                plan = self.dispatcher.next_scan()
                if plan is None:
                    return got(deliveries)
                entry_ids = self._scanned_by(plan)
            keys = [self.key_hashes[entry_id % len(self.key_hashes)] for entry_id in entry_ids]
            if entry_ids:
                run = run_of(entry_ids, self.messages_each, None, keys)
                chunks = [self.chunks[entry_id % len(self.chunks)] for entry_id in entry_ids]
                run.chunks = chunks if any(chunks) else None
                deliveries += self.dispatcher.assign(plan, run)
            if plan.scan is not None:
                end = plan.scan.entry_id + len(entry_ids)
                self.dispatcher.scanned(plan, Position(LEDGER, end), is_at_end=end >= self.read_position)
            self.dispatcher.check_invariants()

    def _scanned_by(self, plan: ReadPlan) -> Sequence[int]:
        assert plan.scan is not None
        first = plan.scan.entry_id
        entry_ids = range(first, min(self.read_position, first + plan.max_entries))
        self.scanned_entries += len(entry_ids)
        return entry_ids


def positions(*entry_ids: int) -> list[Position]:
    return [Position(LEDGER, entry_id) for entry_id in entry_ids]
