"""Resource groups: storage, merges, notifications, and reload."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.resource_groups import ResourceGroup, ResourceGroupChange, ResourceGroupListener, ResourceGroups


class Told(ResourceGroupListener):
    def __init__(self) -> None:
        self.names: list[str] = []

    def resource_group_changed(self, name: str) -> None:
        self.names.append(name)


def test_a_change_leaves_what_it_does_not_name_as_it_is() -> None:
    async def run() -> None:
        groups = ResourceGroups(MemoryMetadataStore())
        await groups.put("g", ResourceGroupChange())
        assert groups.get("g") == ResourceGroup(-1, -1, -1, -1)
        await groups.put("g", ResourceGroupChange(publishRateInMsgs=10))
        await groups.put("g", ResourceGroupChange(dispatchRateInBytes=20))
        assert groups.get("g") == ResourceGroup(10, -1, -1, 20)

    asyncio.run(run())


@pytest.mark.parametrize("name", ["g", "a b", "a/b", "ä%2F"])
def test_groups_are_found_again_by_any_name(name: str) -> None:
    async def run() -> None:
        store = MemoryMetadataStore()
        await ResourceGroups(store).put(name, ResourceGroupChange(1, 2, 3, 4))
        groups = ResourceGroups(store)
        await groups.load()
        assert groups.names() == [name]
        assert groups.get(name) == ResourceGroup(1, 2, 3, 4)
        await groups.delete(name)
        again = ResourceGroups(store)
        await again.load()
        assert again.names() == []

    asyncio.run(run())


def test_what_is_not_there_cannot_be_deleted_and_what_has_no_name_cannot_be_made() -> None:
    async def run() -> None:
        groups = ResourceGroups(MemoryMetadataStore())
        with pytest.raises(AdminError, match="does not exist") as missing:
            await groups.delete("g")
        assert missing.value.status == 404
        with pytest.raises(AdminError) as unnamed:
            await groups.put(" ", ResourceGroupChange())
        assert unnamed.value.status == 412

    asyncio.run(run())


def test_each_listener_is_told_of_every_change() -> None:
    async def run() -> None:
        told, second = Told(), Told()
        groups = ResourceGroups(MemoryMetadataStore())
        groups.listen(told)
        groups.listen(second)
        await groups.put("g", ResourceGroupChange())
        await groups.put("g", ResourceGroupChange(publishRateInMsgs=10))
        await groups.delete("g")
        assert told.names == second.names == ["g", "g", "g"]

    asyncio.run(run())


def test_a_group_that_cannot_be_read_says_which_it_is() -> None:
    async def run() -> None:
        store = MemoryMetadataStore()
        await store.put(metadata_paths.resource_group("g"), b"nonsense")
        with pytest.raises(StoreError, match="g cannot be read"):
            await ResourceGroups(store).load()

    asyncio.run(run())
