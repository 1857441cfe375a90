"""Dispatcher of Key_Shared subscriptions in the classic mode, as before Pulsar 4.0: a new consumer waits until all
entries read before it joined are acknowledged.

Until then, the consumer receives only earlier entries of its hashes that other consumers returned. With several new
consumers the oldest position limits all, because an earlier consumer may have later entries unacknowledged.

Draining hashes are used as well: positions alone do not keep a key at one consumer if entries are returned individually
while new consumers wait.
"""

from __future__ import annotations

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import Redelivery
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.model.position import EARLIEST, Position


class ClassicKeySharedDispatcher(KeySharedDispatcher):
    """Invariant: the positions in `recently_joined` ascend; exactly its consumers are limited, all by the first
    position.

    The subscription calls `mark_delete_moved` before it adds a consumer and whenever the mark-delete position has
    moved. It sets `read_position_when_joining` before it adds the consumer.
    """

    follows_mark_delete = True
    _first_unacked = EARLIEST

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        redelivery = super().add_consumer(consumer)
        joined_at = consumer.read_position_when_joining
        # Sticky ranges never move from one connected consumer to another.
        is_alone = len(self.consumers) == 1 or self.owners.mode == "STICKY" or self.owners.allows_out_of_order_delivery
        if is_alone or joined_at is None or joined_at <= self._first_unacked:
            consumer.read_position_when_joining = None
        self._limit_newcomers()
        return redelivery

    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        consumer.read_position_when_joining = None
        redelivery = super().remove_consumer(consumer)
        if len(self.consumers) == 1:
            self.consumers[0].read_position_when_joining = None  # No earlier consumer exists.
        self._limit_newcomers()
        return redelivery

    def mark_delete_moved(self, first_unacked: Position) -> bool:
        self._first_unacked = first_unacked
        released = False
        for consumer, joined_at in self.recently_joined():
            if joined_at <= first_unacked:
                consumer.read_position_when_joining = None
                released = True
        if not released:
            return False
        self._limit_newcomers()
        return self._can_move()

    def recently_joined(self) -> list[tuple[ConsumerState, Position]]:
        return [
            (consumer, consumer.read_position_when_joining)
            for consumer in self.consumers
            if consumer.read_position_when_joining is not None
        ]

    def check_invariants(self) -> None:
        super().check_invariants()
        joined = self.recently_joined()
        first = min((position for _, position in joined), default=None)
        assert self._limits == {consumer: first for consumer, _ in joined}
        assert first is None or first > self._first_unacked

    def _limit_newcomers(self) -> None:
        joined = self.recently_joined()
        first = min((position for _, position in joined), default=EARLIEST)
        self._limits = {consumer: first for consumer, _ in joined}

    def _forget_deliveries(self) -> None:
        for consumer in self.consumers:
            consumer.read_position_when_joining = None
        self._first_unacked = EARLIEST
        super()._forget_deliveries()
