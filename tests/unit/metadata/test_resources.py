"""Clusters, tenants and namespaces: creation, storage and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from pybroker.errors import AdminError, InvalidTopicName, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import Versioned, values_at
from pybroker.metadata.resources import PolicyListener, Resources
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import BundlesData, ClusterData, NamespacePolicies, TenantInfo, TopicPolicies, even_bundles

DEFAULT = NamespaceName("public", "default")
NEW = NamespaceName("public", "new")


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
async def resources(store: MemoryMetadataStore) -> Resources:
    return await started(store)


async def started(store: MemoryMetadataStore) -> Resources:
    resources = Resources(store)
    await resources.load()
    await resources.bootstrap("standalone", ())
    return resources


async def assert_refused(work: Awaitable[object], status: int) -> None:
    with pytest.raises(AdminError) as caught:
        await work
    assert caught.value.status == status, caught.value.reason


async def test_fresh_data_has_the_cluster_two_tenants_and_their_namespaces(resources: Resources) -> None:
    assert list(resources.clusters()) == ["standalone"]
    assert resources.tenants() == ["public", "pulsar"]
    assert resources.namespaces("public") == [DEFAULT]
    assert resources.namespaces("pulsar") == [NamespaceName("pulsar", "system")]
    assert resources.tenant("public") == TenantInfo(adminRoles=[], allowedClusters=["standalone"])
    expected = NamespacePolicies(replication_clusters=["standalone"], bundles=even_bundles(4))
    assert resources.namespace(DEFAULT) == expected


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    resources = Resources(store)
    await resources.load()
    await resources.bootstrap("standalone", ["mine/orders"])
    await resources.update_namespace(DEFAULT, lambda policies: policies.properties.update(a="b"))
    await store.close()

    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    again = Resources(store)
    await again.load()
    await again.bootstrap("standalone", ["mine/orders"])
    assert again.tenants() == resources.tenants() == ["mine", "public", "pulsar"]
    for tenant in again.tenants():
        assert again.namespaces(tenant) == resources.namespaces(tenant)
    assert again.namespace(DEFAULT) == resources.namespace(DEFAULT)
    assert again.clusters() == resources.clusters()
    await store.close()


async def test_a_bootstrap_namespace_with_a_bad_name_is_refused(store: MemoryMetadataStore) -> None:
    with pytest.raises(InvalidTopicName):
        await Resources(store).bootstrap("standalone", ["no-slash"])


async def test_a_document_that_cannot_be_read_is_named(store: MemoryMetadataStore) -> None:
    await store.put(metadata_paths.tenant("broken"), b"{")
    with pytest.raises(StoreError, match="/admin/policies/broken"):
        await Resources(store).load()


async def test_tenants_are_refused_with_pulsars_codes(resources: Resources) -> None:
    good = TenantInfo(allowedClusters=["standalone"])
    await assert_refused(resources.create_tenant("public", good), 409)
    await assert_refused(resources.create_tenant("not/valid", good), 412)
    await assert_refused(resources.create_tenant("t", TenantInfo()), 412)
    await assert_refused(resources.create_tenant("t", TenantInfo(allowedClusters=["elsewhere"])), 412)
    await assert_refused(resources.update_tenant("t", good), 404)
    await assert_refused(resources.update_tenant("public", TenantInfo(allowedClusters=["elsewhere"])), 412)
    await assert_refused(resources.delete_tenant("t"), 404)
    await assert_refused(resources.delete_tenant("public"), 409)


async def test_a_tenant_is_changed_and_deleted_when_it_is_empty(resources: Resources) -> None:
    await resources.create_tenant("t", TenantInfo(allowedClusters=["standalone"]))
    changed = TenantInfo(adminRoles=["boss"], allowedClusters=["standalone"])
    await resources.update_tenant("t", changed)
    assert resources.tenant("t") == changed
    namespace = NamespaceName("t", "ns")
    await resources.create_namespace(namespace, NamespacePolicies())
    await assert_refused(resources.delete_tenant("t"), 409)
    await resources.delete_namespace(namespace)
    await resources.delete_tenant("t")
    assert resources.tenant("t") is None


async def test_namespaces_are_refused_with_pulsars_codes(resources: Resources) -> None:
    nothing = NamespacePolicies()
    await assert_refused(resources.create_namespace(DEFAULT, nothing), 409)
    await assert_refused(resources.create_namespace(NamespaceName("nobody", "ns"), nothing), 404)
    await assert_refused(resources.create_namespace(NamespaceName("public", "a b"), nothing), 412)
    elsewhere = NamespacePolicies(replication_clusters=["elsewhere"])
    await assert_refused(resources.create_namespace(NEW, elsewhere), 403)
    bad_bundles = NamespacePolicies(bundles=BundlesData(["0x00000000"], 1))
    await assert_refused(resources.create_namespace(NEW, bad_bundles), 400)
    await assert_refused(resources.delete_namespace(NEW), 404)
    await assert_refused(resources.update_namespace(NEW, lambda policies: None), 404)
    assert resources.namespaces("public") == [DEFAULT]


async def test_a_namespace_takes_the_policies_that_it_is_created_with(resources: Resources) -> None:
    asked = NamespacePolicies(bundles=BundlesData(numBundles=8), message_ttl_in_seconds=60)
    await resources.create_namespace(NEW, asked)
    created = resources.namespace(NEW)
    assert created is not None
    assert created.bundles == even_bundles(8)
    assert created.message_ttl_in_seconds == 60
    assert created is not asked, "the caller's document must not become part of the cache"


async def test_a_refused_change_leaves_the_policies_alone(resources: Resources) -> None:
    def change(policies: NamespacePolicies) -> None:
        policies.message_ttl_in_seconds = -5
        raise AdminError(412, "no")

    await assert_refused(resources.update_namespace(DEFAULT, change), 412)
    found = resources.namespace(DEFAULT)
    assert found is not None
    assert found.message_ttl_in_seconds is None


async def test_changes_at_the_same_time_do_not_overwrite_each_other(resources: Resources) -> None:
    await asyncio.gather(
        *(resources.update_namespace(DEFAULT, lambda p, i=i: p.properties.update({f"k{i}": "v"})) for i in range(10))  # type: ignore[misc]
    )
    found = resources.namespace(DEFAULT)
    assert found is not None
    assert len(found.properties) == 10


async def test_a_change_meets_what_another_broker_has_written_meanwhile(store: MemoryMetadataStore) -> None:
    mine, other = await started(store), await started(store)
    attempts: list[NamespacePolicies] = []

    def change(policies: NamespacePolicies) -> None:
        attempts.append(policies)
        policies.properties["mine"] = "1"

    original_put = store.put

    async def put_after_the_other(path: str, value: bytes, expected_version: int = -1) -> int:
        if len(attempts) == 1:
            store.put = original_put  # type: ignore[method-assign]
            await other.update_namespace(DEFAULT, lambda policies: policies.properties.update(other="1"))
        return await original_put(path, value, expected_version)

    store.put = put_after_the_other  # type: ignore[method-assign]
    await mine.update_namespace(DEFAULT, change)
    found = mine.namespace(DEFAULT)
    assert found is not None
    assert found.properties == {"mine": "1", "other": "1"}
    assert len(attempts) == 2


async def test_of_two_brokers_that_create_the_same_namespace_one_is_told_409(store: MemoryMetadataStore) -> None:
    mine, other = await started(store), await started(store)
    await mine.create_namespace(NEW, NamespacePolicies())
    await assert_refused(other.create_namespace(NEW, NamespacePolicies()), 409)


async def test_a_cluster_is_deleted_only_when_no_namespace_lives_there(resources: Resources) -> None:
    await resources.put_cluster("second", ClusterData(serviceUrl="http://second:8080"))
    await assert_refused(resources.delete_cluster("standalone"), 412)
    await assert_refused(resources.delete_cluster("third"), 404)
    await assert_refused(resources.put_cluster("a b", ClusterData()), 412)
    await resources.delete_cluster("second")
    assert list(resources.clusters()) == ["standalone"]


class Listener(PolicyListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.missed = 0

    async def namespace_changed(self, namespace: NamespaceName) -> None:
        self.told.append(namespace)

    async def tenant_changed(self, tenant: str) -> None:
        self.told.append(tenant)

    def topic_read_again(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        self.topic_changed(topic, policies)

    async def topics_missed(self) -> None:
        self.missed += 1

    def topic_changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        self.told.append((topic, policies))


async def test_a_topics_own_policies_are_kept_until_they_are_deleted(store: MemoryMetadataStore) -> None:
    resources = await started(store)
    topic = TopicName.parse("persistent://public/default/a%2Fb")

    def set_ttl(policies: TopicPolicies) -> None:
        policies.messageTTLInSeconds = 60

    assert await resources.topic_policies(topic) == TopicPolicies()
    await resources.update_topic_policies(topic, set_ttl)
    await resources.update_topic_policies(topic, lambda policies: None)
    again = await started(store)
    assert await again.topic_policies(topic) == TopicPolicies(messageTTLInSeconds=60)
    await again.delete_topic_policies(topic)
    assert await resources.topic_policies(topic) == TopicPolicies()


async def test_each_listener_is_told_of_every_change_once_it_is_stored(resources: Resources) -> None:
    topic = TopicName.parse("persistent://public/default/t")
    listener, second = Listener(), Listener()
    resources.listen(listener)
    resources.listen(second)

    def set_ttl(policies: NamespacePolicies) -> None:
        policies.message_ttl_in_seconds = 5

    def set_topic_ttl(policies: TopicPolicies) -> None:
        policies.messageTTLInSeconds = 7

    await resources.update_namespace(DEFAULT, set_ttl)
    await resources.update_topic_policies(topic, set_topic_ttl)
    await resources.delete_topic_policies(topic)
    await resources.delete_topic_policies(topic)  # no policies exist any more: no change
    assert listener.told == [DEFAULT, (topic, TopicPolicies(messageTTLInSeconds=7)), (topic, None)]
    assert second.told == listener.told


async def test_listeners_are_notified_of_changed_and_deleted_tenants(store: MemoryMetadataStore) -> None:
    resources, other = await started(store), await started(store)
    listener, listener_of_other = Listener(), Listener()
    await resources.create_tenant("acme", TenantInfo(["boss"], ["standalone"]))
    await other.refresh(metadata_paths.tenant("acme"))
    resources.listen(listener)
    other.listen(listener_of_other)
    await resources.update_tenant("acme", TenantInfo([], ["standalone"]))
    for _ in range(2):  # The second time, nothing has changed.
        await other.refresh(metadata_paths.tenant("acme"))
    await resources.delete_tenant("acme")
    await other.read_again()
    assert listener.told == listener_of_other.told == ["acme", "acme"]


async def test_a_refused_change_of_a_topics_policies_changes_nothing(resources: Resources) -> None:
    topic = TopicName.parse("persistent://public/default/t")

    def refuse(policies: TopicPolicies) -> None:
        policies.messageTTLInSeconds = 7
        raise AdminError(412, "no")

    await assert_refused(resources.update_topic_policies(topic, refuse), 412)
    assert await resources.topic_policies(topic) == TopicPolicies()


class CountingStore(MemoryMetadataStore):
    """Counts the operations, each of which is a round trip to a remote store."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    async def get(self, path: str) -> Versioned | None:
        self.operations += 1
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        self.operations += 1
        return await super().children(path)

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        self.operations += 1
        return await super().values_below(path, after, limit)


