"""The ledgers that metadata documents list: managed ledger infos and cursors in Pulsar's and in pybroker's format.

Documents of schemas and records also list ledgers. Those ledgers have no mark of a cluster and are never deleted as
orphaned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeAlias

from pybroker.bookkeeper_store.documents.document_compression import plain
from pybroker.bookkeeper_store.documents.managed_ledger_documents import decode_extras
from pybroker.bookkeeper_store.pulsar_records import EXTRAS_ROOT
from pybroker.errors import ProtocolViolation, StoreError
from pybroker.managed_ledger.orphaned_ledgers import ledger_ids_in
from pybroker.metadata.metadata_paths import MANAGED_LEDGERS
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.wire import varint

_TOPIC_SEGMENTS = 4  # tenant, namespace, domain, topic
_TOPICS_AT_ONCE = 50
_LEDGER_INFO_TAG = 1 << 3 | 2
_ID_TAG = 1 << 3
TakeNames: TypeAlias = "Callable[[Collection[int]], None]"


class NamedLedgers:
    """Reads the documents of one metadata store, a few topics at a time."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def read(self, take: TakeNames) -> None:
        """Call `take` with the ledger ids of each document. Raises StoreError if a document cannot be read."""
        await self._metadata.sync()
        async for paths in self._paths_at(EXTRAS_ROOT + MANAGED_LEDGERS, _TOPIC_SEGMENTS):
            await self._read_extras(paths, take)
        async for paths in self._paths_at(MANAGED_LEDGERS, _TOPIC_SEGMENTS):
            await self._read_managed_ledgers(paths, take)

    async def _paths_at(self, path: str, depth: int) -> AsyncIterator[list[str]]:
        """Yield some of the paths that are `depth` segments below `path` at a time."""
        paths = [f"{path}/{name}" for name in await self._metadata.children(path)]
        if depth > 1:
            for each in paths:
                async for found in self._paths_at(each, depth - 1):
                    yield found
            return
        for start in range(0, len(paths), _TOPICS_AT_ONCE):
            yield paths[start : start + _TOPICS_AT_ONCE]

    async def _read_managed_ledgers(self, paths: list[str], take: TakeNames) -> None:
        await self._read_documents(paths, take, is_cursor=False)
        cursors = [f"{path}/{name}" for path in paths for name in await self._metadata.children(path)]
        for start in range(0, len(cursors), _TOPICS_AT_ONCE):
            await self._read_documents(cursors[start : start + _TOPICS_AT_ONCE], take, is_cursor=True)

    async def _read_documents(self, paths: list[str], take: TakeNames, *, is_cursor: bool) -> None:
        for path, found in zip(paths, await self._metadata.values_of(paths), strict=True):
            if found is not None:
                take(ledgers_in(path, found.value, is_cursor=is_cursor))

    async def _read_extras(self, paths: list[str], take: TakeNames) -> None:
        for path, found in zip(paths, await self._metadata.values_of(paths), strict=True):
            extras = None if found is None else decode_extras(path, found.value)
            if extras is not None:
                take(extras.trimmed)


def ledgers_in(path: str, value: bytes, *, is_cursor: bool) -> list[int]:
    """Return the ids of the ledgers that the document at `path` lists. `is_cursor`: the document is of a cursor. Raises
    StoreError.
    """
    if value[:1] == b"{":
        return ledger_ids_in(path, value)
    value = plain(path, value)
    try:
        if not is_cursor:
            return _ids_of_ledgers(value)
        ledger_id = _id(value, 0, len(value))
    except ProtocolViolation as error:
        raise StoreError(f"the document at {path} cannot be read: {error}") from error
    return [ledger_id] if ledger_id >= 0 else []


def _ids_of_ledgers(value: bytes) -> list[int]:
    found: list[int] = []
    at, end = 0, len(value)
    while at < end:
        tag, at = varint.decode(value, at, end)
        if tag == _LEDGER_INFO_TAG:
            size, at = varint.decode(value, at, end)
            if size > end - at:
                raise ProtocolViolation("the document is damaged: a field extends beyond the end of the document")
            found.append(_id(value, at, at + size))
            at += size
        else:
            at = varint.skip_field(value, tag, at, end)
    return found


def _id(value: bytes, at: int, end: int) -> int:
    """Return the number in field 1: the id of a ledger, or the cursor ledger of a cursor (-1 for none)."""
    found: list[int] = []
    while at < end:
        tag, at = varint.decode(value, at, end)
        if tag == _ID_TAG:
            number, at = varint.decode(value, at, end)
            found.append(number if number < 1 << 63 else number - (1 << 64))
        else:
            at = varint.skip_field(value, tag, at, end)
    if len(found) != 1:
        raise ProtocolViolation(
            f"the document is damaged: a ledger or a cursor in it has {len(found)} ids instead of one id"
        )
    return found[0]
