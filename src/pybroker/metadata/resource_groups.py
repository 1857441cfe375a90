"""Resource groups: publish and dispatch rates that the topics of all namespaces of a group share, in a write-through
cache of the metadata store.

Invariants: a change is durable when its method returns, and only then visible to reads. Refusals are AdminErrors with
the codes of Pulsar's REST API. The policies of a namespace contain the name of its group.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter

import msgspec

from pybroker.errors import AdminError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore, values_at
from pybroker.metadata.stored_document import decoded_or_logged, rewrite


class ResourceGroup(msgspec.Struct):
    """Rates per second of a resource group; 0 or less is no limit."""

    publishRateInMsgs: int = -1
    publishRateInBytes: int = -1
    dispatchRateInMsgs: int = -1
    dispatchRateInBytes: int = -1


class ResourceGroupChange(msgspec.Struct):
    """The values in a request that creates or changes a group. A value of None is left unchanged."""

    publishRateInMsgs: int | None = None
    publishRateInBytes: int | None = None
    dispatchRateInMsgs: int | None = None
    dispatchRateInBytes: int | None = None

    def applied_to(self, group: ResourceGroup) -> ResourceGroup:
        return ResourceGroup(
            *(
                old if new is None else new
                for old, new in zip(msgspec.structs.astuple(group), msgspec.structs.astuple(self), strict=True)
            )
        )


class ResourceGroupListener(ABC):
    """Called for changed groups, after the change is durable and visible. Must not raise, because further listeners are
    called afterwards.
    """

    @abstractmethod
    def resource_group_changed(self, name: str) -> None:
        """Called after the group was created, changed, or deleted."""


class ResourceGroups:
    """The resource groups of one metadata store. Call `load` first."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._groups: dict[str, ResourceGroup] = {}
        self._writing = asyncio.Lock()  # one at a time, or two changes of a group could undo each other
        self._listeners: list[ResourceGroupListener] = []
        self.updates: Counter[str] = Counter()
        """Number of changes of an existing group."""

    def listen(self, listener: ResourceGroupListener) -> None:
        self._listeners.append(listener)

    async def load(self) -> None:
        async with self._writing:
            self._groups = await self._read_all()

    async def _read_all(self) -> dict[str, ResourceGroup]:
        groups: dict[str, ResourceGroup] = {}
        async for (segment,), found in values_at(self._store, metadata_paths.RESOURCE_GROUPS, 1):
            name = metadata_paths.name_of_segment(segment)
            path = metadata_paths.resource_group(name)
            group = decoded_or_logged(self._store, path, found.value, ResourceGroup) or self._groups.get(name)
            if group is not None:
                groups[name] = group
        return groups

    async def read_again(self) -> None:
        """Read all groups again, because other brokers may have changed them. Raises StoreError."""
        async with self._writing:
            before, self._groups = self._groups, await self._read_all()
        for name in sorted(before.keys() | self._groups.keys()):
            if before.get(name) != self._groups.get(name):
                self._changed(name)

    async def refresh(self, path: str) -> None:
        """Read the group whose document is at `path` again, because another broker may have changed it. Raises
        StoreError.
        """
        name = metadata_paths.name_of_segment(path.removeprefix(f"{metadata_paths.RESOURCE_GROUPS}/"))
        async with self._writing:
            before, found = self._groups.get(name), await self._store.get(path)
            after = (
                None if found is None else decoded_or_logged(self._store, path, found.value, ResourceGroup) or before
            )
            if after is None:
                self._groups.pop(name, None)
            else:
                self._groups[name] = after
        if after != before:
            self._changed(name)

    def names(self) -> list[str]:
        return sorted(self._groups)

    def get(self, name: str) -> ResourceGroup | None:
        return self._groups.get(name)

    async def put(self, name: str, change: ResourceGroupChange) -> None:
        """Create the resource group, or apply `change` to the existing one. Raises AdminError: 412 for an empty name,
        409 after repeated concurrent changes.
        """
        if not name.strip():
            raise AdminError(412, "the resource group needs a name")
        async with self._writing:
            path, subject = metadata_paths.resource_group(name), f"Resource group {name}"
            group = await rewrite(self._store, path, ResourceGroup, change.applied_to, subject, ResourceGroup)
            assert group is not None, "created if missing"
            if name in self._groups:
                self.updates[name] += 1
            self._groups[name] = group
        self._changed(name)

    async def delete(self, name: str) -> None:
        """Delete the resource group. The caller ensures that no namespace uses it. Raises AdminError 404 if it does not exist."""
        async with self._writing:
            if name not in self._groups:
                raise AdminError(404, "ResourceGroup does not exist")
            await self._store.delete(metadata_paths.resource_group(name))
            del self._groups[name]
        self._changed(name)

    def _changed(self, name: str) -> None:
        for listener in self._listeners:
            listener.resource_group_changed(name)
