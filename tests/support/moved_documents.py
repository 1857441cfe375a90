"""Documents of every kind that `pybroker metadata export` moves, and values that it leaves where they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.model.policies import NamespacePolicies, encode, even_bundles
from pybroker.tools.moving_metadata.export_file import Summary
from pybroker.tools.moving_metadata.exporting import export_documents, stored_documents

CLUSTER = "c1"
BUNDLES = {"boundaries": even_bundles(4).boundaries, "numBundles": 4}
MOVED: dict[str, bytes] = {
    "/admin/clusters/c1": b'{"serviceUrl":"http://old:8080"}',
    "/admin/clusters/c2": b"{}",
    "/admin/clusters/c1/failureDomain/d": b'{"brokers":["b:1"]}',
    "/admin/clusters/c1/namespaceIsolationPolicies": b"{}",
    "/admin/resourcegroups/fast lane": b'{"publishRateInMsgs":5}',
    "/admin/local-policies/t/n": json.dumps({"bundles": BUNDLES}).encode(),  # with spaces: not as pybroker writes it
    "/admin/policies/t": b'{"adminRoles":[],"allowedClusters":["c1"]}',
    "/admin/policies/t/n": encode(NamespacePolicies(bundles=even_bundles(4), replication_clusters=["c1"])),
    "/loadbalance/resource-quota/default": b"{}",
    "/loadbalance/resource-quota/t/n/0x00000000_0x40000000": b'{"msgRateIn":1.5}',
    "/admin/partitioned-topics/t/n/persistent/a%2Fb": b'{"partitions":3}',
    "/pybroker/topic-policies/t/n/persistent/x": b'{"maxMessageSize":7,"text":"\xc3\xa4 \\u0000 \xf0\x9f\x92\xa1"}',
    "/pybroker/schemas/t/n/x/00000000000000000000": b'{"version":1}',
    "/pybroker/schemas/t/n/x/00000000000000000001": b"\xff\xfe not UTF-8",
    "/admin/configuration": b'{"brokerDeleteInactiveTopicsEnabled":"false"}',
}
LEFT: dict[str, bytes] = {
    "/managed-ledgers/t/n/persistent/x": b"1",
    "/managed-ledgers/t/n/persistent/x/cursors/s": b"2",
    "/local-store/journal-end": b"3",
    "/pybroker/layout": b'{"version":1}',
    "/pybroker/brokers/h:8080": b"{}",
    "/loadbalance/brokers/h:8080": b"{}",
    "/namespace/t/n/0x00000000_0xffffffff": b"{}",
    "/counters/producer-name": b"",
    "/ledgers/LAYOUT": b"5",
    "/schemas/t/n/x": b"\x08\x01",
}


async def put_all(store: MetadataStore, documents: dict[str, bytes]) -> None:
    for path, value in documents.items():
        await store.put(path, value)


async def content(store: MetadataStore) -> dict[str, bytes]:
    """Return the values of a store that can be moved."""
    return {path: found.value async for path, found in stored_documents(store)}


async def export(store: MetadataStore, target: Path) -> Summary:
    return await export_documents(store, CLUSTER, target, lambda _: None)


def export_of(documents: dict[str, bytes], target: Path) -> Path:
    """Write an export file with `documents`."""

    async def write() -> None:
        store = MemoryMetadataStore()
        await put_all(store, documents)
        await export(store, target)

    asyncio.run(write())
    return target
