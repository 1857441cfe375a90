"""Table of all topics with the figures of this broker, for the topic list of the web console. All viewers share it for
two seconds. `cluster_table.py` adds the figures of the other brokers of a cluster.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.admin.console.shared_answer import SharedAnswer
from pybroker.admin.slices import exhaust
from pybroker.broker.explain.stuck import StuckTopic, stuck_topic
from pybroker.broker.snapshots.subscription_snapshot import subscription_snapshot
from pybroker.broker.snapshots.topic_snapshot import topic_snapshot
from pybroker.broker.topic.backlog_quota import exceeded_if_known, may_be_exceeded
from pybroker.memory.broker_memory import Holding
from pybroker.model.names import NamespaceName
from pybroker.runtime.time_slices import kept

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase

ROW_BYTES = 500
"""Approximate memory of a row."""
STUCK_BYTES = 4000
"""Additional memory of a stuck topic, for its finding."""
ROWS_AT_ONCE = 1000
"""Rows sorted between two checks of the clock, about 0.5 ms."""


class Row(NamedTuple):
    """One topic of the table. Figures of an unloaded topic are 0; rates are per second."""

    name: str
    is_loaded: bool = False
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    backlog: int = 0
    unacked: int = 0
    storage_bytes: int = 0
    producers: int = 0
    consumers: int = 0
    subscriptions: int = 0
    standing: int = 0
    """Number of stuck subscriptions, according to `explain`."""
    blocked: int = 0
    """1 if producers or readers of the whole topic are blocked, according to `explain`."""
    broker: str = ""
    """In a cluster, the id of the broker that owns the topic's bundle; empty if it is unknown."""

    @property
    def figures(self) -> tuple[float, ...]:
        """The values of `FIGURES`."""
        return self[2:-1]


FIGURES = Row._fields[2:-1]


class StuckRow(NamedTuple):
    """A stuck topic (`StuckTopic`), with the short JSON form of its most important finding."""

    topic: str
    is_blocked: bool
    subscriptions: int
    subscription: str | None
    backlog_entries: int
    finding: dict[str, Any]
    broker: str = ""


class Asked(NamedTuple):
    """Filter, order and page of one request."""

    words: tuple[str, ...] = ()
    """Lower-case words that a name must contain."""
    order: str = "name"
    """A field of Row."""
    is_descending: bool = False
    offset: int = 0
    limit: int = 50
    with_loaded_only: bool = False
    broker: str | None = None
    """Only topics of this broker."""


class Found(NamedTuple):
    """Page of matching topics, with the total counts."""

    rows: list[Row]
    matching: int
    all: int
    sums: dict[str, float]


class Table(NamedTuple):
    """The rows of all topics at one moment."""

    namespaces: dict[NamespaceName, list[Row]]
    counters: dict[TopicBase, tuple[int, int, int, int]]
    monotonic_ms: float
    wall_ms: int
    is_cut: bool
    """True if there are more topics than `consoleMaxTopics`."""
    stuck: dict[NamespaceName, list[StuckRow]]
    took_ms: float = 0.0