async def test_load_takes_as_many_operations_for_many_namespaces_as_for_few() -> None:
    counts = []
    for tenants in (1, 50):
        store = CountingStore()
        resources = await started(store)
        for number in range(tenants):
            await resources.create_tenant(f"t{number}", TenantInfo(allowedClusters=["standalone"]))
            for local_name in ("a", "b", "c"):
                await resources.create_namespace(NamespaceName(f"t{number}", local_name), NamespacePolicies())
        await store.put(metadata_paths.failure_domains("standalone") + "/d", b"{}")
        store.operations = 0
        loaded = Resources(store)
        await loaded.load()
        assert len(loaded.tenants()) == tenants + 2
        assert loaded.namespaces("t0") == [NamespaceName("t0", name) for name in ("a", "b", "c")]
        assert list(loaded.clusters()) == ["standalone"]
        counts.append(store.operations)
    assert counts == [4, 4]


async def test_values_at_continues_after_a_full_page() -> None:
    store = MemoryMetadataStore()
    resources = await started(store)
    names = [NamespaceName("public", f"n{number}") for number in range(5)]
    for name in names:
        await resources.create_namespace(name, NamespacePolicies())
    found = [segments async for segments, _ in values_at(store, metadata_paths.POLICIES, 2, page_values=2)]
    assert found == sorted(
        [["public", "default"], ["pulsar", "system"], *(["public", name.local_name] for name in names)]
    )
