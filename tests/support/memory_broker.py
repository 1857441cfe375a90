"""A broker in the test's process: memory stores, real topics, real HTTP, and a wall clock set by the test.

Producers and consumers are attached without sockets, through a peer that records what it receives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import BaseRoute
from tests.support.broker_stores import chosen_stores
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import Answer, call
from tests.support.waiting import until

from pybroker.admin.calls.http_limits import HttpLimits
from pybroker.admin.server import HttpServer
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.service import BrokerService
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.broker_assembly import Stores, build
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.config import BrokerConfig
from pybroker.embedding.stores import Fullness
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.events import Ack, SendRun
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime
from pybroker.server.bind_addresses import BindAddress
from pybroker.server.command_table import command_table
from pybroker.server.listener import Listener
from pybroker.server.server_context import ServerContext
from pybroker.wire import pulsar_api_pb2 as pb

PAYLOAD = b"x" * 80
START_MS = 1_700_000_000_000


class SetClock(Clock):
    """The machine's monotonic time, and a wall clock that only the test moves."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms


class RatesClock(Clock):
    """A clock that advances only at the end of a window of rates."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


class MemoryBroker:
    """A running broker with helpers for tests."""

    def __init__(
        self,
        service: BrokerService,
        clock: SetClock,
        server: HttpServer,
        rates_clock: RatesClock,
        fullness: Fullness,
    ) -> None:
        self.service = service
        self.fullness = fullness
        self.clock = clock
        self.rates_clock = rates_clock
        self._server = server

    async def rest(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request below `/admin/v2`."""
        return await asyncio.to_thread(call, self.url(path), method, body=body)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.port}/admin/v2{path}"

    @property
    def port(self) -> int:
        port = self._server.port
        assert port is not None
        return port

    @property
    def http_limits(self) -> HttpLimits:
        """Return the limits shared by its HTTP requests."""
        return self._server.limits

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Return all HTTP routes."""
        return self._server.routes

    async def topic(self, name: str) -> Topic:
        """Return the topic, which is created if necessary."""
        return await self.service.topics.get(TopicName.parse(name), may_create=True)

    def topic_of(self, subscription: SubscriptionBase) -> Topic:
        """Return the loaded topic."""
        return self.service.loaded.persistent[str(subscription.topic.name)]

    async def end_window(self, seconds: float) -> None:
        """End a window of rates of that length. Call it once at the start to begin the first window."""
        rates = self._server.rates
        self.rates_clock.now_ms += seconds * 1000
        await rates.sample()

    async def publish(
        self,
        topic: Topic,
        count: int,
        keys: Sequence[str] = (),
        messages_each: int = 1,
        publish_time_ms: int | None = None,
    ) -> list[Position]:
        """Publish `count` entries, by default with the current time, with `keys` in rotation. Return their positions
        when they are stored.
        """
        peer = RecordingPeer()
        producer = self.producer(topic, peer)
        run = SendRun(1)
        for index in range(count):
            sent_ms = self.clock.now_ms if publish_time_ms is None else publish_time_ms
            meta = pb.MessageMetadata(producer_name="p", sequence_id=index, publish_time=sent_ms)
            if keys:
                meta.partition_key = keys[index % len(keys)]
            if messages_each > 1:
                meta.num_messages_in_batch = messages_each
            header = meta.SerializeToString()
            run.sequence_ids.append(index)
            run.highest_sequence_ids.append(0)
            run.message_counts.append(messages_each)
            run.payloads.append(len(header).to_bytes(4, "big") + header + PAYLOAD)
        run.size_bytes = sum(map(len, run.payloads))
        topic.publish(producer, run)
        await producer.drained()
        await self.rolled_over(topic)
        producer.detach()
        assert not peer.errors
        return peer.receipts

    async def rolled_over(self, topic: Topic) -> None:
        """Wait until a ledger that is being created exists, so that the next entry behind a full ledger is in it."""
        await self.until(lambda: not topic.ledger._is_preparing)

    def producer(self, topic: TopicBase, peer: RecordingPeer, name: str = "p") -> Producer:
        """Return an attached producer."""
        producer = Producer(topic.producer_registry.remove, 1, name, False, 0, peer, {}, self.clock.now_ms)
        topic.producer_registry.add(producer)
        return producer

    async def consumer(self, topic: Topic, subscription: str, peer: RecordingPeer, kind: str = "Shared") -> Consumer:
        """Return a consumer with unlimited permits on a subscription from the earliest message."""
        return self.consumer_on(await topic.subscription(subscription, True, True, {}), peer, kind)

    def consumer_on(self, subscription: Subscription, peer: RecordingPeer, kind: str, name: str = "c") -> Consumer:
        consumer = Consumer(subscription, 1, name, 0, 0, peer, {}, self.clock.now_ms)
        self.topic_of(subscription).attach(subscription, consumer, kind)
        consumer.flow(1000)
        return consumer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the loop until `condition()` is true, because background work sends no event."""
        await until(condition)

    async def quiet(self, topic: Topic) -> None:
        """Wait until everything that can be dispatched is dispatched, with all delay timers elapsed."""
        for _ in range(5):
            await asyncio.sleep(0)
        await self.until(lambda: not len(self.service.broker_context.pumps) and not len(topic.tasks))


