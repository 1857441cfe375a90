"""Table of the topics of a whole cluster: this broker's own table, and the loaded topics of the other brokers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.admin.console.broker_parts import BrokerPart, BrokerParts, bundles_by_namespace
from pybroker.admin.console.shared_answer import SharedAnswer
from pybroker.admin.console.topic_table import Row, StuckRow, Table, TopicTable, table_bytes
from pybroker.admin.slices import exhaust
from pybroker.cluster.bundles import Bundle, hash_position
from pybroker.model.names import NamespaceName

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership

ROWS_AT_ONCE = 100
"""Rows merged between two checks of the clock."""


class ClusterView(NamedTuple):
    """The table of the cluster at one moment."""

    table: Table
    parts: list[BrokerPart]
    """The other brokers; empty for a standalone broker."""
    monotonic_ms: float
    took_ms: float = 0.0
    """Time of this broker's own work, without the wait for other brokers."""

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Problems of the other brokers as JSON, such as unusable bookies. The member `broker` is the broker id."""
        return [{**each, "broker": part.broker.broker_id} for part in self.parts for each in part.findings]


class ClusterTable:
    """Cache of the table of the cluster. A standalone broker has only its own table."""

    def __init__(self, broker: BrokerService, local: TopicTable) -> None:
        self._broker = broker
        self._local = local
        self._parts = BrokerParts(broker)
        self._shared = SharedAnswer(broker.runtime, self._make, _view_bytes)

    async def current(self) -> ClusterView:
        """Return the cached table, or a new table if the cached one is older than two seconds and older than ten times
        its computation time.

        The topics of brokers that do not respond are missing. Such a broker delays the result by at most six seconds,
        and is then not asked again for ten seconds.
        """
        if self._broker.ownership is None:
            table = await self._local.current()
            return ClusterView(table, [], table.monotonic_ms)
        return await self._shared.current()

    async def _make(self, _before: ClusterView | None) -> ClusterView:
        ownership = self._broker.ownership
        assert ownership is not None, "checked by `current`"
        clock = self._broker.runtime.clock
        began_ms = clock.monotonic_ms()
        local = await self._local.current()
        parts = await self._parts.ask(ownership, self._broker.runtime.config.console_max_topics)
        merge_ms = clock.monotonic_ms()
        merged = _Merge(ownership, local, parts)
        await exhaust(merged.steps(), clock)
        is_cut = local.is_cut or any(each.is_cut for each in parts)
        table = local._replace(namespaces=merged.namespaces, stuck=merged.stuck, is_cut=is_cut, counters={})
        return ClusterView(table, parts, began_ms, clock.monotonic_ms() - merge_ms)


def _view_bytes(view: ClusterView) -> int:
    return table_bytes(view.table)


class _Owners:
    """The owners of the bundles of one namespace."""

    def __init__(self) -> None:
        self._owned: list[tuple[Bundle, str]] = []

    def add(self, bundle: Bundle, broker_id: str) -> None:
        self._owned.append((bundle, broker_id))

    def sort(self) -> None:
        self._owned.sort()

    def owner_of(self, topic: str) -> str:
        position = hash_position(topic)
        index = bisect_right(self._owned, position, key=lambda each: each[0].lower) - 1
        if index < 0:
            return ""
        bundle, broker_id = self._owned[index]
        return broker_id if position in bundle else ""


class _Merge:
    """Merges the tables of all brokers. A topic that is loaded here has the figures of this broker."""

    def __init__(self, ownership: BundleOwnership, local: Table, parts: list[BrokerPart]) -> None:
        self.namespaces: dict[NamespaceName, list[Row]] = {}
        self.stuck: dict[NamespaceName, list[StuckRow]] = {}
        self._own = ownership.registry.own_broker.broker_id
        self._local = local
        self._parts = parts
        self._elsewhere: dict[str, Row] = {}
        self._owners: dict[str, _Owners] = {}
        own = bundles_by_namespace(map(str, ownership.owned_bundles()))
        self._add_owner(self._own, own)
        for part in parts:
            self._add_owner(part.broker.broker_id, part.bundles)
        for each in self._owners.values():
            each.sort()

    def _add_owner(self, broker_id: str, bundles: Mapping[str, Sequence[Bundle]]) -> None:
        for namespace, owned in bundles.items():
            owners = self._owners.setdefault(namespace, _Owners())
            for bundle in owned:
                owners.add(bundle, broker_id)

    def steps(self) -> Iterator[None]:
        for part in self._parts:
            for index, row in enumerate(part.topics):
                self._elsewhere[row.name] = row._replace(broker=part.broker.broker_id)
                if index % ROWS_AT_ONCE == 0:
                    yield
        stuck = [(part.broker.broker_id, each) for part in self._parts for each in part.stuck]
        for namespace, rows in self._local.namespaces.items():
            yield from self._add_namespace(namespace, rows)
        for namespace, found in self._local.stuck.items():
            self.stuck[namespace] = [each._replace(broker=self._own) for each in found]
            yield
        is_here = {each.topic for found in self._local.stuck.values() for each in found}
        for broker_id, each in stuck:
            if each.topic not in is_here:
                self.stuck.setdefault(_namespace_of(each.topic), []).append(each._replace(broker=broker_id))
                yield
        added: set[NamespaceName] = set()
        for index, row in enumerate(self._elsewhere.values()):  # non-persistent ones, and topics created since
            namespace = _namespace_of(row.name)
            added.add(namespace)
            self.namespaces.setdefault(namespace, []).append(row)
            if index % ROWS_AT_ONCE == 0:
                yield
        for namespace in added:
            self.namespaces[namespace].sort()  # by name
            yield

    def _add_namespace(self, namespace: NamespaceName, rows: list[Row]) -> Iterator[None]:
        owners = self._owners.get(str(namespace), _Owners())
        merged = self.namespaces[namespace] = []
        for index, row in enumerate(rows):
            found = self._elsewhere.pop(row.name, None)
            if row.is_loaded:
                found = row._replace(broker=self._own)
            merged.append(found or row._replace(broker=owners.owner_of(row.name)))
            if index % ROWS_AT_ONCE == 0:
                yield


def _namespace_of(topic: str) -> NamespaceName:
    tenant, local_name = topic.split("/", 4)[2:4]
    return NamespaceName(tenant, local_name)
