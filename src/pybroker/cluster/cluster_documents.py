"""Cluster documents other than addresses, and bundle quotas, in the metadata store.

A change is durable when the write method returns. Documents are seldom read, so nothing is cached. The caller checks
that a cluster or namespace exists. `model.cluster_data` describes the documents.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.model.cluster_data import (
    DEFAULT_RESOURCE_QUOTA,
    ClusterPolicies,
    FailureDomain,
    NamespaceIsolationData,
    ResourceQuota,
)
from pybroker.model.names import NamespaceName
from pybroker.model.policies import decode, encode

MAX_NAMED = 1000
"""Limit of failure domains, and of isolation policies, per cluster."""

T = TypeVar("T")


class ClusterDocuments:
    """Owned by the broker service."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # Writes read, check and store under a lock, or two could pass the same check.
        self._writing = asyncio.Lock()

    async def failure_domains(self, cluster: str) -> dict[str, FailureDomain]:
        return await self._read(metadata_paths.failure_domains(cluster), dict[str, FailureDomain]) or {}

    async def put_failure_domain(self, cluster: str, name: str, domain: FailureDomain) -> None:
        """Refuse with 409 if one of the domain's brokers is in another one."""
        async with self._writing:
            domains = await self.failure_domains(cluster)
            for other, others in domains.items():
                taken = set(domain.brokers) & set(others.brokers)
                if other != name and taken:
                    raise AdminError(409, f"{', '.join(sorted(taken))} already in failure domain {other}")
            await self._put_named(metadata_paths.failure_domains(cluster), {**domains, name: domain})

    async def delete_failure_domain(self, cluster: str, name: str) -> None:
        """Refuse with 404 if the domain does not exist."""
        async with self._writing:
            domains = await self.failure_domains(cluster)
            if domains.pop(name, None) is None:
                raise AdminError(404, f"Cluster {cluster} has no failure domain {name}")
            await self._put_named(metadata_paths.failure_domains(cluster), domains)

    async def isolation_policies(self, cluster: str) -> dict[str, NamespaceIsolationData] | None:
        """Return the policies by name; None if the cluster never had any."""
        return await self._read(metadata_paths.isolation_policies(cluster), dict[str, NamespaceIsolationData])

    async def put_isolation_policy(self, cluster: str, name: str, data: NamespaceIsolationData) -> None:
        async with self._writing:
            policies = await self.isolation_policies(cluster) or {}
            await self._put_named(metadata_paths.isolation_policies(cluster), {**policies, name: data})

    async def delete_isolation_policy(self, cluster: str, name: str) -> None:
        """No effect if the policy does not exist."""
        async with self._writing:
            policies = await self.isolation_policies(cluster) or {}
            policies.pop(name, None)
            await self._put_named(metadata_paths.isolation_policies(cluster), policies)

    async def migration(self, cluster: str) -> ClusterPolicies | None:
        """Return None if the migration state was never set."""
        return await self._read(metadata_paths.migration(cluster), ClusterPolicies)

    async def put_migration(self, cluster: str, policies: ClusterPolicies) -> None:
        await self._store.put(metadata_paths.migration(cluster), encode(policies))

    async def default_quota(self) -> ResourceQuota:
        return await self._read(metadata_paths.RESOURCE_QUOTAS, ResourceQuota) or DEFAULT_RESOURCE_QUOTA

    async def quota(self, namespace: NamespaceName, bundle: str) -> ResourceQuota:
        return await self._read(_quota(namespace, bundle), ResourceQuota) or await self.default_quota()

    async def put_default_quota(self, quota: ResourceQuota) -> None:
        await self._store.put(metadata_paths.RESOURCE_QUOTAS, encode(quota))

    async def unset_default_quota(self) -> None:
        await self._store.delete(metadata_paths.RESOURCE_QUOTAS)

    async def put_quota(self, namespace: NamespaceName, bundle: str, quota: ResourceQuota) -> None:
        await self._store.put(_quota(namespace, bundle), encode(quota))

    async def unset_quota(self, namespace: NamespaceName, bundle: str) -> bool:
        return await self._store.delete(_quota(namespace, bundle))

    async def _read(self, path: str, kind: type[T]) -> T | None:
        found = await self._store.get(path)
        if found is None:
            return None
        try:
            return decode(found.value, kind)
        except msgspec.DecodeError as error:
            raise StoreError(f"the metadata at {path} cannot be read: {error}") from error

    async def _put_named(self, path: str, documents: dict[str, T]) -> None:
        if len(documents) > MAX_NAMED:
            raise AdminError(412, f"A cluster has {MAX_NAMED} of these at most")
        await self._store.put(path, encode(documents))


def _quota(namespace: NamespaceName, bundle: str) -> str:
    return f"{metadata_paths.resource_quotas(namespace)}/{bundle}"
