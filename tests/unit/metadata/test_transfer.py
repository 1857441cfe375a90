"""Export, import and check of shared documents, on stores in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.metadata.transfer.checking import Problem, problems
from pybroker.metadata.transfer.export_file import (
    ExportWriter,
    Header,
    InvalidExport,
    checked_header,
    exported_documents,
)
from pybroker.metadata.transfer.exporting import export_documents, next_start
from pybroker.metadata.transfer.importing import DocumentImport, ImportResult
from pybroker.metadata.transfer.shared_documents import DocumentKind, documents, is_shared_path, kind_of

CLUSTER = "c1"
DOCUMENTS = {
    "/admin/clusters/c1": b"{}",
    "/admin/clusters/c1/failureDomain/rack": b'{"brokers":["b1"]}',
    "/admin/configuration": b'{"maxTopics":"5"}',
    "/admin/local-policies/acme/orders": b'{"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1}}',
    "/admin/partitioned-topics/acme/orders/persistent/t": b'{"partitions":3,"deleted":false}',
    "/admin/policies/acme": b'{"adminRoles":[],"allowedClusters":["c1"]}',
    "/admin/policies/acme/orders": b'{"replication_clusters":["c1"],"unknown":[1]}',
    "/admin/resourcegroups/g": b'{"publishRateInMsgs":1}',
    "/loadbalance/resource-quota/default": b"{}",
    "/pybroker/schemas/acme/orders/t/00000000000000000000": b'{"type":"STRING"}',
    "/pybroker/topic-policies/acme/orders/persistent/t": b"{}",
}
NOT_SHARED = {
    "/managed-ledgers/acme/orders/persistent/t": b"{}",
    "/local-store/journal-end": b"x",
    "/schemas/acme/orders/t": b"\x08\x01",
    "/loadbalance/brokers/b:8080": b"{}",
    "/namespace/acme/orders/0x00000000_0xffffffff": b"{}",
    "/pybroker/brokers/b1": b"{}",
}


async def filled(values: dict[str, bytes], starts: int = 0) -> MemoryMetadataStore:
    store = MemoryMetadataStore()
    for path, value in values.items():
        await store.put(path, value)
    for _ in range(starts):
        await store.put(metadata_paths.PRODUCER_NAMES, b"")
    return store


async def content(store: MemoryMetadataStore) -> dict[str, bytes]:
    return {document.path: document.value async for document in documents(store)}


def no_progress(done: int, total: int = 0) -> None:
    """Documents are few here."""


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def importing(
    store: MemoryMetadataStore, path: Path, *, cluster: str = CLUSTER, replaces: bool = False, is_dry_run: bool = False
) -> DocumentImport:
    return DocumentImport(store, cluster, path, replaces=replaces, is_dry_run=is_dry_run, progress=no_progress)


@pytest.fixture
async def exported(tmp_path: Path) -> Path:
    path = tmp_path / "export"
    assert await export_documents(await filled({**DOCUMENTS, **NOT_SHARED}, 7), CLUSTER, path, no_progress) == 11
    return path


async def test_import_gives_an_empty_store_the_shared_documents_and_nothing_else(exported: Path) -> None:
    store = MemoryMetadataStore()
    assert await importing(store, exported).run() == ImportResult(created=11)
    assert await content(store) == DOCUMENTS
    for path in NOT_SHARED:
        assert await store.get(path) is None
    assert await importing(store, exported).run() == ImportResult(equal=11)
    assert mode_of(exported) == 0o600


async def test_exports_of_equal_stores_are_equal(exported: Path, tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    await importing(store, exported).run()
    await export_documents(store, CLUSTER, tmp_path / "again", no_progress)
    assert bytes_of(tmp_path / "again") == bytes_of(exported)


async def test_names_of_producers_begin_behind_those_of_the_exported_store(exported: Path) -> None:
    store = await filled({}, 2)
    await importing(store, exported).run()
    assert await next_start(store) == 7
    more = await filled({}, 20)
    await importing(more, exported).run()
    assert await next_start(more) == 20


async def test_documents_with_other_content_stay_unless_they_are_replaced(exported: Path) -> None:
    other = {"/admin/policies/acme/orders": b'{"replication_clusters":["c1"],"deduplicationEnabled":true}'}
    store = await filled({**other, "/admin/clusters/c1": b'{"serviceUrl":"http://new"}', "/admin/policies/mine": b"{}"})
    result = await importing(store, exported).run()
    assert result.different == ["/admin/policies/acme/orders"]
    assert (result.created, result.kept) == (9, 1)
    assert (await content(store))["/admin/policies/acme/orders"] == other["/admin/policies/acme/orders"]
    result = await importing(store, exported, replaces=True).run()
    assert (result.replaced, result.equal, result.kept, result.different) == (1, 9, 1, [])
    after = await content(store)
    assert after["/admin/policies/acme/orders"] == DOCUMENTS["/admin/policies/acme/orders"]
    assert after["/admin/clusters/c1"] == b'{"serviceUrl":"http://new"}', "the addresses are those of the new cluster"
    assert after["/admin/policies/mine"] == b"{}", "nothing is deleted"


async def test_dry_run_changes_nothing(exported: Path) -> None:
    store = await filled({"/admin/configuration": b"{}"})
    result = await importing(store, exported, replaces=True, is_dry_run=True).run()
    assert (result.created, result.replaced) == (10, 1)
    assert await content(store) == {"/admin/configuration": b"{}"}
    assert await next_start(store) == 0


class StoppingStore(MemoryMetadataStore):
    """Fails at a write."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes = writes

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        self.writes -= 1
        if self.writes == 0:
            raise StoreError("the store is gone")
        return await super().put(path, value, expected_version)


