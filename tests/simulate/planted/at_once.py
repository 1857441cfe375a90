"""Planted bugs that need two things at the same time: requests, or a request and a crash, a close or an operation of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.delivery.cursor_moves import _fenced
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.delivery.subscription_registry import SubscriptionRegistry
from pybroker.broker.lifecycle import open_topic
from pybroker.broker.lifecycle.topic_closing import TopicClosing
from pybroker.broker.publishing.deduplication import Deduplication, Part, Verdict
from pybroker.broker.publishing.producer_places import ProducerPlaces
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.broker.topic.topic_deduplication import TopicDeduplication
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.errors import StoreError
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position
from pybroker.server.connection import Connection
from pybroker.server.handlers import consumer as consumer_handlers
from pybroker.server.handlers import producer as producer_handlers
from pybroker.server.set_ups import SetUps


def subscriptions_have_no_turns(patch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def turn(self: SubscriptionRegistry, name: str, doing: str) -> AsyncIterator[None]:
        self._topic.require_open()
        yield

    patch.setattr(SubscriptionRegistry, "turn", turn)


def a_turn_is_never_passed_on(patch: pytest.MonkeyPatch) -> None:
    def to_nobody(self: SubscriptionRegistry, name: str) -> None:
        turns = self._turns
        if not turns.waiting(name):
            turns.pass_on(name)
            if not turns and self._all_ended is not None:
                self._all_ended.set()

    patch.setattr(SubscriptionRegistry, "_pass_on", to_nobody)


def a_reader_takes_the_place_of_a_subscription_in_the_making(patch: pytest.MonkeyPatch) -> None:
    create = SubscriptionRegistry._create

    async def slowly(
        self: SubscriptionRegistry, name: str, first: Position, properties: Mapping[str, str]
    ) -> Subscription:
        made = await create(self, name, first, properties)
        self._topic.in_use()
        await asyncio.sleep(0.05)
        return self.subscriptions.setdefault(name, made)

    subscriptions_have_no_turns(patch)
    patch.setattr(SubscriptionRegistry, "_create", slowly)


def a_topic_that_is_closed_refuses(patch: pytest.MonkeyPatch) -> None:
    async def once(surroundings: Any, find: Callable[[], Any], action: Callable[[Any], Any]) -> Any:
        return await action(await find())

    for module in (open_topic, consumer_handlers, producer_handlers):
        patch.setattr(module, "on_open_topic", once)


def a_topic_is_loaded_while_it_is_being_closed(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: TopicClosing, key: str) -> None:
        """Nobody waits."""

    patch.setattr(TopicClosing, "closed", at_once)
    patch.setattr(TopicClosing, "is_being_closed", lambda self, key: False)


def a_close_does_not_wait_for_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: TopicBase) -> None:
        """Nobody waits."""

    patch.setattr(TopicBase, "drained", at_once)


def a_close_forgets_what_is_in_flight_at_cursors(patch: pytest.MonkeyPatch) -> None:
    async def close(self: ManagedCursor) -> None:
        self.drop_ahead()
        if self._store is None or self._is_closed:
            return
        self._is_closed = True
        await self._store.detach(self.cursor_id, is_changed=False)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)

    patch.setattr(ManagedCursor, "close", close)


def a_seek_leaves_consumers_where_they_are(patch: pytest.MonkeyPatch) -> None:
    async def move(subscription: Subscription, position: Position, unacked_words: Sequence[int]) -> None:
        if subscription.dispatcher is not None:
            subscription.dispatcher.reset()
        await subscription.cursor.reset(position, unacked_words)
        subscription.wake()

    patch.setattr(cursor_moves, "_move", move)


def a_seek_keeps_what_is_unacknowledged(patch: pytest.MonkeyPatch) -> None:
    async def reset(subscription: Subscription, position: Position, unacked_words: Sequence[int] = ()) -> None:
        with _fenced(subscription):
            consumers = list(subscription.consumers)
            await subscription.cursor.reset(position, unacked_words)
            for each in consumers:
                each.peer.close_consumer(each.consumer_id)

    patch.setattr(cursor_moves, "reset", reset)


def a_wake_during_a_read_is_lost(patch: pytest.MonkeyPatch) -> None:
    read, wake = Subscription._read, Subscription.wake

    async def and_no_look_afterwards(self: Subscription, plan: Any) -> None:
        self._is_read_ending = True
        try:
            await read(self, plan)
        finally:
            self._is_read_ending = False

    def unless_it_ends(self: Subscription) -> None:
        if not getattr(self, "_is_read_ending", False):
            wake(self)

    patch.setattr(Subscription, "_read", and_no_look_afterwards)
    patch.setattr(Subscription, "wake", unless_it_ends)


def who_publishes_wakes_only_who_stands_at_the_end(patch: pytest.MonkeyPatch) -> None:
    added = Topic.entries_added

    def then_only_some(self: Topic, runs: Any) -> None:
        waiting = [each for each in self.subscriptions.values() if each.is_reading]
        for each in waiting:
            each.is_queued = True
        added(self, runs)
        for each in waiting:
            each.is_queued = False

    patch.setattr(Topic, "entries_added", then_only_some)


def a_key_goes_on_elsewhere_while_it_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DrainingHashes, "blocks", lambda self, consumer, sticky_hash: False)
    patch.setattr(DrainingHashes, "is_held_by_other", lambda self, consumer, sticky_hash: False)
    patch.setattr(DrainingHashes, "released", lambda self, consumer, sticky_hash, message_count=1: None)
    patch.setattr(DrainingHashes, "drain", lambda self, consumer, sticky_hash, entries, messages=None: None)


def a_drained_key_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DrainingHashes, "take_freed", lambda self: [])


def who_leaves_takes_its_keys_along(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_take_back_all", lambda self, consumer: None)


def dead_consumers_are_not_asked_whether_they_live(patch: pytest.MonkeyPatch) -> None:
    async def nobody_is_dead(self: SubscriptionBase) -> bool:
        return False

    patch.setattr(SubscriptionBase, "is_blocked_by_the_dead", nobody_is_dead)
    _no_keep_alive(patch)


def dead_producers_are_not_asked_whether_they_live(patch: pytest.MonkeyPatch) -> None:
    async def nobody_is_dead(self: ProducerPlaces, producer: Any) -> bool:
        return False

    patch.setattr(ProducerPlaces, "_outlives_holder", nobody_is_dead)
    _no_keep_alive(patch)


def _no_keep_alive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "keep_alive_tick", lambda self: None)


def who_waits_for_exclusive_access_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def never(self: ProducerPlaces, producer: Any) -> None:
        """Its turn does not come."""

    patch.setattr(ProducerPlaces, "_give_turn", never)


def exclusive_access_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerPlaces, "_fence_out", lambda self, producer: None)


def what_is_being_stored_is_called_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    judge = Deduplication._judge_each

    def surely(self: Deduplication, known: Any, session: object, run: Any) -> list[Part]:
        parts = judge(self, known, session, run)
        for part in parts:
            if part.verdict in (Verdict.UNKNOWN, Verdict.BEHIND_FAILURE):
                part.verdict = Verdict.DUPLICATE
        return parts

    patch.setattr(Deduplication, "_judge_each", surely)


def sequence_ids_are_not_read_again(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: TopicDeduplication, known: Deduplication, cursor: ManagedCursor) -> int:
        return 0

    patch.setattr(TopicDeduplication, "_replay", nothing)


def publishing_goes_on_while_sequence_ids_are_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deduplication, "found", lambda self, name, sequence_id: None)


def a_set_up_that_was_closed_stays(patch: pytest.MonkeyPatch) -> None:
    async def set_up(self: SetUps[Any], used_id: int, attaching: Any) -> Any:
        with self._begun(used_id):
            return await attaching

    patch.setattr(SetUps, "set_up", set_up)


def who_is_gone_while_it_attaches_stays(patch: pytest.MonkeyPatch) -> None:
    def detach_all(self: Connection) -> None:
        for opened in list(self.producers.values()):
            if opened is not None:
                opened.detach()
        for consumer in list(self.consumers.values()):
            if consumer is not None:
                consumer.detach()

    patch.setattr(Connection, "_detach_all", detach_all)


def a_connection_keeps_its_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "_detach_all", lambda self: None)


def entries_read_twice_are_sent_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiConsumerDispatcher, "_without_pending", lambda self, run: run)
    add = PendingAcks.add

    def over_what_is_there(
        self: PendingAcks, consumer: ConsumerState, ledger_id: int, entry_ids: Any, *rest: Any
    ) -> int:
        self.remove(ledger_id, entry_ids)
        return add(self, consumer, ledger_id, entry_ids, *rest)

    patch.setattr(PendingAcks, "add", over_what_is_there)


def a_redelivery_takes_what_others_hold(patch: pytest.MonkeyPatch) -> None:
    def take_all(self: MultiConsumerDispatcher, consumer: ConsumerState) -> None:
        for each in list(self.consumers):
            for ledger_id, entry_ids in self._pending.held_by(each).items():
                self._take_back(each, ledger_id, entry_ids)

    patch.setattr(SharedDispatcher, "_take_back_all", take_all)


def a_deletion_leaves_the_subscription_attached(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: SubscriptionRegistry, subscription: Subscription) -> None:
        await self._topic.commons.ledgers.delete_cursor(self._ledger, subscription.cursor)
        self.subscriptions.pop(subscription.name, None)

    patch.setattr(SubscriptionRegistry, "_delete", delete)


def acks_during_a_write_are_answered_with_it(patch: pytest.MonkeyPatch) -> None:
    flush = ManagedCursor.flush

    def joins(self: ManagedCursor) -> None:
        if self._is_writing:
            self._in_flight += self._waiting
            self._waiting = []
            self._is_dirty = False
            return
        flush(self)

    patch.setattr(ManagedCursor, "flush", joins)


def a_failed_cursor_write_loses_its_changes(patch: pytest.MonkeyPatch) -> None:
    def written(self: ManagedCursor, error: StoreError | None) -> None:
        self._is_writing = False
        waiting, self._in_flight = self._in_flight, []
        for done in waiting:
            done(None)
        if self._waiting:
            self.flush()

    patch.setattr(ManagedCursor, "_written", written)