def acknowledge(consumer: Consumer, positions: list[Position]) -> None:
    """Send one ACK of single entries, without a request id."""
    ack = Ack(consumer.consumer_id)
    for ledger_id in sorted({position.ledger_id for position in positions}):
        ack.groups.append((ledger_id, [p.entry_id for p in positions if p.ledger_id == ledger_id]))
    consumer.subscription.acknowledge(consumer, ack)


@asynccontextmanager
async def memory_broker(
    limits: LedgerLimits | None = None,
    *,
    knows_transactions: bool = False,
    stores: Stores | None = None,
    **settings: Any,
) -> AsyncIterator[MemoryBroker]:
    """Yield a bootstrapped broker behind a real HTTP server; `settings` are fields of BrokerConfig.

    Unless it `knows_transactions`, topics accept any transaction, whether its coordinator knows it or not.
    `stores` None: those of the environment, in memory by default; the caller closes others.
    """
    fixed = {"web_service_port": 0, "bind_address": "127.0.0.1", "metrics_page_interval_ms": 0}
    if settings.get("authentication_enabled"):
        fixed["system_topic_enabled"] = False  # With ledgers on BookKeeper, the broker's own client needs credentials.
    config = BrokerConfig(**{**fixed, "managed_ledger_cache_size_mb": 1, **settings})
    clock = SetClock()
    fullness = Fullness()
    runtime = Runtime(config, clock)
    store_choice = chosen_stores() if stores is None else None
    if store_choice is not None:
        stores = await store_choice.open(runtime, fullness)
    assert stores is not None
    service = await build(runtime, stores, limits or LedgerLimits())
    # On real bookies too, the broker is alone: it joins no cluster, and serves all topics.
    service.broker_context.ownership = service.transactions.ownership = None
    listener = Listener(ServerContext(service, command_table()))
    if stores.records is None:
        service.presence.addresses = AdvertisedAddresses(config, BoundPorts(6650, None, 8080, None), "broker.example")
    else:  # the broker keeps topic policies in a topic, with a client of itself
        listener.bind([BindAddress("127.0.0.1", 0, False, "brokerServicePort")], None)
        await listener.start()
        service.presence.addresses = AdvertisedAddresses(
            config, BoundPorts(listener.port, None, 8080, None), "127.0.0.1"
        )
    service.presence.ready = True
    if not knows_transactions:
        service.broker_context.taking_part = lambda *_: None
    rates_clock = RatesClock()
    server = HttpServer(service, None, rates_clock)
    await server.start()
    try:
        yield MemoryBroker(service, clock, server, rates_clock, fullness)
    finally:
        await server.close(deadline_s=1)
        await service.close()
        await listener.close()
        if store_choice is not None:
            await store_choice.close()


def stored_subscription(subscription: SubscriptionBase) -> Subscription:
    """Return the persistent subscription of a consumer."""
    assert isinstance(subscription, Subscription)
    return subscription
