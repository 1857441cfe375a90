"""One topic without a broker: real rules and a real managed ledger in memory; no service, no connection, no HTTP.

Time stands still until a test moves it, and timers ring when it has come that far.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.recording_peer import RecordingPeer
from tests.support.waiting import until

from pybroker.broker.context.broker_context import BrokerContext
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.service import new_broker_context
from pybroker.broker.topic.topic import Topic
from pybroker.config import BrokerConfig
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.resources import Resources
from pybroker.model.events import Ack, SendRun
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies
from pybroker.model.position import Position
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.broker_entry_metadata import entry_time_ms
from pybroker.wire.entry_builder import build_entry

NAME = TopicName.parse("persistent://public/default/t")


class MovedClock(Clock):
    """Both times stand still until a test moves them."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def monotonic_ms(self) -> float:
        return float(self.now_ms)

    def wall_ms(self) -> int:
        return self.now_ms


class TestTimer:
    __test__ = False

    def __init__(self, timers: list[tuple[float, Callable[[], None]]], timer: tuple[float, Callable[[], None]]) -> None:
        self._timers = timers
        self._timer = timer

    def cancel(self) -> None:
        if self._timer in self._timers:
            self._timers.remove(self._timer)


class OneTopicRuntime(Runtime):
    """Timers ring when the test has moved the clock that far."""

    __test__ = False

    def __init__(self, config: BrokerConfig, clock: MovedClock) -> None:
        super().__init__(config, clock)
        self.moved = clock
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TestTimer:
        timer = (self.moved.now_ms + delay_s * 1000, callback)
        self.timers.append(timer)
        return TestTimer(self.timers, timer)

    def move(self, milliseconds: int) -> None:
        """So much time passes."""
        self.moved.now_ms += milliseconds
        due = [timer for timer in self.timers if timer[0] <= self.moved.now_ms]
        self.timers[:] = [timer for timer in self.timers if timer[0] > self.moved.now_ms]
        for _, callback in due:
            callback()


class OneTopic:
    """A topic, and what tests do with it."""

    def __init__(
        self, runtime: OneTopicRuntime, broker_context: BrokerContext, topic: Topic, unloads: list[str]
    ) -> None:
        self.runtime = runtime
        self.broker_context = broker_context
        self.topic = topic
        self.unloads = unloads
        """Why it was to be closed, each time."""

    def producer(self, peer: RecordingPeer, name: str = "p") -> Producer:
        """One that is attached."""
        producer = Producer(self.topic.producer_registry.remove, 1, name, False, 0, peer, {}, 0)
        self.topic.producer_registry.add(producer)
        return producer

    async def publish(
        self, count: int, keys: Sequence[str] = ("",), messages_each: int = 1, deliver_at_ms: int = 0
    ) -> list[Position]:
        """So many entries, with one of `keys` after the other; where they are, once they are stored."""
        peer = RecordingPeer()
        producer = self.producer(peer, f"p{id(peer)}")
        self.topic.publish(producer, run_of(count, keys, messages_each, deliver_at_ms))
        await producer.drained()
        producer.detach()
        assert not peer.errors
        return peer.receipts

    async def subscription(self, name: str = "s") -> Subscription:
        """From the topic's beginning on."""
        return await self.topic.subscription(name, True, True, {})

    def consumer(
        self,
        subscription: Subscription,
        peer: RecordingPeer,
        kind: str = "Shared",
        permits: int = 1000,
        max_unacked: int = 0,
    ) -> Consumer:
        """One that is attached and has asked for so many messages."""
        consumer = Consumer(subscription, 1, "c", 0, max_unacked, peer, {}, 0)
        self.topic.attach(subscription, consumer, kind)
        consumer.flow(permits)
        return consumer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop turn until `condition()` holds."""
        await until(condition)

    async def pumped(self) -> None:
        """All subscriptions have dispatched what they can."""
        await self.until(lambda: not len(self.broker_context.pumps) and not len(self.topic.tasks))


def run_of(count: int, keys: Sequence[str] = ("",), messages_each: int = 1, deliver_at_ms: int = 0) -> SendRun:
    """Messages of producer id 1 with rising sequence ids."""
    run = SendRun(1)
    for index in range(count):
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(messages_each)
        run.payloads.append(build_entry("p", index, 0, b"x", key=keys[index % len(keys)], deliver_at_ms=deliver_at_ms))
    run.size_bytes = sum(map(len, run.payloads))
    return run


def marker() -> bytes:
    """What a broker writes for others."""
    header = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, marker_type=1).SerializeToString()
    return len(header).to_bytes(4, "big") + header


def ack_of(*positions: Position, is_cumulative: bool = False, request_id: int = -1) -> Ack:
    """One ACK of whole entries."""
    ack = Ack(1)
    ack.is_cumulative = is_cumulative
    ack.request_id = request_id
    ack.groups = [(position.ledger_id, [position.entry_id]) for position in positions]
    return ack


@asynccontextmanager
async def one_topic(policies: TopicPolicies | None = None, **settings: Any) -> AsyncIterator[OneTopic]:
    """A loaded topic; `settings` are fields of BrokerConfig."""
    config = BrokerConfig(**settings)
    clock = MovedClock()
    runtime = OneTopicRuntime(config, clock)
    metadata = MemoryMetadataStore()
    resources = Resources(metadata, config.default_number_of_namespace_bundles)
    await resources.load()
    await resources.bootstrap(config.cluster_name, config.bootstrap_namespaces)
    store, cursors = MemoryLedgerStore(entry_time_ms), MemoryCursorStore()
    ledgers = ManagedLedgerFactory(
        LedgerResources(store, EntryCache(1 << 20), LedgerLimits(), clock, 10, entry_time_ms, runtime.memory),
        cursors,
        metadata,
    )
    broker_context = new_broker_context(runtime, metadata, resources, ledgers)
    await broker_context.load()
    unloads: list[str] = []
    ledger = await ledgers.open(metadata_paths.managed_ledger(NAME))
    topic = Topic(broker_context, NAME, ledger, policies or TopicPolicies(), lambda _, reason: unloads.append(reason))
    try:
        yield OneTopic(runtime, broker_context, topic, unloads)
    finally:
        await topic.close()
        await broker_context.tasks.close()
        await ledgers.close()
        await store.close()
