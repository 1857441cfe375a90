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
from pybroker.broker.lifecycle import open_topic
from pybroker.broker.lifecycle.topic_closing import TopicClosing
from pybroker.broker.lifecycle.topic_loading import TopicLoading
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.producer_registry import ProducerRegistry
from pybroker.broker.topic.subscription_registry import SubscriptionRegistry
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.server.connection import Connection
from pybroker.server.handlers import consumer_commands as consumer_handlers
from pybroker.server.handlers import producer_commands as producer_handlers
from pybroker.waiting.keyed_lock import KeyedLock


def subscriptions_have_no_locks(patch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def lock(self: SubscriptionRegistry, name: str, purpose: str) -> AsyncIterator[None]:
        self._topic.require_open()
        yield

    patch.setattr(SubscriptionRegistry, "lock", lock)


def a_lock_is_never_passed_on(patch: pytest.MonkeyPatch) -> None:
    release = KeyedLock._release

    def to_nobody(self: KeyedLock[Any], name: Any, request: Any) -> None:
        is_of_a_subscription = isinstance(getattr(self._wait_context, "__self__", None), SubscriptionRegistry)
        if not is_of_a_subscription or not self.waiting(name):
            release(self, name, request)

    patch.setattr(KeyedLock, "_release", to_nobody)


def a_reader_takes_the_place_of_a_subscription_in_the_making(patch: pytest.MonkeyPatch) -> None:
    create = SubscriptionRegistry._create

    async def slowly(
        self: SubscriptionRegistry, name: str, first: Position, properties: Mapping[str, str]
    ) -> Subscription:
        made = await create(self, name, first, properties)
        self._topic.in_use()
        await asyncio.sleep(0.05)
        return self.subscriptions.setdefault(name, made)

    subscriptions_have_no_locks(patch)
    patch.setattr(SubscriptionRegistry, "_create", slowly)


def a_topic_that_is_closed_refuses(patch: pytest.MonkeyPatch) -> None:
    async def once(runtime: Any, find: Callable[[], Any], action: Callable[[Any], Any]) -> Any:
        return await action(await find())

    for module in (open_topic, consumer_handlers, producer_handlers):
        patch.setattr(module, "on_open_topic", once)


def a_topic_is_loaded_while_it_is_being_closed(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: TopicClosing, key: str) -> None:
        """Nobody waits."""

    patch.setattr(TopicClosing, "closed", at_once)
    patch.setattr(TopicClosing, "is_being_closed", lambda self, key: False)


def a_topic_is_loaded_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    load = TopicLoading.load

    async def by_oneself(self: TopicLoading, name: TopicName, may_create: bool, *, in_turn: bool) -> Topic:
        key = str(name)
        if (load_of_others := self._loads.get(key)) is not None and load_of_others.has_begun:
            self._loads[key] = None  # type: ignore[assignment]
        return await load(self, name, may_create, in_turn=in_turn)

    patch.setattr(TopicLoading, "load", by_oneself)


def a_close_does_not_wait_for_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: TopicBase) -> None:
        """Nobody waits."""

    patch.setattr(TopicBase, "drained", at_once)


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


def a_key_goes_on_elsewhere_while_it_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DrainingHashes, "drain", lambda self, consumer, sticky_hash, entries, messages, now_ms: None)


def a_drained_key_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DrainingHashes, "take_freed", lambda self: [])


def who_leaves_takes_its_keys_along(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_take_back_all", lambda self, consumer: None)


def dead_consumers_are_not_asked_whether_they_live(patch: pytest.MonkeyPatch) -> None:
    async def nobody_is_dead(self: SubscriptionBase) -> bool:
        return False

    patch.setattr(SubscriptionBase, "is_blocked_by_the_dead", nobody_is_dead)


def dead_producers_are_not_asked_whether_they_live(patch: pytest.MonkeyPatch) -> None:
    async def nobody_is_dead(self: ProducerRegistry, producer: Any) -> bool:
        return False

    patch.setattr(ProducerRegistry, "_outlives_holder", nobody_is_dead)


def who_says_nothing_lives_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "keep_alive_tick", lambda self: None)


def who_waits_for_exclusive_access_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def never(self: ProducerRegistry, producer: Any) -> None:
        """Its turn does not come."""

    patch.setattr(ProducerRegistry, "_give_turn", never)


def exclusive_access_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerRegistry, "_fence_out", lambda self, producer, successor: None)


def what_comes_behind_a_fence_is_dropped(patch: pytest.MonkeyPatch) -> None:
    publish = TopicBase.publish

    def silently(self: TopicBase, producer: Producer, run: SendRun) -> None:
        if producer.is_closed and producer.refusal is not None:
            producer.peer.sends_dropped(run, producer.refusal)
        else:
            publish(self, producer, run)

    patch.setattr(TopicBase, "publish", silently)


def who_is_fenced_out_keeps_its_producer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "producer_fenced", lambda self, producer_id: None)


def producers_are_not_told_that_they_are_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "close_producer", Connection.forget_producer)


def consumers_are_not_told_that_they_are_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "close_consumer", lambda self, consumer_id: self.consumers.pop(consumer_id, None))


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
