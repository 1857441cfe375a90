"""Documents of clusters in the metadata store: failure domains, isolation policies, migration; and quotas of bundles.

A change is durable when the write method returns. Nothing is cached. The caller checks that a cluster or namespace
exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from pybroker.errors import AdminError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore, values_at
from pybroker.metadata.stored_document import decoded, read, rewrite
from pybroker.model.cluster_data import (
    DEFAULT_RESOURCE_QUOTA,
    ClusterPolicies,
    FailureDomain,
    NamespaceIsolationData,
    ResourceQuota,
)
from pybroker.model.names import NamespaceName

MAX_NAMED = 1000
"""Limit of failure domains, and of isolation policies, per cluster."""

T = TypeVar("T")
Isolation = dict[str, NamespaceIsolationData]


class ClusterDocuments:
    """Reads and writes the documents of clusters and the quotas of bundles. Owned by the broker service."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # Writes read, check and store under a lock, or two could pass the same check.
        self._writing = asyncio.Lock()

    async def failure_domains(self, cluster: str) -> dict[str, FailureDomain]:
        parent = metadata_paths.failure_domains(cluster)
        return {
            metadata_paths.name_of_segment(segment): decoded(f"{parent}/{segment}", found.value, FailureDomain)
            async for (segment,), found in values_at(self._store, parent, 1)
        }

    async def put_failure_domain(self, cluster: str, name: str, domain: FailureDomain) -> None:
        """Store a failure domain. Raises AdminError: 409 if one of its brokers is in another domain, 412 for too many
        domains.
        """
        async with self._writing:
            domains = await self.failure_domains(cluster)
            for other, others in domains.items():
                taken = set(domain.brokers) & set(others.brokers)
                if other != name and taken:
                    raise AdminError(409, f"Brokers {', '.join(sorted(taken))} are already in failure domain {other}")
            _require_few(domains, name)
            await self._put(metadata_paths.failure_domain(cluster, name), FailureDomain, domain)

    async def delete_failure_domain(self, cluster: str, name: str) -> None:
        """Delete a failure domain. Raises AdminError 404 if it does not exist."""
        async with self._writing:
            if not await self._store.delete(metadata_paths.failure_domain(cluster, name)):
                raise AdminError(404, f"Cluster {cluster} has no failure domain {name}")

    async def isolation_policies(self, cluster: str) -> Isolation | None:
        """Return the isolation policies of a cluster by name; None if none was ever stored."""
        return await read(self._store, metadata_paths.isolation_policies(cluster), Isolation)

    async def put_isolation_policy(self, cluster: str, name: str, data: NamespaceIsolationData) -> None:
        """Store an isolation policy. Raises AdminError 412 for too many policies."""

        def change(policies: Isolation) -> Isolation:
            _require_few(policies, name)
            return {**policies, name: data}

        await self._change_isolation_policies(cluster, change)

    async def delete_isolation_policy(self, cluster: str, name: str) -> None:
        def change(policies: Isolation) -> Isolation:
            return {other: data for other, data in policies.items() if other != name}

        await self._change_isolation_policies(cluster, change)

    async def migration(self, cluster: str) -> ClusterPolicies | None:
        """Return the migration state of a cluster; None if none was ever stored."""
        return await read(self._store, metadata_paths.migration(cluster), ClusterPolicies)

    async def put_migration(self, cluster: str, policies: ClusterPolicies) -> None:
        async with self._writing:
            await self._put(metadata_paths.migration(cluster), ClusterPolicies, policies)

    async def default_quota(self) -> ResourceQuota:
        found = await read(self._store, metadata_paths.DEFAULT_RESOURCE_QUOTA, ResourceQuota)
        return found or DEFAULT_RESOURCE_QUOTA

    async def quota(self, namespace: NamespaceName, bundle: str) -> ResourceQuota:
        found = await read(self._store, metadata_paths.resource_quota(namespace, bundle), ResourceQuota)
        return found or await self.default_quota()

    async def put_default_quota(self, quota: ResourceQuota) -> None:
        async with self._writing:
            await self._put(metadata_paths.DEFAULT_RESOURCE_QUOTA, ResourceQuota, quota)

    async def unset_default_quota(self) -> None:
        await self._store.delete(metadata_paths.DEFAULT_RESOURCE_QUOTA)

    async def put_quota(self, namespace: NamespaceName, bundle: str, quota: ResourceQuota) -> None:
        async with self._writing:
            await self._put(metadata_paths.resource_quota(namespace, bundle), ResourceQuota, quota)

    async def unset_quota(self, namespace: NamespaceName, bundle: str) -> bool:
        return await self._store.delete(metadata_paths.resource_quota(namespace, bundle))

    async def _put(self, path: str, kind: type[T], document: T) -> None:
        await rewrite(self._store, path, kind, lambda _: document, path, kind)

    async def _change_isolation_policies(self, cluster: str, change: Callable[[Isolation], Isolation]) -> None:
        path, subject = metadata_paths.isolation_policies(cluster), f"The isolation policies of cluster {cluster}"
        async with self._writing:
            await rewrite(self._store, path, Isolation, change, subject, dict)


def _require_few(named: Mapping[str, object], name: str) -> None:
    if len(named.keys() | {name}) > MAX_NAMED:
        raise AdminError(
            412, f"A cluster can have at most {MAX_NAMED} failure domains, and at most {MAX_NAMED} isolation policies"
        )
