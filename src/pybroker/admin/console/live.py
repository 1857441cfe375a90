"""Live figures for the web console: one sampler for all viewers, and a stream of server-sent events for each viewer.

Without viewers, nothing is sampled. A viewer that does not read delays no other viewer. A stream ends when its
connection closes, its viewer loses the permission, or the broker stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pybroker.admin.console.console_pages import HEADERS
from pybroker.admin.console.topic_table import counters_of
from pybroker.admin.slices import exhaust
from pybroker.admin.stats.resource_usage import process_cpu_ms
from pybroker.broker.snapshots.subscription_snapshot import subscription_snapshot
from pybroker.broker.snapshots.topic_snapshot import topic_snapshot
from pybroker.errors import AdminError, BrokerError
from pybroker.memory.broker_memory import Holding
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.waiting.fair_shares import FairShares, Holder

if TYPE_CHECKING:
    from pybroker.auth.authentication import Identity
    from pybroker.auth.permission import Permission
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.model.names import TopicName
    from pybroker.runtime.runtime import Runtime

UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Also disables buffering in proxies."""
KEPT_POINTS = 600
"""Points per subject: ten minutes at one per second."""
RETRY_AFTER_S = 10
STREAM_BYTES = 64 * 1024
"""Memory counted per stream: unsent data and a share of the points."""
FIELDS = {
    "broker": (
        "time",
        "messagesIn",
        "bytesIn",
        "messagesOut",
        "bytesOut",
        "topics",
        "connections",
        "loopLagMs",
        "cpuPercent",
        "diskFreeBytes",
    ),
    "topic": (
        "time",
        "messagesIn",
        "bytesIn",
        "messagesOut",
        "bytesOut",
        "backlog",
        "unacked",
        "storageBytes",
        "producers",
        "consumers",
        "subscriptions",
    ),
    "subscription": (
        "time",
        "messagesOut",
        "bytesOut",
        "acknowledged",
        "redelivered",
        "backlog",
        "unacked",
        "delayed",
        "permits",
        "consumers",
        "drainingHashes",
    ),
}
"""Numbers of a point. Times are Unix milliseconds, rates are per second."""
Numbers = tuple[float | None, ...]
"""The numbers of a point; None for an unknown rate."""
NOT_LOADED: Numbers = ()
Totals = dict["TopicBase", tuple[int, int, int, int]]


class Subject(NamedTuple):
    """The broker, topic, or subscription whose figures are sampled."""

    topic: TopicName | None = None
    subscription: str | None = None

    @property
    def kind(self) -> str:
        return "broker" if self.topic is None else "topic" if self.subscription is None else "subscription"


class Watched:
    """Sampled points and viewers of one subject: the broker, a topic or a subscription. A point is `NOT_LOADED`
    while the subject is not loaded.
    """

    def __init__(self) -> None:
        self.watchers = 0
        self.points: deque[tuple[float, Numbers]] = deque(maxlen=KEPT_POINTS)
        self.count = 0
        """Points since the start."""
        self.measured: object = None
        """The object to which the previous counters belong. Another object starts from zero."""
        self.counters: tuple[int, ...] = ()
        self.counted_ms = 0.0
        self.cpu_ms = 0.0
        """CPU time of the process at the previous point."""
        self.totals: Totals | None = None
        """Counters of all topics at the previous point; None before the first."""

    def add(self, wall_ms: float, numbers: Numbers) -> None:
        self.points.append((wall_ms, numbers))
        self.count += 1

    def since(self, seen: int) -> list[tuple[float, Numbers]]:
        new = min(self.count - seen, len(self.points))
        return [self.points[index] for index in range(len(self.points) - new, len(self.points))]

    def rates(self, of: object, counters: tuple[int, ...], now_ms: float) -> Numbers:
        """Return the growth of each counter per second since the previous call. `of`: the object that has the counters.
        All rates are None in the first call, and if the previous call was for another object.
        """
        elapsed_s = (now_ms - self.counted_ms) / 1000
        found: Numbers = (None,) * len(counters)
        if self.measured is of and elapsed_s > 0:
            found = tuple(
                round(max(0, now - then) / elapsed_s, 3) for now, then in zip(counters, self.counters, strict=True)
            )
        self.measured, self.counters, self.counted_ms = of, counters, now_ms
        return found


def disk_of(broker: BrokerService) -> dict[str, float | None]:
    """Return the last measured size and free space of the data directory's file system, in bytes; None for unknown
    values.
    """
    figures = broker.ledgers.store.figures()
    total_bytes = figures.get("file_system_bytes")
    return {"diskBytes": total_bytes or None, "diskFreeBytes": figures["free_bytes"] if total_bytes else None}


