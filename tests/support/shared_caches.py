"""The metadata caches of one broker on a shared store, and random changes through them."""

from __future__ import annotations

import random
from typing import Any

from pybroker.cluster.dynamic_configuration import DynamicConfiguration
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError
from pybroker.metadata import metadata_paths
from pybroker.metadata.cache_refresh import CacheRefresher
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroupChange, ResourceGroups
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import ClusterData, NamespacePolicies, TenantInfo


class Caches:
    """The caches of one broker."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.refresher = CacheRefresher(store)
        self.resources = Resources(store)
        self.partitioned = PartitionedTopics(store)
        self.groups = ResourceGroups(store)
        self.dynamic = DynamicConfiguration(BrokerConfig(), store)

    async def load(self) -> None:
        self.refresher.keep(
            self.resources, metadata_paths.CLUSTERS, metadata_paths.POLICIES, metadata_paths.LOCAL_POLICIES
        )
        self.refresher.keep(self.partitioned, metadata_paths.PARTITIONED_TOPICS)
        self.refresher.keep(self.groups, metadata_paths.RESOURCE_GROUPS)
        self.refresher.keep(self.dynamic, metadata_paths.DYNAMIC_CONFIGURATION)
        for cache in (self.resources, self.partitioned, self.groups, self.dynamic):
            await cache.load()

    def content(self) -> dict[str, Any]:
        namespaces = [name for tenant in self.resources.tenants() for name in self.resources.namespaces(tenant)]
        return {
            "clusters": dict(self.resources.clusters()),
            "tenants": {name: self.resources.tenant(name) for name in self.resources.tenants()},
            "namespaces": {name: self.resources.namespace(name) for name in namespaces},
            "local": {name: self.resources.local_policies(name) for name in namespaces},
            "topics": {
                topic: self.partitioned.get(topic)
                for name in namespaces
                for topic in self.partitioned.names(name, "persistent")
            },
            "groups": {name: self.groups.get(name) for name in self.groups.names()},
            "dynamic": self.dynamic.overrides(),
        }


class RandomChanges:
    """Changes by one broker. Refusals are part of it: the other broker changes the same objects."""

    def __init__(self, caches: Caches, source: random.Random) -> None:
        self._caches = caches
        self._random = source

    async def step(self) -> None:
        acts = [self._tenant, self._namespace, self._policies, self._topic, self._group, self._override, self._cluster]
        try:
            await self._random.choice(acts)()
        except AdminError:
            pass

    def _name(self) -> NamespaceName:
        return NamespaceName(f"t{self._random.randrange(3)}", f"n{self._random.randrange(3)}")

    async def _tenant(self) -> None:
        resources, name = self._caches.resources, f"t{self._random.randrange(3)}"
        if self._random.random() < 0.2:
            await resources.delete_tenant(name)
        elif resources.tenant(name) is None:
            await resources.create_tenant(name, TenantInfo(allowedClusters=["c1"]))
        else:
            roles = [f"role{self._random.randrange(5)}"]
            await resources.update_tenant(name, TenantInfo(adminRoles=roles, allowedClusters=["c1"]))

    async def _namespace(self) -> None:
        if self._random.random() < 0.3:
            await self._caches.resources.delete_namespace(self._name())
        else:
            await self._caches.resources.create_namespace(self._name(), NamespacePolicies())

    async def _policies(self) -> None:
        ttl = self._random.randrange(1000)

        def change(policies: NamespacePolicies) -> None:
            policies.message_ttl_in_seconds = ttl

        await self._caches.resources.update_namespace(self._name(), change)

    async def _topic(self) -> None:
        topic = TopicName("persistent", self._name(), f"x{self._random.randrange(4)}")
        if self._random.random() < 0.4:
            await self._caches.partitioned.delete(topic)
        else:
            await self._caches.partitioned.create(topic, self._random.randrange(1, 9))

    async def _group(self) -> None:
        name = f"g{self._random.randrange(3)}"
        if self._random.random() < 0.3:
            await self._caches.groups.delete(name)
        else:
            await self._caches.groups.put(name, ResourceGroupChange(publishRateInMsgs=self._random.randrange(99)))

    async def _override(self) -> None:
        key = self._random.choice(["brokerShutdownTimeoutMs", "slowOperationThresholdMs"])
        if self._random.random() < 0.3:
            await self._caches.dynamic.unset(key)
        else:
            await self._caches.dynamic.set(key, str(self._random.randrange(1000, 9999)))

    async def _cluster(self) -> None:
        name = f"other{self._random.randrange(3)}"
        if self._random.random() < 0.3:
            await self._caches.resources.delete_cluster(name)
        else:
            await self._caches.resources.put_cluster(name, ClusterData(serviceUrl=f"http://h{self._random.random()}"))
