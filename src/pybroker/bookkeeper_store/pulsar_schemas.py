"""Schemas in Pulsar's layout: a locator at /schemas/TENANT/NAMESPACE/TOPIC, and a ledger with one entry for each version.

The ledger of a version is written first, and then the locator that lists it. So a locator lists only complete ledgers.

Failure: if it is unknown whether the locator was stored, the ledger is kept, because the locator may list it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError
from pybroker.bookkeeper.errors import NoSuchLedger
from pybroker.bookkeeper_store.documents.ledger_custom import schema_metadata
from pybroker.bookkeeper_store.documents.schema_storage_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator
from pybroker.bookkeeper_store.state_ledger import StateLedger, delete_ledger
from pybroker.bookkeeper_store.store_errors import read_error
from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata.metadata_paths import java_encoded
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore
from pybroker.model.names import TopicName
from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.schema.schema_storage import SchemaPosition, SchemaRecord, SchemaStorage, StoredVersions

ROOT = "/schemas"
_PAGE_VALUES = 100
_DROP_ATTEMPTS = 5
_NO_POSITION = -1
"""The values for ledger id and entry id that a version's own entry contains, because they are unknown when it is
written.
"""
M = TypeVar("M", bound=Message)


class PulsarSchemaStorage(SchemaStorage):
    """Schemas that Java brokers of the cluster read and write too."""

    root = ROOT

    def __init__(self, client: BookKeeperClient, metadata: MetadataStore) -> None:
        self._client = client
        self._metadata = metadata

    def topic_path(self, topic: TopicName) -> str:
        name = java_encoded(topic.partitioned_name.local_name)
        return f"{ROOT}/{topic.namespace}/{name}"

    def document_path(self, path: str, version: int) -> str:
        return path

    def topic_path_of_change(self, path: str) -> str:
        return path

    async def read(self, path: str) -> StoredVersions:
        found = await self._metadata.get(path)
        if found is None:
            return StoredVersions([], 0)
        locator = _decoded(SchemaLocator, found.value, path)
        records: list[tuple[int, SchemaRecord]] = []
        for entry in reversed(_versions(locator)):
            record = await self._read_version(path, entry)
            if record.schema is None:
                break
            records.append((entry.version, record))
        return StoredVersions(records[::-1], locator.info.version + 1)

    async def positions(self, path: str) -> list[SchemaPosition]:
        found = await self._metadata.get(path)
        if found is None:
            return []
        versions = _versions(_decoded(SchemaLocator, found.value, path))
        return [SchemaPosition(each.version, each.position.ledgerId, each.position.entryId) for each in versions]

    async def _read_version(self, path: str, entry: IndexEntry) -> SchemaRecord:
        position = entry.position
        try:
            reader = await self._client.open_ledger(position.ledgerId)
            payload = (await reader.read_entry(position.entryId)).payload
        except NoSuchLedger as error:
            raise StoreError(
                f"version {entry.version} of the schema at {path} is lost, because its entry cannot be read: {error}"
            ) from error
        except BookKeeperError as error:
            raise read_error(error, position.ledgerId, position.entryId) from error
        where = f"{path}, version {entry.version}"
        return _record(_decoded(SchemaInfo, _decoded(SchemaEntry, payload, where).schema_data, where), where)

    async def append(self, path: str, version: int, record: SchemaRecord) -> bool:
        found = await self._metadata.get(path)
        locator = SchemaLocator() if found is None else _decoded(SchemaLocator, found.value, path)
        present = _versions(locator) if found is not None else []
        if version != (locator.info.version + 1 if found is not None else 0):
            return False
        schema = record.schema
        added = IndexEntry(version=version, hash=b"" if schema is None else hashlib.sha256(schema.data).digest())
        added.position.ledgerId = added.position.entryId = _NO_POSITION
        entry = SchemaEntry(schema_data=_info(path, record).SerializeToString(), index=present or [added])
        ledger_id = await self._write_entry(path, entry.SerializeToString())
        added.position.ledgerId, added.position.entryId = ledger_id, 0
        value = SchemaLocator(info=added, index=[*present, added]).SerializeToString()
        try:
            await self._metadata.put(path, value, NOT_EXISTING if found is None else found.version)
        except BadVersionError:
            await delete_ledger(self._client, ledger_id)
            return False
        return True

    async def _write_entry(self, path: str, payload: bytes) -> int:
        """Write a ledger with this entry, close it, and return its id. Raises StoreError."""
        ledger = await StateLedger.create(self._client, schema_metadata(path.removeprefix(f"{ROOT}/")))
        try:
            await ledger.add(payload)
            await ledger.seal()
        except StoreError:
            await delete_ledger(self._client, ledger.ledger_id)
            raise
        return ledger.ledger_id

    async def drop(self, path: str) -> bool:
        is_dropped = await self._drop_topic(path)
        while page := await self._metadata.values_below(path, "", _PAGE_VALUES):
            for topic_path, _ in page:
                await self._drop_topic(topic_path)
            is_dropped = True
        return is_dropped

    async def _drop_topic(self, path: str) -> bool:
        """Delete the locator of a topic's schemas, and then the ledgers that only this locator lists.

        Raises StoreError.
        """
        for _ in range(_DROP_ATTEMPTS):
            found = await self._metadata.get(path)
            if found is None:
                return False
            try:
                ledger_ids = {each.position.ledgerId for each in _versions(_decoded(SchemaLocator, found.value, path))}
            except StoreError:
                # The ledgers of an unreadable locator are unknown; it must not prevent the deletion of the topic.
                ledger_ids = set()
            try:
                await self._metadata.delete(path, found.version)
            except BadVersionError:
                continue
            for ledger_id in sorted(ledger_ids):
                await delete_ledger(self._client, ledger_id)
            return True
        raise StoreError(f"the schemas at {path} are being changed by other brokers: try again")


def _versions(locator: SchemaLocator) -> list[IndexEntry]:
    return sorted(locator.index or [locator.info], key=lambda entry: entry.version)


def _info(path: str, record: SchemaRecord) -> SchemaInfo:
    schema = record.schema or SchemaData(SchemaType.NONE)
    return SchemaInfo(
        schema_id=path.removeprefix(f"{ROOT}/"),
        user="",
        type=schema.type + 1,
        schema=schema.data,
        timestamp=record.timestamp_ms,
        deleted=record.schema is None,
        props=_pairs(schema.properties.items()),
    )


def _pairs(properties: Iterable[tuple[str, str]]) -> list[SchemaInfo.KeyValuePair]:
    return [SchemaInfo.KeyValuePair(key=key, value=value) for key, value in properties]


def _record(info: SchemaInfo, where: str) -> SchemaRecord:
    if info.deleted:
        return SchemaRecord(None, info.timestamp)
    try:
        type_ = SchemaType(info.type - 1)
    except ValueError as error:
        raise StoreError(
            f"the schema at {where} has type {info.type}, which this version of pybroker does not know"
        ) from error
    return SchemaRecord(SchemaData(type_, info.schema, {pair.key: pair.value for pair in info.props}), info.timestamp)


def _decoded(kind: type[M], data: bytes, where: str) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise StoreError(f"the schema at {where} cannot be read: {error}") from error