async def test_import_that_stopped_anywhere_is_completed_by_another_one(exported: Path) -> None:
    for writes in range(1, 19):  # eleven documents and seven starts
        store = StoppingStore(writes)
        with pytest.raises(StoreError, match="repeat the import"):
            await importing(store, exported).run()
        namespaces = [path for path in await content(store) if kind_of(path) is DocumentKind.NAMESPACE]
        assert not namespaces or await store.get("/admin/local-policies/acme/orders"), (
            "bundles come before the namespace"
        )
        await importing(store, exported).run()
        assert await content(store) == DOCUMENTS
        assert await next_start(store) == 7


async def test_document_that_another_broker_changes_meanwhile_is_compared_again(exported: Path) -> None:
    class BusyStore(MemoryMetadataStore):
        """Another broker writes in front of the first write."""

        is_busy = True

        async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
            if self.is_busy:
                self.is_busy = False
                await super().put(path, b'{"by":"another"}')
            return await super().put(path, value, expected_version)

    store = BusyStore()
    result = await importing(store, exported).run()
    assert (result.created, result.kept, len(result.different)) == (10, 1, 0)
    busy = BusyStore()
    await importing(busy, exported, replaces=True).run()
    assert (await content(busy))["/admin/policies/acme"] == DOCUMENTS["/admin/policies/acme"]


# --- the file --------------------------------------------------------------------------------------------------------


async def test_any_damage_of_the_file_is_refused_before_anything_is_written(exported: Path) -> None:
    whole = bytes_of(exported)
    damaged = [whole[:at] for at in range(0, len(whole), 7)] + [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 5)
    ]
    lines = whole.splitlines(keepends=True)
    damaged += [b"".join(lines[:3] + lines[4:]), b"".join(lines + lines[1:2]), b"".join(lines[:-1])]
    store = MemoryMetadataStore()
    for each in damaged:
        rewrite(exported, each)
        with pytest.raises(InvalidExport):
            await importing(store, exported).run()
    assert await content(store) == {}


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (Header("c2", 1), "cluster c2"),
        (Header(CLUSTER, 99), "documents of version 99"),
        (Header(CLUSTER, 1, version=2), "format version 2"),
        (Header(CLUSTER, 1, next_start=10**9), "starts of brokers"),
        (Header(CLUSTER, 1, format="other"), "not a file that"),
    ],
)
async def test_file_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path, header: Header, text: str) -> None:
    with ExportWriter(tmp_path / "x", header) as writer:
        writer.add("/admin/configuration", b"{}")
    store = MemoryMetadataStore()
    with pytest.raises(InvalidExport, match=text):
        await importing(store, tmp_path / "x").run()
    assert await content(store) == {}


@pytest.mark.parametrize(
    "path",
    ["/managed-ledgers/a", "/admin/policies/", "/admin//policies", "/pybroker/brokers/x", "admin/policies/a", ""],
)
async def test_path_that_is_not_shared_is_refused(tmp_path: Path, path: str) -> None:
    with ExportWriter(tmp_path / "x", Header(CLUSTER, 1)) as writer:
        writer.add("/admin/configuration", b"{}")
        writer.add(path, b"{}")
    store = MemoryMetadataStore()
    with pytest.raises(InvalidExport, match="not the path"):
        await importing(store, tmp_path / "x").run()
    assert await content(store) == {}


