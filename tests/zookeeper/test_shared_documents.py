"""Documents of a real ZooKeeper: those of the reference broker are read, and starts are counted as Java brokers do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.memory_broker import SetClock

from pybroker.broker.context.producer_names import ProducerNames
from pybroker.cluster.cluster_documents import ClusterDocuments
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroups
from pybroker.metadata.resources import Resources
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.model.names import NamespaceName
from pybroker.model.policies import LocalPolicies
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

VECTORS = Path(__file__).parents[1] / "vectors/metadata_documents.json"
OPTIONS = ClientOptions(session_timeout_ms=10_000)


@pytest.fixture
async def client(chroot: ServerAddresses) -> AsyncIterator[ZooKeeperClient]:
    opened = ZooKeeperClient(chroot, OPTIONS)
    await opened.start(30)
    yield opened
    await opened.close()


async def test_starts_are_counted_as_java_brokers_count_them(chroot: ServerAddresses, client: ZooKeeperClient) -> None:
    given, stores = [], []
    for _ in range(3):
        stores.append(await ZooKeeperMetadataStore.open(chroot, OPTIONS, 30))
        names = ProducerNames("c", stores[-1], SetClock())
        await names.load()
        given.append(names.new())
    assert given == ["c-0-0", "c-1-0", "c-2-0"]
    assert sorted(await client.children("/counters/producer-name")) == [f"-{number:010}" for number in range(3)]
    for store in stores:
        await store.close()
    assert await client.children("/counters/producer-name") == []
    store = await ZooKeeperMetadataStore.open(chroot, OPTIONS, 30)
    names = ProducerNames("c", store, SetClock())
    await names.load()
    assert names.new() == "c-3-0"
    await store.close()


async def test_documents_of_the_reference_are_read_and_changed_in_zookeeper(
    chroot: ServerAddresses, client: ZooKeeperClient
) -> None:
    documents: dict[str, str] = json.loads(VECTORS.read_text())["documents"]
    for path, text in documents.items():
        if await client.exists(path) is None:
            await client.create(path, text.encode(), makes_parents=True)
        else:
            await client.set(path, text.encode())
    store = await ZooKeeperMetadataStore.open(chroot, OPTIONS, 30)
    resources, groups, partitioned = Resources(store), ResourceGroups(store), PartitionedTopics(store)
    for part in (resources, groups, partitioned):
        await part.load()
    cluster_documents = ClusterDocuments(store)
    assert sorted(resources.clusters()) == ["other", "standalone", "third"]
    assert resources.tenants() == ["bare", "documents", "public", "pulsar"]
    assert [name.local_name for name in resources.namespaces("documents")] == ["cut", "full", "placed", "plain"]
    assert groups.names() == ["a b", "größe", "small"]
    plain = NamespaceName("documents", "plain")
    topics = [topic.local_name for topic in partitioned.names(plain, "persistent")]
    assert topics == ["100%", "a b", "größe", "orders", "tilde~star*"]
    assert sorted(await cluster_documents.failure_domains("other")) == ["rack-1", "rack-2"]
    assert await cluster_documents.failure_domains("third") == {}

    def change(policies: LocalPolicies) -> None:
        policies.namespaceAntiAffinityGroup = "group"

    await resources.update_local_policies(plain, change)
    value, _ = await client.get("/admin/local-policies/documents/plain")
    before = json.loads(documents["/admin/local-policies/documents/plain"])
    assert json.loads(value) == {**before, "namespaceAntiAffinityGroup": "group"}
    await cluster_documents.delete_failure_domain("other", "rack-1")
    assert await client.children("/admin/clusters/other/failureDomain") == ["rack-2"]
    for namespace in resources.namespaces("documents"):
        await resources.delete_namespace(namespace)
    await resources.delete_tenant("documents")
    assert await client.exists("/admin/policies/documents") is None
    await store.close()
