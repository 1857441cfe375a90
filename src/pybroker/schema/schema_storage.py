"""The interface of the storage of schema versions, and the storage in the metadata store.

All schemas of a topic are below, or at, one path of the metadata store, so a watch reports changes by other brokers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore
from pybroker.model.names import NamespaceName, TopicName
from pybroker.schema.schema_data import SchemaData, SchemaType


class SchemaRecord(NamedTuple):
    """The stored form of one version: a schema, or, if `schema` is None, the deletion of all earlier versions."""

    schema: SchemaData | None
    timestamp_ms: int


class StoredVersions(NamedTuple):
    """The versions of a topic since the last deletion, oldest first, and the next version number."""

    records: Sequence[tuple[int, SchemaRecord]]
    next_version: int


class SchemaPosition(NamedTuple):
    """The ledger entry that contains one version of a topic's schema. The version may be a deletion."""

    version: int
    ledger_id: int
    entry_id: int


class SchemaStorage(ABC):
    """Stores schema versions by the path of their topic. A version is written once. Raises StoreError."""

    root: str
    """Parent path of all documents."""

    @abstractmethod
    def topic_path(self, topic: TopicName) -> str:
        """Return the path of the topic's schemas, which its partitions share."""

    def namespace_path(self, namespace: NamespaceName) -> str:
        """Return the parent path of the schemas of all topics in a namespace."""
        return f"{self.root}/{namespace}"

    @abstractmethod
    def document_path(self, path: str, version: int) -> str:
        """Return the path of the metadata document that `append` writes or changes to store the version `version`.
        `path`: the path of the topic's schemas.
        """

    @abstractmethod
    def topic_path_of_change(self, path: str) -> str:
        """Return the `topic_path` of the topic whose schemas are in the changed metadata document at `path`. If the
        document contains no schemas of a topic, return a path below which no schemas are stored.
        """

    @abstractmethod
    async def read(self, path: str) -> StoredVersions: ...

    async def positions(self, _path: str) -> list[SchemaPosition]:
        """Return the ledger entries that contain the versions at `path`, oldest first; an empty list if this storage
        does not use ledgers. Raises StoreError.
        """
        return []

    @abstractmethod
    async def append(self, path: str, version: int, record: SchemaRecord) -> bool:
        """Store `record` durably as the next version, `version`, of a topic's schema. Return False if another broker
        has already stored this version.
        """

    @abstractmethod
    async def drop(self, path: str) -> bool:
        """Remove all schema versions of a topic or, if `path` is the path of a namespace, of all its topics. Return
        False if there were none.
        """


class _Document(msgspec.Struct, omit_defaults=True):
    """The stored form of a version. With `deleted`, it deletes all earlier versions."""

    type: str = SchemaType.NONE.name
    timestamp_ms: int = 0
    data: bytes = b""
    properties: dict[str, str] = {}
    deleted: bool = False


class MetadataSchemaStorage(SchemaStorage):
    """Each version is one immutable value below the topic's path; its name is the version number."""

    root = metadata_paths.SCHEMAS

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def topic_path(self, topic: TopicName) -> str:
        return metadata_paths.schema(topic)

    def document_path(self, path: str, version: int) -> str:
        return metadata_paths.schema_version(path, version)

    def topic_path_of_change(self, path: str) -> str:
        return path.rpartition("/")[0]

    async def read(self, path: str) -> StoredVersions:
        names = await self._store.children(path)
        records: list[tuple[int, SchemaRecord]] = []
        for name in reversed(names):
            value = await self._store.get(f"{path}/{name}")
            if value is None or (document := _decoded(path, name, value.value)).deleted:
                break
            schema = SchemaData(SchemaType[document.type], document.data, document.properties)
            records.append((int(name), SchemaRecord(schema, document.timestamp_ms)))
        return StoredVersions(records[::-1], int(names[-1]) + 1 if names else 0)

    async def append(self, path: str, version: int, record: SchemaRecord) -> bool:
        schema = record.schema
        if schema is None:
            document = _Document(timestamp_ms=record.timestamp_ms, deleted=True)
        else:
            document = _Document(schema.type.name, record.timestamp_ms, schema.data, schema.properties)
        try:
            await self._store.put(self.document_path(path, version), msgspec.json.encode(document), NOT_EXISTING)
        except BadVersionError:
            return False
        return True

    async def drop(self, path: str) -> bool:
        return await self._store.delete_tree(path) > 0


def _decoded(path: str, name: str, value: bytes) -> _Document:
    try:
        return msgspec.json.decode(value, type=_Document)
    except msgspec.DecodeError as error:
        raise StoreError(f"the schema at {path}/{name} cannot be read: {error}") from error
