"""What is left of something that has ended: of clients in a broker that goes on, of a broker that has stopped.

Both answer one line for each thing that should be gone, and nothing when all is well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.simulate.life import BROKERS_ADDRESS, BrokerLife
from tests.support.stepped_loop import _work

from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.topic.topic_base import TopicBase


def after_clients(life: BrokerLife) -> list[str]:
    """When every client has left, and what they had begun has had time to end. The broker runs."""
    return [
        *_of_connections(life),
        *_of_requests(life),
        *_of_memory(life),
        *_of_topics(life),
        *_of_transactions(life),
    ]


def after_stop(life: BrokerLife) -> list[str]:
    """When `life` has been stopped in order."""
    found = [f"the task {task.get_name()} runs" for task in life.loop.tasks(life)]
    found += [
        f"the timer {timer._callback}{timer._args} is set"  # type: ignore[attr-defined]
        for timer in life.loop.timers(life)
        if not _is_given_up(timer)
    ]
    if life.service is not None:
        found += [f"{name} is loaded" for name in life.service.loaded.persistent]
        found += [f"{name} is loaded" for name in life.service.loaded.non_persistent]
        found += [*_of_connections(life), *_of_requests(life), *_of_memory(life)]
    return found


def _is_given_up(timer: asyncio.TimerHandle) -> bool:
    """What a thread does for somebody who does not wait any more goes on to its end there, too."""
    return timer._callback is _work and bool(timer._args) and timer._args[0].cancelled()  # type: ignore[attr-defined]


def _of_connections(life: BrokerLife) -> Iterator[str]:
    context = life.context_of_server
    if context is None:
        return
    of_brokers = [each for each in context.connections if BROKERS_ADDRESS in each.address]
    for connection in context.connections:
        if connection not in of_brokers:
            yield f"the connection {connection.address} is open"
    for what, count in (
        ("strangers", len(context.unauthenticated)),
        ("hosts with connections", len(context._by_host) - bool(of_brokers)),
        ("connections that do not read", len(context._stalled)),
        ("connections held back by what they publish", len(context.held_publishers)),
        ("outboxes that hold something", len(context.outbox_shares)),
        ("active connections, as counted", life.runtime.stats.active_connections - len(of_brokers)),
    ):
        if count:
            yield f"{count} {what}"


def _of_requests(life: BrokerLife) -> Iterator[str]:
    service = life.service
    assert service is not None
    waiting = service.broker_context.waiting
    for what, count in (
        ("requests that wait for a topic", waiting.topics.count),
        ("requests that wait for a subscription", waiting.subscriptions.count),
        ("questions for partitions", service.pending_metadata_requests),
        ("watched lists of topics", sum(map(len, service.topic_watchers._lists.values()))),
        ("leases of readers", len(service.broker_context.read_leases)),
    ):
        if count:
            yield f"{count} {what}"


def _of_memory(life: BrokerLife) -> Iterator[str]:
    memory = life.runtime.memory
    memory.budget.check_invariants()
    assert life.service is not None
    recent_bytes = life.service.ledgers.resources.recent_reads.size_bytes
    for name, part in memory.budget.parts.items():
        if part.waiting:
            yield f"{part.waiting} wait for memory of {name}"
        # Caches keep what they have, and a checkpoint has not taken all of what was written.
        kept_bytes = part.ahead_bytes + (recent_bytes if part is memory.reads else 0)
        if part not in (memory.cache, memory.writes) and part.used_bytes != kept_bytes:
            yield f"{part.used_bytes - kept_bytes} bytes of {name} are taken"


def _of_transactions(life: BrokerLife) -> Iterator[str]:
    """All have ended or timed out long ago, and nothing of them is held anywhere."""
    assert life.service is not None
    for coordinator in life.service.transactions.running():
        coordinator.state.check_invariants()
        for transaction in coordinator.state.transactions():
            ending = coordinator.endings.find(transaction.id)
            why = "" if ending is None else f": {ending.last_error}"
            yield f"transaction {transaction.id} is {transaction.status}{why}"
        for what, count in (
            ("endings", len(coordinator.endings)),
            ("requests for a transaction", coordinator.waiting),
            ("who waits for an end", len(coordinator._ended)),
        ):
            if count:
                yield f"coordinator {coordinator.id} has {count} {what}"
    for name, topic in life.service.loaded.persistent.items():
        buffer = topic.transactions.buffer
        if buffer is not None:
            buffer.check_invariants()
            if buffer.open or buffer._in_flight or buffer._ending:
                yield f"{name} knows open transactions {[*buffer.open, *buffer._in_flight, *buffer._ending]}"
        for subscription in topic.subscriptions.values():
            if subscription.cursor.state.held.open:
                yield f"{subscription.name} of {name} holds what {list(subscription.cursor.state.held.open)} acknowledged"


def _of_topics(life: BrokerLife) -> Iterator[str]:
    assert life.service is not None
    for topic in life.service.loaded.all():
        yield from _of_topic(topic)


def _of_topic(topic: TopicBase) -> Iterator[str]:
    for name in topic.producers:
        yield f"{topic.name} has the producer {name}"
    if topic.subscriptions_being_made:
        yield f"{topic.name} has {topic.subscriptions_being_made} subscriptions that are being made"
    for subscription in topic.subscriptions.values():
        if subscription.consumers:
            yield f"{topic.name} has {len(subscription.consumers)} consumers of {subscription.name}"
        if isinstance(subscription, Subscription) and not subscription.cursor.is_durable:
            yield f"{topic.name} has {subscription.name}, whose reader has left"