class TopicTable:
    """Cache of the table of all topics with the figures of this broker."""

    def __init__(self, broker: BrokerService, rates: RateSampler) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._rates = rates
        self._shared = SharedAnswer(broker.runtime, self._make, table_bytes)
        self.made_total = 0
        """Number of built tables."""

    @property
    def is_kept(self) -> bool:
        return self._shared.is_kept

    async def current(self) -> Table:
        """Return the cached table, or a new table if the cached one is older than two seconds and older than ten times
        its computation time. Concurrent callers share one computation.
        """
        return await self._shared.current()

    # --- computation --------------------------------------------------------------------------------------------------

    async def _make(self, before: Table | None) -> Table:
        clock, resources = self._runtime.clock, self._broker.resources
        table = Table({}, {}, clock.monotonic_ms(), clock.wall_ms(), False, {})
        left = self._runtime.config.console_max_topics
        is_cut = False
        for tenant in resources.tenants():
            for namespace in resources.namespaces(tenant):
                names = await self._list(namespace)
                is_cut = is_cut or len(names) > left
                del names[left:]
                left -= len(names)
                rows: list[Row] = []
                stuck: list[StuckRow] = []
                quotas = await self._exceeded_quotas(names)
                await exhaust(self._add_rows(rows, names, table, before, stuck, quotas), clock)
                table.namespaces[namespace] = rows
                if stuck:
                    table.stuck[namespace] = stuck
        self.made_total += 1
        return table._replace(is_cut=is_cut, took_ms=clock.monotonic_ms() - table.monotonic_ms)

    async def _exceeded_quotas(self, names: list[str]) -> dict[str, Exceeded]:
        """Return exceeded backlog quotas by topic name. Quotas that do not block producers are ignored."""
        limited: list[Topic] = []

        def look() -> Iterator[None]:
            for index, name in enumerate(names):
                topic = self._broker.loaded.persistent.get(name)
                if topic is not None and may_be_exceeded(topic):
                    limited.append(topic)
                if index % 20 == 19:
                    yield

        await exhaust(look(), self._runtime.clock)
        found: dict[str, Exceeded] = {}
        for topic in limited:
            exceeded = await exceeded_if_known(topic)
            if exceeded is not None:
                found[str(topic.name)] = exceeded
        return found

    async def _list(self, namespace: NamespaceName) -> list[str]:
        room = Holding(self._runtime.memory, self._runtime.memory.lists)
        try:
            room.count(self._broker.directory.expected_bytes(namespace))
            return await self._broker.directory.list(namespace, None)
        finally:
            room.close()

    def _add_rows(
        self,
        rows: list[Row],
        names: list[str],
        table: Table,
        before: Table | None,
        stuck: list[StuckRow],
        quotas: dict[str, Exceeded],
    ) -> Iterator[None]:
        loaded = self._broker.loaded
        for index, name in enumerate(names):
            topic = loaded.persistent.get(name) or loaded.non_persistent.get(name)
            if topic is None:
                rows.append(Row(name))
                if index % 100 == 99:
                    yield
            else:
                found = None if topic.is_fenced else (yield from stuck_topic(topic, quotas.get(name)))
                if found is not None:
                    # Clients request evidence and actions separately per topic.
                    stuck.append(StuckRow(*found[:-1], found.finding.as_short_json()))
                yield from self._add_row(rows, name, topic, table, before, found)
                yield

    def _add_row(
        self,
        rows: list[Row],
        name: str,
        topic: TopicBase,
        table: Table,
        before: Table | None,
        stuck: StuckTopic | None,
    ) -> Iterator[None]:
        backlog = unacked = consumers = 0
        subscriptions = list(topic.subscriptions.values())
        for index, subscription in enumerate(subscriptions):
            if index % 50 == 49:
                yield
            snapshot = subscription_snapshot(subscription)
            backlog = max(backlog, snapshot.backlog_entries)
            consumers += snapshot.consumer_count
            unacked += snapshot.unacked_messages
        rates, of_topic = self._topic_rates(topic, table, before), topic_snapshot(topic)
        rows.append(
            Row(
                name,
                True,
                *rates,
                backlog,
                unacked,
                of_topic.stored_bytes,
                of_topic.producer_count,
                consumers,
                len(subscriptions),
                0 if stuck is None else stuck.subscriptions,
                int(stuck is not None and stuck.is_blocked),
            )
        )

    def _topic_rates(self, topic: TopicBase, table: Table, before: Table | None) -> tuple[float, float, float, float]:
        counted = table.counters[topic] = counters_of(topic)
        old = None if before is None else before.counters.get(topic)
        if before is None or old is None:
            window, out = self._rates.topic(topic), [self._rates.subscription(s) for s in topic.subscriptions.values()]
            return (
                window.messages_in.per_second,
                window.bytes_in.per_second,
                sum(each.messages_out.per_second for each in out),
                sum(each.bytes_out.per_second for each in out),
            )
        elapsed_s = max(0.001, (table.monotonic_ms - before.monotonic_ms) / 1000)
        first, second, third, fourth = (max(0, now - then) / elapsed_s for now, then in zip(counted, old, strict=True))
        return first, second, third, fourth


def table_bytes(table: Table) -> int:
    """Return the approximate memory of a table."""
    stuck = sum(map(len, table.stuck.values()))
    return ROW_BYTES * sum(map(len, table.namespaces.values())) + STUCK_BYTES * stuck


