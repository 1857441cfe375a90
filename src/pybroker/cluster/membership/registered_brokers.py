"""Caches of the membership documents that the brokers of a cluster share. Watches update the caches.

No document of another program makes a read fail: unusable documents are logged once and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from pybroker.cluster.load_balance.broker_choice import Placement
from pybroker.cluster.membership.clock_differences import ClockDifferences
from pybroker.cluster.membership.leader_rules import LEADER, leader_of
from pybroker.cluster.membership.registration import BROKERS, Registration, Unusable, parsed
from pybroker.config import BrokerConfig
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore, values_at
from pybroker.metadata.resources import Resources
from pybroker.metadata.stored_document import decoded_or_logged
from pybroker.model.cluster_data import FailureDomain, NamespaceIsolationData
from pybroker.model.names import NamespaceName
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

Changed = Callable[[], None]
OWNERSHIP = "/namespace"
"""Parent of the ownership documents of bundles."""


class RegisteredBrokers:
    """The usable registrations of brokers, and the reasons why other registrations are not usable."""

    def __init__(self, store: MetadataStore, changed: Changed, clock: Clock) -> None:
        self._store = store
        self._changed = changed
        self._clock = clock
        self.clock_differences = ClockDifferences()
        self._found: dict[str, Registration] = {}
        self.unusable: dict[str, str] = {}
        self.registrations: Mapping[str, Registration] = MappingProxyType(self._found)

    async def read_again(self) -> None:
        values = {segments[0]: found.value async for segments, found in values_at(self._store, BROKERS, 1)}
        for broker_id in [*self._found, *self.unusable]:
            if broker_id not in values:
                self._apply(broker_id, None)
        for broker_id, value in values.items():
            self._apply(broker_id, value)
        self._observe(values, is_new=False)
        self._changed()

    async def refresh(self, path: str) -> None:
        broker_id = path.removeprefix(f"{BROKERS}/")
        if broker_id == path or "/" in broker_id:
            return
        found = await self._store.get(path)
        self._apply(broker_id, None if found is None else found.value)
        self._observe([broker_id], is_new=True)
        self._changed()

    def _observe(self, broker_ids: Iterable[str], *, is_new: bool) -> None:
        """`is_new`: the registration was stored just now, unless this broker was late."""
        now_ms = round(self._clock.wall_ms())
        for broker_id in broker_ids:
            found = self._found.get(broker_id)
            if found is not None:
                self.clock_differences.add(broker_id, found.stored_ms, now_ms, is_new=is_new)
        self.clock_differences.keep(self._found)

    def _apply(self, broker_id: str, value: bytes | None) -> None:
        result = None if value is None else parsed(broker_id, value)
        reason = result.reason if isinstance(result, Unusable) else ""
        if reason and self.unusable.get(broker_id) != reason:
            logs.error("cluster_broker.unusable", broker=broker_id, reason=reason, action="restart that broker")
        if reason:
            self.unusable[broker_id] = reason
        else:
            self.unusable.pop(broker_id, None)
        before = self._found.get(broker_id)
        if isinstance(result, Registration):
            self._found[broker_id] = result
            if before is None:
                logs.info(
                    "cluster_broker.joined",
                    broker=broker_id,
                    version=result.broker.version,
                    pybroker=result.is_pybroker,
                    load_manager=result.broker.load_manager_class,
                )
        elif before is not None:
            del self._found[broker_id]
            logs.info("cluster_broker.left", broker=broker_id)


class LeaderValue:
    """The cached leader value: the leader's id, None without a leader, "" if the value cannot be read."""

    def __init__(self, store: MetadataStore, changed: Changed) -> None:
        self._store = store
        self._changed = changed
        self.leader_id: str | None = None
        self._sets = 0

    async def read_again(self) -> None:
        before = None
        while before != self._sets:  # a value that was set during the read is newer than the read
            before = self._sets
            found = await self._store.get(LEADER)
        self.set(None if found is None else leader_of(found.value))
        self._changed()

    async def refresh(self, path: str) -> None:
        await self.read_again()

    def set(self, leader_id: str | None) -> None:
        self._sets += 1
        if leader_id != self.leader_id:
            logs.info("cluster_leader.changed", leader=leader_id, before=self.leader_id)
            if leader_id == "":
                logs.error("cluster_leader.unreadable", path=LEADER, action="delete this value")
        self.leader_id = leader_id


class PlacementDocuments:
    """Isolation policies, failure domains, and anti-affinity groups of one cluster."""

    def __init__(self, store: MetadataStore, resources: Resources, config: BrokerConfig) -> None:
        self._store = store
        self._resources = resources
        self._config = config
        self._isolation_path = metadata_paths.isolation_policies(config.cluster_name)
        self._domains_path = metadata_paths.failure_domains(config.cluster_name)
        self._isolation: dict[str, NamespaceIsolationData] = {}
        self._domain_of: dict[str, str] = {}

    def placement(self) -> Placement:
        domain_of = self._domain_of if self._config.failure_domains_enabled else {}
        return Placement(self._isolation, self._group_of, domain_of)

    async def read_again(self) -> None:
        found = await self._store.get(self._isolation_path)
        value = b"" if found is None else found.value
        isolation = decoded_or_logged(self._store, self._isolation_path, value, dict[str, NamespaceIsolationData])
        domain_of: dict[str, str] = {}
        async for (name,), stored in values_at(self._store, self._domains_path, 1):
            path = f"{self._domains_path}/{name}"
            domain = decoded_or_logged(self._store, path, stored.value, FailureDomain) or FailureDomain()
            domain_of.update(dict.fromkeys(domain.brokers, name))
        if isolation is not None or not value:
            self._isolation = isolation or {}  # a damaged document leaves the former policies in force
        self._domain_of = domain_of

    async def refresh(self, path: str) -> None:
        if path == self._isolation_path or path.startswith(self._domains_path):
            await self.read_again()

    def _group_of(self, namespace: str) -> str | None:
        tenant, _, local_name = namespace.partition("/")
        group = self._resources.local_policies(NamespaceName(tenant, local_name)).namespaceAntiAffinityGroup
        return group.lower() if group else None
