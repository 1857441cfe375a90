"""Table of all topics with their figures, for the topic list of the web console. All viewers share it for two seconds."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.admin.slices import exhaust
from pybroker.broker.explain.stuck import StuckTopic, stuck_topic, worst_first
from pybroker.broker.snapshots.subscription_snapshot import subscription_snapshot
from pybroker.broker.snapshots.topic_snapshot import topic_snapshot
from pybroker.broker.topic.backlog_quota import exceeded_if_known, may_be_exceeded
from pybroker.memory.broker_memory import Holding
from pybroker.model.names import NamespaceName

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase

FRESH_MS = 2_000
"""Maximum age of the table."""
FRESH_FOR_ITS_COST = 10
"""The table also stays valid for this multiple of its build time, so that building takes at most a tenth of the event
loop's time.
"""
KEPT_S = 30.0
"""An unused table is stored for this long, because rates are relative to the previous table."""
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


FIGURES = tuple(field for field in Row._fields if field not in {"name", "is_loaded"})


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
    stuck: dict[NamespaceName, list[StuckTopic]]
    took_ms: float = 0.0


class TopicTable:
    """Cache of the table."""

    def __init__(self, broker: BrokerService, rates: RateSampler) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._rates = rates
        self._turn = asyncio.Lock()
        self._table: Table | None = None
        self._room: Holding | None = None
        self._asked_ms = 0.0
        self.made_total = 0
        """Number of built tables."""

    @property
    def is_kept(self) -> bool:
        return self._table is not None

    async def current(self) -> Table:
        """Return a table that is at most two seconds old. Concurrent callers share one computation."""
        clock = self._runtime.clock
        async with self._turn:
            self._asked_ms = clock.monotonic_ms()
            if self._table is None or not self._is_fresh(self._table):
                self._keep(await self._make(self._table))
            assert self._table is not None
            return self._table

    def _is_fresh(self, table: Table) -> bool:
        age_ms = self._asked_ms - table.monotonic_ms
        return age_ms < max(FRESH_MS, FRESH_FOR_ITS_COST * table.took_ms)

    def _keep(self, table: Table) -> None:
        self.made_total += 1
        if self._room is None:
            memory = self._runtime.memory
            self._room = Holding(memory, memory.lists)
            self._runtime.call_later(KEPT_S, self._drop_if_unused)
        # Reserve memory without waiting: operators need the table most when memory is short.
        stuck = sum(map(len, table.stuck.values()))
        self._room.count(ROW_BYTES * sum(map(len, table.namespaces.values())) + STUCK_BYTES * stuck)
        self._table = table

    def _drop_if_unused(self) -> None:
        if self._runtime.clock.monotonic_ms() - self._asked_ms < KEPT_S * 1000 * 0.9:
            self._runtime.call_later(KEPT_S, self._drop_if_unused)
            return
        self._table = None
        if self._room is not None:
            self._room.close()
            self._room = None

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
                stuck: list[StuckTopic] = []
                quotas = await self._exceeded_quotas(names)
                await exhaust(self._add_rows(rows, names, table, before, stuck, quotas), clock)
                table.namespaces[namespace] = rows
                if stuck:
                    table.stuck[namespace] = stuck
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
        stuck: list[StuckTopic],
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
                    stuck.append(found._replace(finding=replace(found.finding, evidence={}, actions=())))
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


async def find(table: Table, asked: Asked, may_list: Callable[[NamespaceName], bool], clock: Any) -> Found:
    """Return the requested page of the topics that the caller may list, sorted by the requested field, then by name."""
    chosen: list[list[Row]] = []
    sums = dict.fromkeys(FIGURES, 0.0)
    counts = {"all": 0, "matching": 0}

    def look() -> Iterator[None]:
        unsorted: list[Row] = []  # small namespaces together, because merging many lists is slow
        for namespace, rows in table.namespaces.items():
            yield
            if not may_list(namespace):
                continue
            for start in range(0, len(rows), ROWS_AT_ONCE):
                chunk = rows[start : start + ROWS_AT_ONCE]
                counts["all"] += len(chunk)
                found = [row for row in chunk if _matches(row, asked)]
                counts["matching"] += len(found)
                unsorted += found
                yield
                for row in found:
                    if row.is_loaded:
                        for figure, value in zip(FIGURES, row[2:], strict=True):
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
    words: tuple[str, ...],
    may_list: Callable[[NamespaceName], bool],
    may_explain: Callable[[str], bool],
    clock: Any,
) -> list[StuckTopic]:
    found: list[StuckTopic] = []

    def look() -> Iterator[None]:
        for namespace, stuck in table.stuck.items():
            yield
            if not may_list(namespace):
                continue
            for index, each in enumerate(stuck):
                name = each.topic.lower()
                if all(word in name for word in words) and may_explain(each.topic):
                    found.append(each)
                if index % 100 == 99:
                    yield

    await exhaust(look(), clock)
    return worst_first(found)


def _matches(row: Row, asked: Asked) -> bool:
    if asked.with_loaded_only and not row.is_loaded:
        return False
    if not asked.words:
        return True
    name = row.name.lower()
    return all(word in name for word in asked.words)
