"""Prepares a shared metadata store for a cluster (`pybroker metadata init`), like Pulsar's
`initialize-cluster-metadata`.

Repeatable: existing documents stay, and the next run completes an interrupted one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from msgspec import structs

from pybroker.errors import AdminError, StoreError
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resources import Resources
from pybroker.metadata.routed_metadata_store import RoutedMetadataStore
from pybroker.metadata.shared_metadata import (
    CONFIGURATION_PATHS,
    SharedAddresses,
    bootstrap_shared,
    require_layout,
    write_layout,
)
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.model.names import TopicName
from pybroker.model.policies import ClusterData, TenantInfo
from pybroker.model.system_topics import COORDINATOR_ASSIGN, SYSTEM_NAMESPACE
from pybroker.zookeeper.addresses import ServerAddresses
from pybroker.zookeeper.client import ClientOptions, ZooKeeperClient
from pybroker.zookeeper.errors import NodeExists, ZooKeeperError

LEDGERS_PATH = "/ledgers"
LEDGERS_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
Report = Callable[[str], None]


class ClusterAddresses(NamedTuple):
    """Addresses of a cluster for other clusters and clients. None keeps the stored address."""

    web_service_url: str | None = None
    web_service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None

    def applied_to(self, data: ClusterData) -> ClusterData:
        names = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls")
        given = {name: url for name, url in zip(names, self, strict=True) if url is not None}
        return structs.replace(data, **given)


async def initialize_cluster(
    addresses: SharedAddresses,
    options: ClientOptions,
    deadline_s: float,
    cluster_name: str,
    cluster: ClusterAddresses,
    coordinators: int,
    report: Report,
    random: Random,
) -> None:
    """Create the missing nodes and documents of a cluster: root nodes, cluster, tenants, namespaces, `coordinators`
    transaction coordinators, and the nodes that bookies need.

    `report` receives one line for each of them: created, changed, or existing. `deadline_s`: the longest wait for each
    connection to ZooKeeper. Raises StoreError and AdminError.
    """
    await _make_root(addresses.metadata, options, deadline_s, report)
    if addresses.configuration is not None:
        await _make_root(addresses.configuration, options, deadline_s, report)
    shared = await ZooKeeperMetadataStore.open(addresses.metadata, options, deadline_s)
    store: MetadataStore = shared
    try:
        if addresses.configuration is not None:
            configuration = await ZooKeeperMetadataStore.open(addresses.configuration, options, deadline_s)
            store = RoutedMetadataStore(dict.fromkeys(CONFIGURATION_PATHS, configuration), shared)
        await require_layout(shared, str(addresses.metadata))
        await _write_documents(store, cluster_name, cluster, coordinators, report)
        await write_layout(shared)
    finally:
        await store.close()
    await _write_bookkeeper_nodes(addresses.metadata, options, deadline_s, report, random)


async def _write_documents(
    store: MetadataStore, cluster_name: str, addresses: ClusterAddresses, coordinators: int, report: Report
) -> None:
    resources = Resources(store)
    await resources.load()
    before = {"cluster": set(resources.clusters()), "tenant": set(resources.tenants())}
    existing = resources.cluster(cluster_name)
    cluster = addresses.applied_to(existing or ClusterData())
    if existing is None or existing != cluster:
        await resources.put_cluster(cluster_name, cluster)
    await bootstrap_shared(resources, cluster_name)
    _told(report, f"cluster {cluster_name}", existed=cluster_name in before["cluster"], changed=existing != cluster)
    for name in ("public", "pulsar"):
        info = resources.tenant(name)
        assert info is not None, "made above"
        is_missing = cluster_name not in info.allowedClusters
        if is_missing:
            allowed = sorted({*info.allowedClusters, cluster_name})
            await resources.update_tenant(name, TenantInfo(adminRoles=info.adminRoles, allowedClusters=allowed))
        _told(report, f"tenant {name}", existed=name in before["tenant"], changed=is_missing)
    topic = TopicName("persistent", SYSTEM_NAMESPACE, COORDINATOR_ASSIGN)
    partitioned = PartitionedTopics(store)
    await partitioned.load()
    exists = partitioned.get(topic) is not None
    if not exists:
        try:
            await partitioned.create(topic, coordinators)
        except AdminError:
            exists = True
    _told(report, f"transaction coordinators ({coordinators})", existed=exists, changed=False)


def _told(report: Report, what: str, *, existed: bool, changed: bool) -> None:
    report(f"{what}: {'created' if not existed else 'changed' if changed else 'exists'}")


def _random_uuid(random: Random) -> str:
    bits = random.getrandbits(128)
    bits = bits & ~(0xF << 76) | 4 << 76
    bits = bits & ~(3 << 62) | 2 << 62
    digits = f"{bits:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


async def _client(addresses: ServerAddresses, options: ClientOptions, deadline_s: float) -> ZooKeeperClient:
    client = ZooKeeperClient(addresses, options)
    try:
        await client.start(deadline_s)
    except ZooKeeperError as error:
        raise StoreError(str(error)) from error
    return client


async def _make_root(addresses: ServerAddresses, options: ClientOptions, deadline_s: float, report: Report) -> None:
    if not addresses.chroot:
        return
    client = await _client(ServerAddresses(addresses.servers), options, deadline_s)
    try:
        segments = addresses.chroot[1:].split("/")
        for depth in range(1, len(segments) + 1):
            await _create(client, "/" + "/".join(segments[:depth]), b"", report)
    finally:
        await client.close()


async def _write_bookkeeper_nodes(
    addresses: ServerAddresses, options: ClientOptions, deadline_s: float, report: Report, random: Random
) -> None:
    client = await _client(addresses, options, deadline_s)
    try:
        await _create(client, LEDGERS_PATH, b"", report)
        await _create(client, f"{LEDGERS_PATH}/LAYOUT", LEDGERS_LAYOUT, report)
        instance = _random_uuid(random)
        await _create(client, f"{LEDGERS_PATH}/INSTANCEID", instance.encode(), report)
        for path in ("/available", "/available/readonly", "/cookies"):
            await _create(client, LEDGERS_PATH + path, b"", report)
    finally:
        await client.close()


async def _create(client: ZooKeeperClient, path: str, value: bytes, report: Report) -> None:
    try:
        await client.create(path, value)
    except NodeExists:
        report(f"node {path}: exists")
    except ZooKeeperError as error:
        raise StoreError(f"the node {path} cannot be created in the metadata store: {error}") from error
    else:
        report(f"node {path}: created")