def counters_of(topic: TopicBase) -> tuple[int, int, int, int]:
    counters = topic.counters
    delivered = [subscription.counters for subscription in topic.subscriptions.values()]
    return (
        counters.messages_in,
        counters.bytes_in,
        counters.messages_out_of_removed + sum(each.messages_out for each in delivered),
        counters.bytes_out_of_removed + sum(each.bytes_out for each in delivered),
    )


# --- queries of a table ----------------------------------------------------------------------------------------------


async def find(table: Table, asked: Asked, may_list: Callable[[NamespaceName], Awaitable[bool]], clock: Any) -> Found:
    """Return the requested page of the topics that the caller may list, sorted by the requested field, then by name."""
    listed = await kept(table.namespaces, may_list, clock)
    chosen: list[list[Row]] = []
    sums = dict.fromkeys(FIGURES, 0.0)
    counts = {"all": 0, "matching": 0}

    def look() -> Iterator[None]:
        unsorted: list[Row] = []  # small namespaces together, because merging many lists is slow
        for namespace in listed:
            yield
            rows = table.namespaces[namespace]
            for start in range(0, len(rows), ROWS_AT_ONCE):
                chunk = rows[start : start + ROWS_AT_ONCE]
                counts["all"] += len(chunk)
                found = [row for row in chunk if _matches(row, asked)]
                counts["matching"] += len(found)
                unsorted += found
                yield
                for row in found:
                    if row.is_loaded:
                        for figure, value in zip(FIGURES, row.figures, strict=True):
                            sums[figure] += value
                yield
                if len(unsorted) >= ROWS_AT_ONCE:
                    chosen.append(unsorted)
                    unsorted = []
        chosen.append(unsorted)
        for rows in chosen:
            rows.sort(key=attrgetter(asked.order), reverse=asked.is_descending)
            yield

    await exhaust(look(), clock)
    # Chunks are sorted separately and merged up to the end of the page only.
    merged = heapq.merge(*chosen, key=attrgetter(asked.order), reverse=asked.is_descending)
    page: list[Row] = []

    def turn_pages() -> Iterator[None]:
        end = min(asked.offset + asked.limit, counts["matching"])  # `offset` may be any 64-bit number
        for index, row in enumerate(itertools.islice(merged, end if asked.offset < end else 0)):
            if index >= asked.offset:
                page.append(row)
            if index % 100 == 99:
                yield

    await exhaust(turn_pages(), clock)
    return Found(page, counts["matching"], counts["all"], sums)


async def find_stuck(
    table: Table,
    asked: Asked,
    may_list: Callable[[NamespaceName], Awaitable[bool]],
    may_explain: Callable[[str], Awaitable[bool]],
    clock: Any,
) -> list[StuckRow]:
    """Return the stuck topics that the caller may list and explain, in the order of `worst_first`. Their names contain
    all words of the request. If the request names a broker, that broker serves all returned topics.
    """
    listed = await kept(table.stuck, may_list, clock)
    found: list[StuckRow] = []

    def look() -> Iterator[None]:
        for namespace in listed:
            yield
            for index, each in enumerate(table.stuck[namespace]):
                if _has_words(each.topic, asked) and _is_at(each.broker, asked):
                    found.append(each)
                if index % 100 == 99:
                    yield

    await exhaust(look(), clock)
    return worst_first(await kept(found, lambda each: may_explain(each.topic), clock))


def worst_first(found: Iterable[StuckRow]) -> list[StuckRow]:
    """Return the stuck topics in this order: blocked topics first, then the largest backlog, then the longest stall."""
    return sorted(
        found, key=lambda each: (not each.is_blocked, -each.backlog_entries, each.finding["since"] or 0, each.topic)
    )


def _matches(row: Row, asked: Asked) -> bool:
    if asked.with_loaded_only and not row.is_loaded:
        return False
    return _is_at(row.broker, asked) and _has_words(row.name, asked)


def _is_at(broker: str, asked: Asked) -> bool:
    return asked.broker is None or broker == asked.broker


def _has_words(name: str, asked: Asked) -> bool:
    if not asked.words:
        return True
    lower = name.lower()
    return all(word in lower for word in asked.words)