class LiveSampler:
    """Periodic sampler of all subjects with viewers. The HTTP server closes the sampler before it waits for running
    requests.
    """

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._tasks = TaskOwner("console")
        self._is_running = False
        self._watched: dict[Subject, Watched] = {}
        self._ticked = asyncio.Event()
        self.is_closed = False
        self.shares = FairShares()
        """Streams by owner."""
        self._streams: dict[LiveStream, None] = {}
        self.samples_total = 0

    @property
    def streams(self) -> int:
        return self.shares.used

    @property
    def limit(self) -> int:
        return self._runtime.config.console_max_live_connections

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def interval_ms(self) -> int:
        return self._runtime.config.console_sample_interval_ms

    @property
    def challenge_s(self) -> float:
        """Number of seconds before the expiry of credentials at which the viewer is asked for new credentials."""
        return self._runtime.config.authentication_refresh_check_seconds

    def room_of_stream(self) -> Holding:
        """Reserve the memory of one stream. The caller closes the returned reservation when the stream ends."""
        room = Holding(self._runtime.memory, self._runtime.memory.answers)
        room.count(STREAM_BYTES)
        return room

    def watch(self, stream: LiveStream) -> Watched:
        """Add the viewer of `stream` until `leave` is called, and return the sampled points of its subject. Raises
        AdminError 503 if consoleMaxLiveConnections is reached or the broker is stopping.
        """
        subject, holder = stream.subject, stream.holder
        if self.is_closed:
            raise AdminError(503, "The console cannot show live figures: the broker is stopping", RETRY_AFTER_S)
        if not self.shares.may_take(holder, self.limit):
            why = self.shares.refusal(holder, self.limit, "live connections", "consoleMaxLiveConnections")
            raise AdminError(503, f"The console cannot show live figures: {why}", RETRY_AFTER_S)
        self.shares.add(holder.name, 1)
        self._streams[stream] = None
        watched = self._watched.setdefault(subject, Watched())
        watched.watchers += 1
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run(), "live figures")
        return watched

    def leave(self, stream: LiveStream) -> None:
        self.shares.add(stream.holder.name, -1)
        del self._streams[stream]
        subject = stream.subject
        watched = self._watched[subject]
        watched.watchers -= 1
        if not watched.watchers:
            del self._watched[subject]  # drops the points

    def end_all_of(self, holder: str) -> int:
        """End all streams of `holder` (role or address) at their next point. Return their number."""
        found = [stream for stream in self._streams if stream.holder.name == holder and not stream.is_ended]
        for stream in found:
            stream.is_ended = True
        return len(found)

    async def next_point(self) -> None:
        if not self.is_closed:
            await self._ticked.wait()

    async def close(self) -> None:
        self.is_closed = True
        self._tick()
        await self._tasks.close()

    async def _run(self) -> None:
        try:
            while self._watched:
                try:
                    await exhaust(self._sample(), self._runtime.clock)
                except Exception as bug:  # noqa: BLE001  (one point less; requests for the next one must not wait for ever)
                    self._runtime.stats.bugs += 1
                    logs.error("console.sample_failed", exc_info=bug)
                self.samples_total += 1
                self._tick()
                await self._runtime.sleep(self.interval_ms / 1000)
        finally:
            self._is_running = False

    def _tick(self) -> None:
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _sample(self) -> Iterator[None]:
        for subject, watched in list(self._watched.items()):
            if subject.topic is None:
                yield from self._measure_broker(watched)
                continue
            wall_ms = self._runtime.clock.wall_ms()
            topic = self._broker.loaded.get(subject.topic)
            if topic is None or topic.is_fenced:
                watched.add(wall_ms, NOT_LOADED)
            elif subject.subscription is None:
                yield from self._measure_topic(watched, topic)
            else:
                subscription = topic.subscriptions.get(subject.subscription)
                numbers = NOT_LOADED if subscription is None else self._subscription(watched, subscription)
                watched.add(wall_ms, numbers)
            yield

    def _measure_broker(self, watched: Watched) -> Iterator[None]:
        """Add the sums over all topics to the next point. Topics that were just loaded are omitted, so that their load
        does not appear as traffic.
        """
        before = watched.totals
        now: Totals = {}
        sums = [0, 0, 0, 0]
        topics = self._broker.loaded.all()
        for topic in topics:
            counters = now[topic] = counters_of(topic)
            old = counters if before is None else before.get(topic, counters)
            for index in range(4):
                sums[index] += counters[index] - old[index]
            yield
        clock, stats = self._runtime.clock, self._runtime.stats
        now_ms = clock.monotonic_ms()
        elapsed_s = (now_ms - watched.counted_ms) / 1000
        watched.counted_ms = now_ms
        used_ms = process_cpu_ms()
        increases = (*sums, 100 * (used_ms - watched.cpu_ms) / 1000)  # per second, in percent
        rates = [None if before is None or elapsed_s <= 0 else round(max(0, each) / elapsed_s, 3) for each in increases]
        watched.totals, watched.cpu_ms = now, used_ms
        cpu_percent = rates.pop()
        present = (len(topics), stats.active_connections, round(stats.loop_lag_ms, 3))
        watched.add(clock.wall_ms(), (*rates, *present, cpu_percent, disk_of(self._broker)["diskFreeBytes"]))

    def _measure_topic(self, watched: Watched, topic: TopicBase) -> Iterator[None]:
        backlog = unacked = consumers = 0
        subscriptions = list(topic.subscriptions.values())
        for index, subscription in enumerate(subscriptions):
            snapshot = subscription_snapshot(subscription)
            backlog = max(backlog, snapshot.backlog_entries)
            consumers += snapshot.consumer_count
            unacked += snapshot.unacked_messages
            if index % 50 == 49:
                yield
        clock = self._runtime.clock
        rates = watched.rates(topic, counters_of(topic), clock.monotonic_ms())
        of_topic = topic_snapshot(topic)
        figures = (backlog, unacked, of_topic.stored_bytes, of_topic.producer_count, consumers, len(subscriptions))
        watched.add(clock.wall_ms(), (*rates, *figures))

    def _subscription(self, watched: Watched, subscription: SubscriptionBase) -> Numbers:
        snapshot = subscription_snapshot(subscription)
        counters = snapshot.counters
        rates = watched.rates(
            subscription,
            (counters.messages_out, counters.bytes_out, counters.acked_messages, counters.redelivered_messages),
            self._runtime.clock.monotonic_ms(),
        )
        return (
            *rates,
            snapshot.backlog_entries,
            snapshot.unacked_messages,
            snapshot.delayed_entries,
            sum(consumer.state.permits for consumer in subscription.consumers),
            snapshot.consumer_count,
            0 if snapshot.key_order is None else len(snapshot.key_order.draining),
        )