async def test_failed_export_leaves_no_file(tmp_path: Path) -> None:
    class GoneStore(MemoryMetadataStore):
        async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, object]]:  # type: ignore[override]
            raise StoreError("gone")

    with pytest.raises(StoreError):
        await export_documents(GoneStore(), CLUSTER, tmp_path / "x", no_progress)
    assert files_in(tmp_path) == []


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(
        st.tuples(
            st.sampled_from(["/admin/policies/a", "/admin/clusters/ü\n", "/pybroker/schemas/x"]),
            st.binary(max_size=200),
        ),
        max_size=5,
    )
)
def test_values_of_any_bytes_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("export") / "x"
    with ExportWriter(path, Header("c", 1)) as writer:
        for name, value in values:
            writer.add(name, value)
    assert checked_header(path) == (Header("c", 1), len(values))
    assert list(exported_documents(path)) == values


# --- check -----------------------------------------------------------------------------------------------------------


async def found(values: dict[str, bytes], cluster: str = CLUSTER) -> list[Problem]:
    return [each async for each in problems(await filled(values), cluster, no_progress)]


async def test_usable_documents_have_no_problems() -> None:
    assert await found(DOCUMENTS) == []


@pytest.mark.parametrize(
    ("path", "value", "text", "is_error"),
    [
        ("/admin/policies/acme/orders", b"{", "cannot be read", True),
        ("/admin/policies/acme", b'{"adminRoles":7}', "cannot be read", True),
        ("/admin/clusters/c1/namespaceIsolationPolicies", b"[]", "cannot be read", True),
        ("/admin/partitioned-topics/acme/orders/persistent/t", b'{"partitions":0}', "0 partitions", True),
        ("/managed-ledgers/acme/orders/persistent/counted", b"1", "partitioned topic of the same name", True),
        ("/managed-ledgers/acme/orders/persistent/counted-partition-2", b"1", "has 2 partitions", True),
        ("/admin/policies/other/ns", b"{}", "tenant other, which does not exist", True),
        ("/admin/policies/acme/orders", b'{"replication_clusters":["c9"]}', "c9", False),
        ("/admin/local-policies/acme/gone", b"{}", "namespace that does not exist", False),
        ("/admin/policies/acme/orders/deeper", b"{}", "not known", False),
        ("/admin/configuration", json.dumps({"k": "x" * 600_000}).encode(), "600009 bytes", False),
    ],
)
async def test_document_that_brokers_cannot_use_is_reported(path: str, value: bytes, text: str, is_error: bool) -> None:
    counted = {"/admin/partitioned-topics/acme/orders/persistent/counted": b'{"partitions":2}'}
    sound = {f"/managed-ledgers/acme/orders/persistent/counted-partition-{index}": b"1" for index in range(2)}
    reported = await found({**DOCUMENTS, **counted, **sound, path: value})
    assert [(each.path, each.is_error) for each in reported] == [(path, is_error)]
    assert text in reported[0].text


async def test_local_policies_without_bundles_are_an_error_where_the_namespace_has_several() -> None:
    boundaries = ["0x00000000", "0x80000000", "0xffffffff"]
    policies = json.dumps({"bundles": {"boundaries": boundaries, "numBundles": 2}}).encode()
    local = {"/admin/local-policies/acme/orders": b'{"namespaceAntiAffinityGroup":"g"}'}
    assert await found({**DOCUMENTS, **local}) == []
    [problem] = await found({**DOCUMENTS, **local, "/admin/policies/acme/orders": policies})
    assert problem.path == "/admin/local-policies/acme/orders"
    assert problem.is_error
    assert "two owners" in problem.text


async def test_missing_cluster_is_an_error() -> None:
    [problem] = await found(DOCUMENTS, "c2")
    assert (problem.path, problem.is_error) == ("/admin/clusters/c2", True)


def test_shared_paths_are_known() -> None:
    assert all(is_shared_path(path) and kind_of(path) is not DocumentKind.UNKNOWN for path in DOCUMENTS)
    assert not any(is_shared_path(path) for path in NOT_SHARED)
    assert not is_shared_path("/admin/policies-of-mine/x")


def test_documents_are_in_memory_a_page_at_a_time(tmp_path: Path) -> None:
    async def run() -> None:
        store = await filled({f"/admin/policies/t{number}": b"{}" for number in range(1234)})
        assert await export_documents(store, CLUSTER, tmp_path / "x", no_progress) == 1234
        copied = MemoryMetadataStore()
        assert (await importing(copied, tmp_path / "x").run()).created == 1234
        assert await content(copied) == await content(store)

    asyncio.run(run())
