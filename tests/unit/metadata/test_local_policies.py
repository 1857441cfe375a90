"""Local policies of a namespace: the bundles and the migration flag that apply, and how they change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName
from pybroker.model.policies import BundlesData, LocalPolicies, NamespacePolicies, even_bundles

NEW = NamespaceName("public", "new")
POLICIES, LOCAL = metadata_paths.policies(NEW), metadata_paths.local_policies(NEW)
SPLIT = BundlesData(["0x00000000", "0x40000000", "0x80000000", "0xffffffff"], 3)


class Recording(MemoryMetadataStore):
    """A store that records the changed paths, and fails from a certain change on."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[str] = []
        self.fails_after: int | None = None

    def _record(self, path: str) -> None:
        if self.fails_after is not None and len(self.changed) >= self.fails_after:
            raise StoreError("it fails")
        self.changed.append(path)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        self._record(path)
        return await super().put(path, value, expected_version)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        self._record(path)
        return await super().delete(path, expected_version)

    async def delete_tree(self, path: str) -> int:
        self._record(path)
        return await super().delete_tree(path)

    async def document(self, path: str) -> dict[str, Any]:
        found = await self.get(path)
        assert found is not None
        document: dict[str, Any] = json.loads(found.value)
        return document


async def started(store: MemoryMetadataStore) -> Resources:
    resources = Resources(store)
    await resources.load()
    await resources.bootstrap("standalone", ())
    return resources


async def with_namespace(store: MemoryMetadataStore, bundle_count: int = 2) -> Resources:
    resources = await started(store)
    await resources.create_namespace(NEW, NamespacePolicies(bundles=even_bundles(bundle_count)))
    return resources


def in_force(resources: Resources) -> tuple[int, bool]:
    """Return number of bundles and migration flag."""
    found = resources.namespace(NEW)
    assert found is not None
    assert len(found.bundles.boundaries) == found.bundles.numBundles + 1
    return found.bundles.numBundles, found.migrated


def set_group(policies: LocalPolicies) -> None:
    policies.namespaceAntiAffinityGroup = "group"


async def test_a_new_namespace_has_no_local_policies() -> None:
    store = Recording()
    resources = await with_namespace(store)
    assert await store.get(LOCAL) is None
    assert resources.local_policies(NEW) == LocalPolicies()
    assert in_force(resources) == (2, False)


async def test_local_policies_are_written_with_bundles() -> None:
    store = Recording()
    resources = await with_namespace(store, 8)
    await resources.update_local_policies(NEW, set_group)
    found = await store.document(LOCAL)
    assert found == {
        "bundles": json.loads(json.dumps({"boundaries": even_bundles(8).boundaries, "numBundles": 8})),
        "namespaceAntiAffinityGroup": "group",
        "migrated": False,
    }
    assert in_force(await started(store)) == (8, False)


async def test_a_split_changes_local_policies_first_and_then_the_policies() -> None:
    store = Recording()
    resources = await with_namespace(store)
    del store.changed[:]
    await resources.update_bundles(NEW, lambda _: SPLIT)
    assert store.changed == [LOCAL, POLICIES]
    assert (await store.document(POLICIES))["bundles"]["numBundles"] == 3
    assert (await store.document(LOCAL))["bundles"]["numBundles"] == 3
    assert in_force(resources) == in_force(await started(store)) == (3, False)


async def test_a_split_that_ends_between_its_documents_is_valid() -> None:
    store = Recording()
    resources = await with_namespace(store)
    del store.changed[:]
    store.fails_after = 1
    with pytest.raises(StoreError):
        await resources.update_bundles(NEW, lambda _: SPLIT)
    store.fails_after = None
    assert (await store.document(POLICIES))["bundles"]["numBundles"] == 2
    assert in_force(await started(store)) == (3, False)


async def test_bundles_of_local_policies_win_over_those_of_the_policies() -> None:
    store = Recording()
    await with_namespace(store)
    await store.put(
        LOCAL, b'{"bundles":{"boundaries":["0x00000000","0x10000000","0xffffffff"],"numBundles":2},"migrated":true}'
    )
    resources = await started(store)
    found = resources.namespace(NEW)
    assert found is not None
    assert found.bundles.boundaries[1] == "0x10000000"
    await resources.update_namespace(NEW, lambda policies: policies.properties.update(a="b"))
    assert in_force(resources) == (2, True)
    document = await store.document(POLICIES)
    assert document["bundles"]["boundaries"][1] == "0x80000000"
    assert not document["migrated"]


@pytest.mark.parametrize("local", [b"{}", b'{"bundles":null}', b'{"bundles":{"boundaries":[]}}'])
async def test_local_policies_without_bundles_are_one_bundle_as_for_java_brokers(local: bytes) -> None:
    store = Recording()
    await with_namespace(store)
    await store.put(LOCAL, local)
    resources = await started(store)
    assert in_force(resources) == (1, False)
    await resources.update_local_policies(NEW, set_group)
    assert (await store.document(LOCAL))["bundles"] == {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}


async def test_the_migration_flag_is_stored_in_the_local_policies() -> None:
    store = Recording()
    resources = await with_namespace(store)

    def migrate(policies: LocalPolicies) -> None:
        policies.migrated = True

    await resources.update_local_policies(NEW, migrate)
    assert not (await store.document(POLICIES))["migrated"]
    assert in_force(resources) == in_force(await started(store)) == (2, True)


async def test_local_policies_of_a_missing_namespace_are_refused() -> None:
    resources = await started(MemoryMetadataStore())
    for change in (resources.update_local_policies(NEW, set_group), resources.update_bundles(NEW, lambda _: SPLIT)):
        with pytest.raises(AdminError) as refused:
            await change
        assert refused.value.status == 404


async def test_a_deletion_that_ends_at_any_step_leaves_nothing_to_a_later_namespace() -> None:
    for steps in range(4):
        store = Recording()
        resources = await with_namespace(store)
        await resources.update_local_policies(NEW, set_group)
        await store.put(metadata_paths.resource_quota(NEW, "0x00000000_0x80000000"), b"{}")
        del store.changed[:]
        store.fails_after = steps
        if steps < 3:
            with pytest.raises(StoreError):
                await resources.delete_namespace(NEW)
        else:
            await resources.delete_namespace(NEW)
        store.fails_after = None
        again = await started(store)
        if again.namespace(NEW) is not None:
            assert steps < 3
            await again.delete_namespace(NEW)
        await again.create_namespace(NEW, NamespacePolicies())
        assert in_force(again) == (4, False)
        assert again.local_policies(NEW) == LocalPolicies()
        assert await store.children(metadata_paths.resource_quotas(NEW)) == []


async def test_a_new_namespace_takes_local_policies_that_another_broker_left() -> None:
    class Shared(Recording):
        is_shared = True

    store = Shared()
    resources = await started(store)
    await store.put(LOCAL, b'{"bundles":{"boundaries":["0x00000000","0x10000000","0xffffffff"],"numBundles":2}}')
    await resources.create_namespace(NEW, NamespacePolicies(bundles=even_bundles(4)))
    assert in_force(resources) == in_force(await started(store)) == (2, False)