class Viewer:
    """The caller of a stream: its credentials, and its permission, which may change while the stream is open."""

    def __init__(self, runtime: Runtime, identity: Identity, permission: Permission) -> None:
        self.identity = identity
        self._runtime = runtime
        self._permission = permission

    def expires_within(self, seconds: float) -> bool:
        return self.identity.expires_within(seconds, self._runtime.clock.wall_ms() / 1000)

    async def refusal(self) -> str | None:
        """Return the reason why the stream must end: expired credentials, or a missing permission. None while the
        stream may continue.
        """
        if self.expires_within(0):
            return "the credentials have expired"
        try:
            await self._permission.require()
        except AdminError as error:
            return error.reason
        except BrokerError as error:
            return str(error)
        return None


class LiveStream(Response):
    """Response with the points of one subject as server-sent events, while the viewer has the permission.

    The event `challenge` requests new credentials, authenticationRefreshCheckSeconds before those of the viewer expire.
    The viewer then opens another stream with new credentials.
    """

    def __init__(self, sampler: LiveSampler, subject: Subject, holder: Holder, viewer: Viewer) -> None:
        super().__init__(media_type="text/event-stream", headers=HEADERS | UNBUFFERED)
        del self.headers["content-length"]
        self._sampler = sampler
        self.subject = subject
        self.holder = holder
        self.is_ended = False
        """True if an administrator has ended the stream."""
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        if scope["method"] == "HEAD":
            await send(head)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        sampler = self._sampler
        watched = sampler.watch(self)
        room = sampler.room_of_stream()
        try:
            await send(head)
            await self._tell(send, watched)
        finally:
            room.close()
            sampler.leave(self)

    async def _why_ended(self) -> str | None:
        return "an operator has ended the stream" if self.is_ended else await self._viewer.refusal()

    async def _tell(self, send: Send, watched: Watched) -> None:
        async def event(name: str, value: object) -> None:
            text = b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
            await send({"type": "http.response.body", "body": text, "more_body": True})

        await event("begin", {"fields": FIELDS[self.subject.kind], "intervalMs": self._sampler.interval_ms})
        seen = 0
        is_challenged = False
        while (why := await self._why_ended()) is None and not self._sampler.is_closed:
            if not is_challenged and self._viewer.expires_within(self._sampler.challenge_s):
                is_challenged = True
                assert self._viewer.identity.expires_at_s is not None
                await event("challenge", {"expiresAt": round(self._viewer.identity.expires_at_s * 1000)})
            if watched.count > seen:
                points = watched.since(seen)
                seen = watched.count
                await event("points", [[time, *numbers] for time, numbers in points])
            await self._sampler.next_point()
        await event("end", {"reason": why or "the broker is stopping"})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


__all__ = ["FIELDS", "LiveSampler", "LiveStream", "Subject", "Viewer"]
