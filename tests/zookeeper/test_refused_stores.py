"""Stores that a broker must not use: it says why before it writes anything."""

from __future__ import annotations

import pytest
from tests.zookeeper.conftest import make_chroot

from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import StoreError
from pybroker.metadata.broker_identity import DIRECTORY_ID_PATH, BrokerIdentity, directory_id, keep_directory_id
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.shared_metadata import (
    LAYOUT_PATH,
    open_shared_metadata,
    shared_addresses,
    with_local_documents,
    write_layout,
)
from pybroker.runtime.runtime import Runtime
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient


def config(addresses: ServerAddresses, cluster_name: str = "c1", configuration: str = "") -> BrokerConfig:
    return BrokerConfig(
        metadata_store_url=f"zk:{addresses}",
        configuration_metadata_store_url=configuration,
        ledger_store="local",
        cluster_name=cluster_name,
    )


async def refusal(used: BrokerConfig) -> str:
    """Return why the store is refused."""
    addresses = shared_addresses(used)
    assert addresses is not None
    with pytest.raises(StoreError) as raised:
        await open_shared_metadata(used, addresses)
    return str(raised.value)


async def test_unprepared_foreign_and_newer_stores_are_refused_and_stay_unchanged(chroot: ServerAddresses) -> None:
    client = ZooKeeperClient(chroot, ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    missing = ServerAddresses(chroot.servers, f"{chroot.chroot}/missing")
    assert "prepare it for a cluster with `pybroker metadata init`" in await refusal(config(missing))
    assert "has no cluster: prepare it with `pybroker metadata init" in await refusal(config(chroot))
    await client.create("/admin/clusters/c1", b"{}", makes_parents=True)
    assert "clusterName is c2, but the metadata store" in await refusal(config(chroot, "c2"))
    await client.create(LAYOUT_PATH, b'{"version": 99}', makes_parents=True)
    assert "version 99, but this version of pybroker reads only versions up to 1" in await refusal(config(chroot))
    await client.set(LAYOUT_PATH, b"[]")
    assert f"the metadata at {LAYOUT_PATH}" in await refusal(config(chroot))
    assert sorted(await client.children("/")) == ["admin", "pybroker"]
    assert await client.children("/admin") == ["clusters"]
    await client.close()


async def test_configuration_documents_are_in_the_configuration_store(chroot: ServerAddresses) -> None:
    other = ServerAddresses(chroot.servers, f"{chroot.chroot}-configuration")
    await make_chroot(other)
    client = ZooKeeperClient(other, ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    await client.create("/admin/clusters/c1", b"{}", makes_parents=True)
    used = config(chroot, configuration=f"zk:{other}")
    addresses = shared_addresses(used)
    assert addresses is not None
    embedded = MemoryMetadataStore()
    store = with_local_documents(used, await open_shared_metadata(used, addresses), embedded)
    await store.put("/admin/policies/t", b"1")
    await store.put("/admin/local-policies/t/n", b"2")
    await store.put("/managed-ledgers/t/n/persistent/x", b"3")
    assert (await client.get("/admin/policies/t"))[0] == b"1"
    assert sorted(await client.children("/admin")) == ["clusters", "policies"]
    assert await embedded.children("/") == ["managed-ledgers"]
    paths = ["/managed-ledgers/t/n/persistent/x", "/admin/policies/t", "/admin/local-policies/t/n", "/none"]
    assert [None if found is None else found.value for found in await store.values_of(paths)] == [
        b"3",
        b"1",
        b"2",
        None,
    ]
    await store.close()
    await client.close()


async def test_id_of_a_running_broker_is_refused_and_that_of_the_same_directory_is_taken_over(
    chroot: ServerAddresses,
) -> None:
    client = ZooKeeperClient(chroot, ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    await client.create("/admin/clusters/c1", b"{}", makes_parents=True)
    used = config(chroot)
    addresses = shared_addresses(used)
    assert addresses is not None
    runtime = Runtime(used)
    ids = [directory_id(None, runtime) for _ in range(2)]
    assert ids[0] != ids[1]
    directory = MemoryMetadataStore()
    await keep_directory_id(directory, ids[0])
    await keep_directory_id(directory, ids[1])
    assert await directory.get(DIRECTORY_ID_PATH) == (ids[0].encode(), 0)
    assert directory_id(ids[0].encode(), runtime) == ids[0]
    stores = [await open_shared_metadata(used, addresses) for _ in range(3)]
    await write_layout(stores[0])
    identities = [
        BrokerIdentity(store, "h:8080", owner, {"host": "h"})
        for store, owner in zip(stores, (ids[0], ids[1], ids[0]), strict=True)
    ]
    await identities[0].claim(30)
    with pytest.raises(StoreError, match=r"another broker has the id h:8080"):
        await identities[1].claim(30)
    await identities[2].claim(30)
    for identity, store in zip(identities, stores, strict=True):
        await identity.close()
        await store.close()
    await client.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"metadata_store_url": "etcd:h:1"}, "metadataStoreUrl cannot be 'etcd:h:1': supported are zk:"),
        ({"metadata_store_url": "h:2181"}, "supported are zk:"),
        (
            {"metadata_store_url": "zk:h:1", "ledger_store": "", "managed_ledger_storage_class_name": "com.example.X"},
            "managedLedgerStorageClassName=com.example.X is not supported",
        ),
        ({"metadata_store_url": "zk:h:1/../x"}, "is not a path"),
        ({"metadata_store_url": "", "configuration_metadata_store_url": "zk:h:1"}, "set both or neither"),
    ],
)
def test_wrong_address_in_the_configuration_is_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        shared_addresses(BrokerConfig(ledger_store="local").replace(**settings))
