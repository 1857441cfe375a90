"""Clusters, tenants, and namespaces in a write-through cache of the metadata store; and the policies of single topics,
which are not cached.

Invariants: a change is durable when its method returns, and only then visible to reads; the cache never contains values
that the store does not. "Refused: 409" means an AdminError with this code, as in Pulsar's REST API.

A namespace has two documents. The policies hold for all clusters. The local policies hold for this cluster: bundles,
the migration flag, and placement. As in Pulsar, bundles and migration flag of the local policies are in force as soon
as local policies exist, otherwise the ones of the policies. Local policies without bundles mean a single bundle. The
cache contains the result.

Callers must not change the results of reads, which belong to the cache. The broker checks whether a namespace contains
topics before it requests the deletion.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from pybroker.errors import AdminError, BadVersionError
from pybroker.metadata import metadata_paths, stored_document
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, values_at
from pybroker.metadata.stored_document import decoded_or_logged, rewrite
from pybroker.metadata.topic_policies_store import TopicPoliciesStore, TopicPolicyDocuments
from pybroker.model import policies as documents
from pybroker.model.names import DEFAULT_NAMESPACE, PUBLIC_TENANT, NamespaceName, TopicName, is_valid_entity
from pybroker.model.policies import (
    BundlesData,
    ClusterData,
    LocalPolicies,
    NamespacePolicies,
    TenantInfo,
    TopicPolicies,
)

DEFAULT_CLUSTER = "standalone"
SYSTEM_NAMESPACE = NamespaceName("pulsar", "system")

K = TypeVar("K")
T = TypeVar("T")


class PolicyListener(ABC):
    """Called for changed policies, after the change is durable and visible. Must not raise, because further listeners
    are called afterwards.
    """

    @abstractmethod
    async def namespace_changed(self, namespace: NamespaceName) -> None:
        """Called after the policies of an existing namespace changed. Return when the new policies are applied."""

    @abstractmethod
    async def tenant_changed(self, tenant: str) -> None:
        """Called after the administrators of a tenant changed, or a tenant was deleted. Return when this is applied."""

    @abstractmethod
    def topic_changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """Called after this broker changed the topic's policies; `policies` is None if they were deleted."""

    @abstractmethod
    def topic_read_again(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """Called with the present policies of a topic (None: no policies), because another broker may have changed
        them.
        """

    @abstractmethod
    async def topics_missed(self) -> None:
        """Called when other brokers may have changed the policies of any topics, and notifications of these changes
        were lost. The listener must read and apply the policies of all loaded topics again.
        """


class Resources:
    """The cluster, tenant and namespace documents of one metadata store. Call `load` first, then `bootstrap`."""

    def __init__(self, store: MetadataStore, default_bundle_count: int = documents.DEFAULT_BUNDLE_COUNT) -> None:
        self._store = store
        self.default_bundle_count = default_bundle_count
        self._local_cluster = DEFAULT_CLUSTER
        self._clusters: dict[str, ClusterData] = {}
        self._tenants: dict[str, TenantInfo] = {}
        # Has a key for each tenant that has or had namespaces.
        self._namespaces: dict[str, dict[NamespaceName, NamespacePolicies]] = {}
        self._local_policies: dict[NamespaceName, LocalPolicies] = {}
        # Writes check, store and then change the cache: one at a time, or two could pass the same check.
        self._writing = asyncio.Lock()
        self._listeners: list[PolicyListener] = []
        self._topic_policies: TopicPoliciesStore = TopicPolicyDocuments(store, self._topic_changed)

    @property
    def _has_topic_policy_documents(self) -> bool:
        return isinstance(self._topic_policies, TopicPolicyDocuments)

    def listen(self, listener: PolicyListener) -> None:
        self._listeners.append(listener)

    async def load(self) -> None:
        async with self._writing:
            await self._read_all()

    async def _read_all(self) -> None:
        """Read all documents. If one cannot be read, its former content stays in the cache."""
        store = self._store
        clusters: dict[str, ClusterData] = {}
        async for (name,), found in values_at(store, metadata_paths.CLUSTERS, 1):
            cluster = decoded_or_logged(store, metadata_paths.cluster(name), found.value, ClusterData)
            _keep(clusters, name, cluster or self._clusters.get(name))
        tenants: dict[str, TenantInfo] = {}
        async for (name,), found in values_at(store, metadata_paths.POLICIES, 1):
            info = decoded_or_logged(store, metadata_paths.tenant(name), found.value, TenantInfo)
            _keep(tenants, name, info or (self._tenants.get(name) if found.value else None))
        local_policies: dict[NamespaceName, LocalPolicies] = {}
        async for (tenant, local_name), found in values_at(store, metadata_paths.LOCAL_POLICIES, 2):
            namespace = NamespaceName(tenant, local_name)
            local = decoded_or_logged(store, metadata_paths.local_policies(namespace), found.value, LocalPolicies)
            _keep(local_policies, namespace, local or self._local_policies.get(namespace))
        namespaces: dict[NamespaceName, NamespacePolicies] = {}
        async for (tenant, local_name), found in values_at(store, metadata_paths.POLICIES, 2):
            namespace = NamespaceName(tenant, local_name)
            policies = decoded_or_logged(store, metadata_paths.policies(namespace), found.value, NamespacePolicies)
            _keep(namespaces, namespace, policies or self.namespace(namespace))
        self._clusters, self._tenants, self._local_policies = clusters, tenants, local_policies
        self._namespaces = {}
        for namespace, policies in namespaces.items():
            self._remember(namespace, policies)

    async def read_again(self) -> None:
        """Read all documents again, because other brokers may have changed them. Raises StoreError."""
        async with self._writing:
            before = {name: policies for tenant in self._namespaces.values() for name, policies in tenant.items()}
            tenants_before = self._tenants
            await self._read_all()
        for tenant, info in tenants_before.items():
            if self._tenants.get(tenant) != info:
                await self._tenant_changed(tenant)
        for tenant in self.tenants():
            for namespace in self.namespaces(tenant):
                if self.namespace(namespace) != before.get(namespace):
                    await self._namespace_changed(namespace)
        if self._has_topic_policy_documents:
            for listener in self._listeners:
                await listener.topics_missed()

    async def refresh(self, path: str) -> None:
        """Read the document at `path` again, because another broker may have changed it. Raises StoreError."""
        match path.split("/")[1:]:
            case ["admin", "clusters", name]:
                async with self._writing:
                    await self._refresh_entry(path, self._clusters, name, ClusterData)
            case ["admin", "policies", name]:
                async with self._writing:
                    before = self._tenants.get(name)
                    await self._refresh_entry(path, self._tenants, name, TenantInfo)
                if self._tenants.get(name) != before:
                    await self._tenant_changed(name)
            case ["admin", "policies" | "local-policies", tenant, local_name]:
                await self._refresh_namespace(NamespaceName(tenant, local_name))
            case ["pybroker", "topic-policies", tenant, local_name, domain, segment] if (
                self._has_topic_policy_documents
            ):
                topic = metadata_paths.topic_of_segment(NamespaceName(tenant, local_name), domain, segment)
                found = await self._store.get(path)
                policies = None if found is None else decoded_or_logged(self._store, path, found.value, TopicPolicies)
                if found is None or policies is not None:
                    for listener in self._listeners:
                        listener.topic_read_again(topic, policies)

    async def read_missing(self, namespace: NamespaceName) -> None:
        """Read the tenant and the namespace if they are not in the cache, because another broker may have created them
        before the call. Raises StoreError.
        """
        if not self._store.is_shared or self.namespace(namespace) is not None:
            return
        await self._store.sync()
        if namespace.tenant not in self._tenants:
            await self.refresh(metadata_paths.tenant(namespace.tenant))
        await self._refresh_namespace(namespace)

    async def stored_boundaries(self, namespace: NamespaceName) -> list[str] | None:
        """Read the bundle boundaries of a namespace from the store instead of the cache, without waiting for changes in
        progress.

        Return None if the namespace does not exist, or if its document in a shared store is invalid. Raises StoreError.
        """
        path, local_path = metadata_paths.policies(namespace), metadata_paths.local_policies(namespace)
        found, found_local = await self._store.values_of([path, local_path])
        if found is None:
            return None
        if found_local is not None:
            local = decoded_or_logged(self._store, local_path, found_local.value, LocalPolicies)
            return None if local is None else _bundles_in_force(local).boundaries
        policies = decoded_or_logged(self._store, path, found.value, NamespacePolicies)
        return None if policies is None else policies.bundles.boundaries

    async def _refresh_entry(self, path: str, cache: dict[str, T], name: str, kind: type[T]) -> None:
        found = await self._store.get(path)
        if found is None or not found.value:
            cache.pop(name, None)
        else:
            _keep(cache, name, decoded_or_logged(self._store, path, found.value, kind))

    async def _refresh_namespace(self, namespace: NamespaceName) -> None:
        path, local_path = metadata_paths.policies(namespace), metadata_paths.local_policies(namespace)
        async with self._writing:
            before = self.namespace(namespace)
            found, found_local = await self._store.values_of([path, local_path])
            if found_local is None:
                self._local_policies.pop(namespace, None)
            else:
                local = decoded_or_logged(self._store, local_path, found_local.value, LocalPolicies)
                _keep(self._local_policies, namespace, local)
            policies = None
            if found is None:
                self._forget(namespace)
            else:
                policies = decoded_or_logged(self._store, path, found.value, NamespacePolicies)
            if policies is not None:
                self._remember(namespace, policies)
            is_changed = policies is not None and policies != before
        if is_changed:
            await self._namespace_changed(namespace)

    async def _namespace_changed(self, namespace: NamespaceName) -> None:
        for listener in self._listeners:
            await listener.namespace_changed(namespace)

    async def _tenant_changed(self, tenant: str) -> None:
        for listener in self._listeners:
            await listener.tenant_changed(tenant)

    async def bootstrap(self, cluster_name: str, bootstrap_namespaces: Iterable[str] = ()) -> None:
        """Create the objects that every broker needs, if they are missing: its cluster, the namespaces public/default,
        pulsar/system and `bootstrap_namespaces`, and their tenants.

        Raises InvalidTopicName for an invalid name in `bootstrap_namespaces`, and AdminError 409 if another broker
        creates one of the objects at the same time.
        """
        self._local_cluster = cluster_name
        if cluster_name not in self._clusters:
            await self.put_cluster(cluster_name, ClusterData())
        namespaces = [NamespaceName(PUBLIC_TENANT, DEFAULT_NAMESPACE), SYSTEM_NAMESPACE]
        namespaces += [NamespaceName.parse(text) for text in bootstrap_namespaces]
        for namespace in namespaces:
            if namespace.tenant not in self._tenants:
                await self.create_tenant(namespace.tenant, TenantInfo(allowedClusters=[cluster_name]))
            if self.namespace(namespace) is None:
                await self.create_namespace(namespace, NamespacePolicies())

    def clusters(self) -> dict[str, ClusterData]:
        return self._clusters

    def cluster(self, name: str) -> ClusterData | None:
        return self._clusters.get(name)

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def tenant(self, name: str) -> TenantInfo | None:
        return self._tenants.get(name)

    def namespaces(self, tenant: str) -> list[NamespaceName]:
        return sorted(self._namespaces.get(tenant, ()), key=str)

    def namespace(self, namespace: NamespaceName) -> NamespacePolicies | None:
        found = self._namespaces.get(namespace.tenant)
        return found.get(namespace) if found is not None else None

    async def put_cluster(self, name: str, data: ClusterData) -> None:
        """Create or replace a cluster. Raises AdminError 412 for an invalid name."""
        async with self._writing:
            if not is_valid_entity(name):
                raise AdminError(412, "Cluster name is not valid")
            path, subject = metadata_paths.cluster(name), f"Cluster {name}"
            await rewrite(self._store, path, ClusterData, lambda _: data, subject, ClusterData)
            self._clusters[name] = data

    async def update_cluster(self, name: str, change: Callable[[ClusterData], None]) -> None:
        """Apply `change` to the stored cluster. If another broker changes the cluster at the same time, apply `change`
        again to the new document. Raises AdminError: 404 if the cluster is missing, 409 after repeated concurrent
        changes.
        """
        async with self._writing:
            path, subject = metadata_paths.cluster(name), f"Cluster {name}"
            data = await rewrite(self._store, path, ClusterData, _in_place(change), subject)
            if data is None:
                self._clusters.pop(name, None)
                raise AdminError(404, "Cluster does not exist")
            self._clusters[name] = data

    async def delete_cluster(self, name: str) -> None:
        """Delete a cluster. Raises AdminError: 404 if it is missing, 412 while namespaces use it."""
        async with self._writing:
            if name not in self._clusters:
                raise AdminError(404, "Cluster does not exist")
            for tenant in self._namespaces.values():
                for namespace, policies in tenant.items():
                    if name in policies.replication_clusters:
                        raise AdminError(
                            412,
                            f"Cluster {name} is not empty: namespace {namespace} belongs to it: delete the namespace first",
                        )
            await self._store.delete_tree(metadata_paths.cluster(name))  # with its further documents
            del self._clusters[name]

    async def create_tenant(self, name: str, info: TenantInfo, limit: int = 0) -> None:
        """Create a tenant. Raises AdminError: 409 if the tenant exists; 412 for an invalid name, if `info` allows no
        cluster or an unknown one, and if `limit` tenants exist (0: no limit).
        """
        async with self._writing:
            if not is_valid_entity(name):
                raise AdminError(412, "Tenant name is not valid")
            self._require_known_clusters(info)
            if name in self._tenants:
                raise AdminError(409, f"Tenant {name} already exists")
            if 0 < limit <= len(self._tenants):
                raise AdminError(412, f"Exceed the maximum number of tenants (maxTenants={limit})")
            await self._create(metadata_paths.tenant(name), documents.encode(info), f"Tenant {name} already exists")
            self._tenants[name] = info

    async def update_tenant(self, name: str, info: TenantInfo) -> None:
        """Replace the document of a tenant. Raises AdminError: 404 if the tenant is missing, 412 if `info` allows no
        cluster or an unknown one, 409 after repeated concurrent changes.
        """
        async with self._writing:
            if name not in self._tenants:
                raise AdminError(404, "Tenant does not exist")
            self._require_known_clusters(info)
            path, subject = metadata_paths.tenant(name), f"Tenant {name}"
            if await rewrite(self._store, path, TenantInfo, lambda _: info, subject) is None:
                del self._tenants[name]
                raise AdminError(404, "Tenant does not exist")
            self._tenants[name] = info
        await self._tenant_changed(name)

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant. Raises AdminError: 404 if it is missing, 409 while it has namespaces."""
        async with self._writing:
            if name not in self._tenants:
                raise AdminError(404, "Tenant does not exist")
            if self._namespaces.get(name):
                raise AdminError(409, f"Tenant {name} still has namespaces")
            await self._store.delete(metadata_paths.tenant(name))
            del self._tenants[name]
        await self._tenant_changed(name)

    async def create_namespace(self, namespace: NamespaceName, policies: NamespacePolicies, limit: int = 0) -> None:
        """Create a namespace; absent bundles and clusters get the defaults.

        Raises AdminError: 409 if the namespace exists, 404 if the tenant does not, 412 for an invalid name and if the
        tenant has `limit` namespaces (0: no limit), 403 for a cluster that the tenant may not use, 400 for invalid
        bundles.
        """
        async with self._writing:
            if not is_valid_entity(namespace.local_name):
                raise AdminError(412, "Namespace name is not valid")
            tenant = self._tenants.get(namespace.tenant)
            if tenant is None:
                raise AdminError(404, "Tenant does not exist")
            if self.namespace(namespace) is not None:
                raise AdminError(409, f"Namespace {namespace} already exists")
            if 0 < limit <= len(self._namespaces.get(namespace.tenant, ())):
                raise AdminError(
                    412,
                    f"Exceed the maximum number of namespace in tenant: {namespace.tenant} (maxNamespacesPerTenant={limit})",
                )
            created = documents.copy_of(policies)
            created.deleted = False  # set by deletions only
            created.replication_clusters = created.replication_clusters or [self._local_cluster]
            for cluster in created.replication_clusters:
                if cluster not in tenant.allowedClusters:
                    raise AdminError(
                        403, f"Cluster {cluster} is not among the allowed clusters of tenant {namespace.tenant}"
                    )
            try:
                created.bundles = documents.checked_bundles(created.bundles, self.default_bundle_count)
            except ValueError as error:
                raise AdminError(400, f"Invalid bundles: {error}") from error
            if self._store.is_shared:
                # Left by a Java broker that served the former namespace of this name until its end.
                await self._read_local_policies(namespace)
            await self._create(
                metadata_paths.policies(namespace), documents.encode(created), f"Namespace {namespace} already exists"
            )
            self._remember(namespace, created)

    async def update_namespace(self, namespace: NamespaceName, change: Callable[[NamespacePolicies], None]) -> None:
        """Apply `change` to the stored policies of a namespace. If another broker changes them at the same time, apply
        `change` again to the new policies. Return when all listeners have applied the result.

        Use `update_bundles` and `update_local_policies` for bundles and the migration flag. Raises AdminError: 404 if
        the namespace does not exist, 409 after repeated concurrent changes; and the errors of `change`.
        """
        async with self._writing:
            await self._change_namespace(namespace, change)
        for listener in self._listeners:
            await listener.namespace_changed(namespace)

    async def update_bundles(self, namespace: NamespaceName, change: Callable[[BundlesData], BundlesData]) -> None:
        """Replace the bundles of a namespace by the result of `change`. If another broker changes them at the same
        time, call `change` again with the new bundles. Raises AdminError: 404 if the namespace does not exist, 409
        after repeated concurrent changes; and the errors of `change`.

        A namespace has its bundles in two documents, as in Pulsar. This method changes the local policies first, which
        brokers use, and then the namespace policies, for programs that read only these.
        """
        async with self._writing:

            def change_local(local: LocalPolicies) -> None:
                assert local.bundles is not None, "set by the caller"
                local.bundles = change(local.bundles)

            local = await self._change_local_policies(namespace, change_local)

            def copy(policies: NamespacePolicies) -> None:
                assert local.bundles is not None, "set above"
                policies.bundles = local.bundles

            await self._change_namespace(namespace, copy)
        for listener in self._listeners:
            await listener.namespace_changed(namespace)

    async def _change_namespace(self, namespace: NamespaceName, change: Callable[[NamespacePolicies], None]) -> None:
        path = metadata_paths.policies(namespace)
        policies = await rewrite(
            self._store, path, NamespacePolicies, _in_place(change), subject=f"Namespace {namespace}"
        )
        if policies is None:
            self._forget(namespace)
            raise AdminError(404, "Namespace does not exist")
        self._remember(namespace, policies)

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        """Delete a namespace with its local policies and quotas. Raises AdminError 404 if it is missing.

        The policies are deleted last: after a crash, the namespace still exists, and a new namespace of this name
        inherits nothing.
        """
        async with self._writing:
            await self._store.delete_tree(metadata_paths.resource_quotas(namespace))
            await self._store.delete(metadata_paths.local_policies(namespace))
            self._local_policies.pop(namespace, None)
            existed = await self._store.delete(metadata_paths.policies(namespace))
            self._forget(namespace)
            if not existed:
                raise AdminError(404, "Namespace does not exist")

    def keep_topic_policies_in(self, store: TopicPoliciesStore) -> None:
        """Use `store` for the policies of topics from now on. `store` itself must notify the broker of changes: the
        listeners of this object are not called for them.
        """
        self._topic_policies = store

    async def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """Return the policies that are set for the topic itself in this cluster, without those that are set for all
        clusters.
        """
        return await self._topic_policies.get(topic)

    async def topic_policies_in_force(self, topic: TopicName) -> TopicPolicies:
        """Return the policies that are set for the topic itself: each one as set for this cluster, or else as set for
        all clusters.

        A caller that registers a listener before it yields to the event loop again misses no change.
        """
        return await self._topic_policies.in_force(topic)

    async def update_topic_policies(self, topic: TopicName, change: Callable[[TopicPolicies], None]) -> None:
        """Apply `change` to the policies of the topic itself. If another broker changes them at the same time, apply
        `change` again to the new policies. Raises AdminError 409 after repeated concurrent changes.
        """
        await self._topic_policies.update(topic, change)

    async def delete_topic_policies(self, topic: TopicName) -> None:
        await self._topic_policies.delete(topic)

    def _topic_changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        for listener in self._listeners:
            listener.topic_changed(topic, policies)

    async def forget_topic(self, topic: TopicName) -> None:
        """Delete the policies and the permissions of a topic that is being deleted, so that a later topic of this name
        does not inherit them.

        For a partition, the policies stay: they belong to the partitioned topic. Raises AdminError 409 after repeated
        concurrent changes.
        """
        if topic.partition_index < 0:
            await self.delete_topic_policies(topic)
        namespace = self.namespace(topic.namespace)
        if namespace is not None and str(topic) in namespace.auth_policies.destination_auth:

            def change(policies: NamespacePolicies) -> None:
                policies.auth_policies.destination_auth.pop(str(topic), None)

            await self.update_namespace(topic.namespace, change)

    def local_policies(self, namespace: NamespaceName) -> LocalPolicies:
        """Return the local policies of a namespace, which apply to this cluster only. If none are stored, return the
        defaults, which contain no bundles.
        """
        return self._local_policies.get(namespace) or LocalPolicies()

    async def update_local_policies(self, namespace: NamespaceName, change: Callable[[LocalPolicies], None]) -> None:
        """Apply `change` to the local policies of a namespace, which apply to this cluster only. If another broker
        changes them at the same time, apply `change` again to the new policies. Raises AdminError: 404 if the namespace
        does not exist, 409 after repeated concurrent changes.
        """
        async with self._writing:
            await self._change_local_policies(namespace, change)
            policies = self.namespace(namespace)
            assert policies is not None, "checked above"
            self._remember(namespace, msgspec.structs.replace(policies))

    async def _change_local_policies(
        self, namespace: NamespaceName, change: Callable[[LocalPolicies], None]
    ) -> LocalPolicies:
        """Write local policies with the bundles in force. The caller updates the cache of the namespace."""
        policies = self.namespace(namespace)
        if policies is None:
            raise AdminError(404, "Namespace does not exist")
        in_force = LocalPolicies(bundles=policies.bundles, migrated=policies.migrated)

        def change_whole(local: LocalPolicies) -> LocalPolicies:
            local.bundles = _bundles_in_force(local)
            change(local)
            return local

        path, subject = metadata_paths.local_policies(namespace), f"Namespace {namespace}"
        local = await rewrite(
            self._store, path, LocalPolicies, change_whole, subject, lambda: documents.copy_of(in_force)
        )
        assert local is not None, "created if missing"
        self._local_policies[namespace] = local
        return local

    async def _read_local_policies(self, namespace: NamespaceName) -> None:
        path = metadata_paths.local_policies(namespace)
        local = await stored_document.read(self._store, path, LocalPolicies)
        if local is not None:
            self._local_policies[namespace] = local

    def _remember(self, namespace: NamespaceName, policies: NamespacePolicies) -> None:
        """Put `policies` into the cache, with the bundles and the migration flag that are in force."""
        local = self._local_policies.get(namespace)
        if local is not None:
            policies.bundles = _bundles_in_force(local)
            policies.migrated = local.migrated
        self._namespaces.setdefault(namespace.tenant, {})[namespace] = policies

    def _forget(self, namespace: NamespaceName) -> None:
        self._namespaces.get(namespace.tenant, {}).pop(namespace, None)

    def _require_known_clusters(self, info: TenantInfo) -> None:
        if not info.allowedClusters:
            raise AdminError(412, "Clusters cannot be empty or blank")
        unknown = sorted(set(info.allowedClusters) - self._clusters.keys())
        if unknown:
            raise AdminError(412, "Clusters do not exist")

    async def _create(self, path: str, value: bytes, conflict: str) -> None:
        try:
            await self._store.put(path, value, NOT_EXISTING)
        except BadVersionError as error:
            raise AdminError(409, conflict) from error


def _keep(cache: dict[K, T], name: K, document: T | None) -> None:
    if document is not None:
        cache[name] = document


def _in_place(change: Callable[[T], None]) -> Callable[[T], T]:
    def changed(document: T) -> T:
        change(document)
        return document

    return changed


def _bundles_in_force(local: LocalPolicies) -> BundlesData:
    """Return the bundles of a namespace with local policies."""
    if local.bundles is None or len(local.bundles.boundaries) < 2:
        return documents.even_bundles(1)
    return local.bundles
