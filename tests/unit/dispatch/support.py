"""What the dispatcher tests share: consumers, runs of entries, and a subscription reduced to a read position."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher
from pybroker.dispatch.replay import RedeliveryCounts
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher
from pybroker.model.position import Position

LEDGER = 5


def consumer(name: str = "c", *, priority_level: int = 0, max_unacked_messages: int = 0) -> ConsumerState:
    return ConsumerState(name, priority_level, max_unacked_messages, None)


def shared(
    *,
    counts: RedeliveryCounts | None = None,
    max_read_batch_entries: int = 100,
    max_round_robin_entries: int = 20,
    max_unacked_messages: int = 0,
) -> SharedDispatcher:
    return SharedDispatcher(
        RedeliveryCounts() if counts is None else counts,
        max_read_batch_entries,
        1 << 20,
        max_round_robin_entries,
        max_unacked_messages,
    )


def exclusive(*, counts: RedeliveryCounts | None = None, max_read_batch_entries: int = 100) -> ExclusiveDispatcher:
    return ExclusiveDispatcher(RedeliveryCounts() if counts is None else counts, max_read_batch_entries, 1 << 20)


def run_of(
    entry_ids: Sequence[int], messages_each: int = 1, ack_sets: list[list[int] | None] | None = None
) -> AssignInput:
    return AssignInput(
        LEDGER, entry_ids, [b"%d" % entry_id for entry_id in entry_ids], [messages_each] * len(entry_ids), ack_sets
    )


def got(deliveries: list[Delivery]) -> list[tuple[str, list[int]]]:
    return [(delivery.consumer.name, list(delivery.entry_ids)) for delivery in deliveries]


class Feed:
    """What a dispatcher needs of a subscription: a read position over entries of one ledger, all there already."""

    def __init__(self, dispatcher: Dispatcher, entry_count: int, messages_each: int = 1) -> None:
        self.dispatcher = dispatcher
        self.entry_count = entry_count
        self.messages_each = messages_each
        self.read_position = 0

    def pump(self) -> list[tuple[str, list[int]]]:
        """Read and assign until nobody can take anything or nothing is left; who got what."""
        deliveries: list[Delivery] = []
        while True:
            plan = self.dispatcher.next_read()
            if plan is None:
                return got(deliveries)
            if plan.replay is not None:
                entry_ids: Sequence[int] = [position.entry_id for position in plan.replay]
            else:
                entry_ids = range(self.read_position, min(self.entry_count, self.read_position + plan.max_entries))
                self.read_position += len(entry_ids)
            if not entry_ids:
                return got(deliveries)
            deliveries += self.dispatcher.assign(plan, run_of(entry_ids, self.messages_each))
            self.dispatcher.check_invariants()


def positions(*entry_ids: int) -> list[Position]:
    return [Position(LEDGER, entry_id) for entry_id in entry_ids]
