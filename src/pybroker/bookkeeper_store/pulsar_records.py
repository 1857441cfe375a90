"""Managed ledger infos in Pulsar's layout of the metadata store.

    /managed-ledgers/T/NS/persistent/TOPIC              Pulsar's document: ledgers, properties
    /managed-ledgers/T/NS/persistent/TOPIC/CURSOR       one document for each cursor
    /pybroker/managed-ledgers/T/NS/persistent/TOPIC     the extras of this broker, and the cursor `pulsar.transactions`

The document of the cursor `__compaction` has the compacted view: its position is the horizon, and a number of the
position is the ledger.

Operation: a record remembers value and version of each node. A store writes the nodes that differ, in one transaction
if they are few, and each transaction checks the version of Pulsar's document: only the owner of the managed ledger can
change any of them.

Failure: a transaction without a response may still be stored. The next store reads these nodes again; a value that this
object has not tried to write comes from another owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError
from pybroker.bookkeeper_store.documents.cursor_documents import (
    STATE_IN_DOCUMENT,
    decode_cursor_info,
    decode_position_info,
    state_of_entry,
)
from pybroker.bookkeeper_store.documents.cursor_node import COMPACTION_CURSOR, CursorNode, CursorNodes
from pybroker.bookkeeper_store.documents.managed_ledger_documents import (
    decode_extras,
    decode_pulsar_info,
    extras_document,
    ledger_info,
    pulsar_document,
)
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedLedgerInfo as PulsarInfo
from pybroker.bookkeeper_store.documents.stored_views import stored_cursor, stored_managed_ledger
from pybroker.bookkeeper_store.state_ledger import delete_ledger, read_last
from pybroker.bookkeeper_store.store_errors import store_error
from pybroker.errors import BadVersionError, DamagedEntries, NoSuchLedger, StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.info.info_records import InfoRecord, InfoRecords, LoadedInfo, SaveInfo, fenced
from pybroker.managed_ledger.info.json_records import digest
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo, CursorInfo, ManagedLedgerInfo
from pybroker.managed_ledger.info.stored_documents import StoredCursor, StoredManagedLedger
from pybroker.metadata.metadata_paths import java_decoded, java_encoded
from pybroker.metadata.metadata_store import NOT_EXISTING, Change, Check, Delete, MetadataStore, NodeTimes, Put
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

EXTRAS_ROOT = "/pybroker"
MAX_TRANSACTION_CHANGES = 100
MAX_TRANSACTION_BYTES = 512 * 1024
"""ZooKeeper refuses requests of more than 1 MB."""
MAX_TRIED = 100
"""Maximum number of values per node that may have been stored and are remembered."""
_ATTEMPTS = 3


class PulsarRecords(InfoRecords):
    """Managed ledger infos that Java brokers read and write too. `cursors` receives the cursors of loaded infos."""

    def __init__(self, client: BookKeeperClient, metadata: MetadataStore, cursors: CursorNodes, clock: Clock) -> None:
        self._client = client
        self._metadata = metadata
        self._cursors = cursors
        self._clock = clock

    async def load(self, path: str) -> LoadedInfo:
        record = PulsarRecord(self._client, self._metadata, path, self._cursors, self._clock)
        info, size_bytes = await record.load()
        return LoadedInfo(info, record, size_bytes)

    async def exists(self, path: str) -> bool:
        node = document_path(path)
        found, extras = await self._metadata.values_of([node, EXTRAS_ROOT + path])
        if found is None:
            return False
        decoded = None if extras is None else decode_extras(path, extras.value)
        return not ledger_info(decode_pulsar_info(path, found.value), decoded, {}).deleted

    async def described(self, path: str) -> StoredManagedLedger | None:
        node = document_path(path)
        found = await self._metadata.get(node)
        if found is None:
            return None
        cursors: dict[str, StoredCursor] = {}
        for name in await self._metadata.children(node):
            cursor_path = f"{node}/{name}"
            value = await self._metadata.get(cursor_path)
            if value is not None:
                times = await self._times(cursor_path)
                cursors[name] = stored_cursor(decode_cursor_info(cursor_path, value.value), value.version, times)
        return stored_managed_ledger(
            decode_pulsar_info(path, found.value), found.version, await self._times(node), cursors
        )

    async def _times(self, path: str) -> NodeTimes:
        return await self._metadata.times_of(path) or NodeTimes(0, 0)

    async def create(self, path: str, info: ManagedLedgerInfo) -> None:
        """Create the document of the managed ledger at `path`. The document is empty if `info` has no properties,
        as at Java brokers. Raises BadVersionError if the document exists, and other StoreErrors.
        """
        value = (
            PulsarInfo()
            if not info.properties
            else PulsarInfo.FromString(pulsar_document(PulsarInfo(), info, self._clock.wall_ms()))
        )
        await self._metadata.put(document_path(path), value.SerializeToString(), NOT_EXISTING)


@dataclass(slots=True)
class _Node:
    """Version and digest of a node, as last known; `tried`: digests of values that may have been stored since."""

    version: int = NOT_EXISTING
    stored: bytes = b""
    tried: list[bytes] = field(default_factory=list)

    def is_stored(self, version: int, stored: bytes) -> None:
        self.version, self.stored = version, stored
        self.tried.clear()


class PulsarRecord(InfoRecord):
    """The documents of one managed ledger and its cursors."""

    def __init__(
        self, client: BookKeeperClient, metadata: MetadataStore, path: str, cursors: CursorNodes, clock: Clock
    ) -> None:
        self.path = path
        self._client = client
        self._metadata = metadata
        self._all_cursors = cursors
        self._cursors: dict[str, CursorNode] = {}
        self._clock = clock
        self._document = document_path(path)
        self._extras = EXTRAS_ROOT + path
        self._nodes: dict[str, _Node] = {self._document: _Node(), self._extras: _Node()}
        self._pulsar = PulsarInfo()
        self._is_claimed = False
        self._save: SaveInfo | None = None
        self._moved_from: list[int] = []
        """Cursor ledgers whose states are in documents as soon as this record is stored."""

    @property
    def version(self) -> int:
        return self._nodes[self._document].version

    def save_with(self, save: SaveInfo) -> None:
        self._save = save

    async def save(self) -> None:
        assert self._save is not None, "a managed ledger owns the record"
        await self._save()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def load(self) -> tuple[ManagedLedgerInfo | None, int]:
        """Return the managed ledger info (None if there is none), and the size of its documents in bytes. Raises
        StoreError.
        """
        await self._metadata.sync()  # another owner's last change must not be missed
        paths = [self._document, self._extras]
        try:
            async with asyncio.TaskGroup() as group:
                listing = group.create_task(self._metadata.children(self._document))
                reading = group.create_task(self._metadata.values_of(paths))
        except* StoreError as failures:
            raise failures.exceptions[0] from failures
        names, values = listing.result(), reading.result()
        if names:
            cursor_paths = [f"{self._document}/{name}" for name in names]
            paths, values = paths + cursor_paths, values + await self._metadata.values_of(cursor_paths)
        for path, found in zip(paths, values, strict=True):
            if found is not None:
                self._nodes[path] = _Node(found.version, digest(found.value))
        found, extras_found = values[:2]
        if found is None:
            return None, 0
        self._pulsar = decode_pulsar_info(self.path, found.value)
        extras = None if extras_found is None else decode_extras(self.path, extras_found.value)
        first_id = min((row.ledger_id for row in self._pulsar.ledger_info), default=-1)
        last_id = max((row.ledger_id for row in self._pulsar.ledger_info), default=-1)
        records = extras.records if extras is not None and first_id <= extras.last_ledger else {}
        found_cursors = {
            java_decoded(path.rpartition("/")[2]): decode_cursor_info(path, value.value)
            for path, value in zip(paths[2:], values[2:], strict=True)
            if value is not None
        }
        if extras is not None and first_id <= extras.last_ledger:
            found_cursors |= {name: _hidden_cursor(mark) for name, mark in extras.cursors.items()}
        cursors: dict[str, CursorInfo] = {}
        for name, found_cursor in found_cursors.items():
            cursor_id = records.get(name) or f"{self.path}/{quote(name, safe='')}#{last_id}.0"
            node = CursorNode(self.path, name, found_cursor, self)
            if node.keeps_state_in_document and node.ledger_id != STATE_IN_DOCUMENT:
                await self._move_state(node)
            self._cursors[cursor_id] = self._all_cursors[cursor_id] = node
            cursors[name] = node.info(cursor_id, is_delayed=name in records)
        info = ledger_info(self._pulsar, extras, cursors)
        await self._find_view(info)
        if not info.created:
            times = await self._metadata.times_of(self._document)
            info.created = self._clock.wall_ms() if times is None else times.created_ms
        return info, sum(len(value.value) for value in values if value is not None)

    async def _move_state(self, node: CursorNode) -> None:
        """Move the state that a Java broker has left in a cursor ledger into the document. Raises StoreError.

        The ledger is fenced, so that its owner cannot add a state that this broker does not know.
        """
        ledger_id = node.ledger_id
        state = node.state()
        try:
            last = await read_last(self._client, ledger_id)
        except (NoSuchLedger, DamagedEntries) as error:
            logs.error(
                "cursor_ledger.lost",
                managed_ledger=self.path,
                cursor=node.name,
                ledger_id=ledger_id,
                error=str(error),
                action="the cursor continues at the position in its document",
            )
        else:
            if last is not None:
                entry = decode_position_info(node.name, last)
                node.took(entry)
                state = state_of_entry(entry)
        node.put_state(CursorRecord(state))
        self._moved_from.append(ledger_id)

    async def _find_view(self, info: ManagedLedgerInfo) -> None:
        """Add the compacted view to `info`. Raises StoreError."""
        cursor = info.cursors.get(COMPACTION_CURSOR)
        node = None if cursor is None else self._cursors[cursor.id]
        ledger_id = None if node is None else node.compacted_ledger
        if node is None or ledger_id is None:
            return
        try:
            ledger = await self._client.ledger_metadata(ledger_id)
        except BookKeeperError as error:
            failure = store_error(error)
            if not isinstance(failure, NoSuchLedger):
                raise failure from error
            logs.error(
                "compacted_ledger.lost",
                managed_ledger=self.path,
                ledger_id=ledger_id,
                error=str(error),
                action="consumers that read compacted receive all stored messages until the next compaction",
            )
            return
        horizon = CursorRecord(node.state()).mark_delete_position
        info.compacted = CompactedInfo(ledger_id, ledger.last_entry_id + 1, ledger.length_bytes, horizon)
        info.trimmed = [each for each in info.trimmed if each != ledger_id]

    # --- writing -----------------------------------------------------------------------------------------------------

    async def store(self, info: ManagedLedgerInfo) -> None:
        for _ in range(_ATTEMPTS):
            if any(node.tried for node in self._nodes.values()):
                await self._find_out()
            try:
                for changes in self._transactions(self._wanted(info)):
                    await self._perform(changes)
            except BadVersionError:
                await self._metadata.sync()
                await self._find_out()
                continue
            self._is_claimed = True
            self._forget_deleted(info)
            while self._moved_from:
                await delete_ledger(self._client, self._moved_from.pop())
            return
        raise StoreError(
            f"The documents of managed ledger {self.path} could not be stored, because another process changed them "
            "during each attempt. Try again"
        )

    async def put_beside(self, path: str, value: bytes, expected_version: int) -> None:
        """Store another document in a transaction that succeeds only for the owner of this managed ledger.

        Raises LedgerFenced if this broker is not the owner any more, and other StoreErrors.
        """
        for _ in range(_ATTEMPTS):
            try:
                await self._metadata.change_together(
                    [Check(self._document, self.version), Put(path, value, expected_version)]
                )
            except BadVersionError:
                # Another owner has changed this managed ledger, or a change of this owner was stored meanwhile.
                await self._metadata.sync()
                await self._find_out()
            else:
                return
        raise StoreError(
            f"The document {path} could not be stored, because another process changed the managed ledger {self.path} during each "
            "attempt. Try again"
        )

    async def delete(self) -> None:
        changes: list[Change] = [
            Delete(path, node.version) for path, node in self._nodes.items() if node.version != NOT_EXISTING
        ]
        changes.sort(key=lambda change: change.path, reverse=True)  # cursors before their managed ledger
        if self._nodes[self._document].version == NOT_EXISTING:
            return
        for start in range(0, len(changes), MAX_TRANSACTION_CHANGES):
            await self._metadata.change_together(changes[start : start + MAX_TRANSACTION_CHANGES])

    def _wanted(self, info: ManagedLedgerInfo) -> dict[str, bytes | None]:
        """Return the values of all nodes; None for nodes that must not exist."""
        now_ms = self._clock.wall_ms()
        document = pulsar_document(self._pulsar, info, now_ms)
        wanted: dict[str, bytes | None] = {self._document: document}
        self._pulsar = PulsarInfo.FromString(document)
        hidden: dict[str, tuple[int, int]] = {}
        for name, cursor in info.cursors.items():
            node = self._cursors.get(cursor.id)
            if node is None:
                node = CursorNode(self.path, name, None, self)
                self._cursors[cursor.id] = self._all_cursors[cursor.id] = node
            encoded = node.encode(cursor, info.compacted, now_ms)
            if node.is_hidden:
                hidden[name] = node.mark
            else:
                wanted[f"{self._document}/{java_encoded(name)}"] = encoded
        wanted[self._extras] = extras_document(info, hidden)
        for path in self._nodes:
            wanted.setdefault(path, None)
        return wanted

    def _forget_deleted(self, info: ManagedLedgerInfo) -> None:
        """Forget cursors without a document, after a successful save only: after a failure, the managed ledger may list
        the cursor again.
        """
        present = {cursor.id for cursor in info.cursors.values()}
        for cursor_id in self._cursors.keys() - present:
            self._cursors.pop(cursor_id).is_deleted = True

    def _transactions(self, wanted: dict[str, bytes | None]) -> Iterator[list[Change]]:
        """Yield the transactions that store the wanted values. Each is built after the previous one was stored, and
        changes Pulsar's document or checks its version.
        """
        document_change: Change | None = self._change(self._document, wanted.pop(self._document))
        left = [change for path, value in wanted.items() if (change := self._change(path, value)) is not None]
        if document_change is None and not left:
            return
        while document_change is not None or left:
            version = self.version
            changes: list[Change] = [document_change or Check(self._document, version)]
            document_change = None
            size_bytes = 0
            while left and len(changes) < MAX_TRANSACTION_CHANGES and size_bytes < MAX_TRANSACTION_BYTES:
                change = left.pop(0)
                size_bytes += len(change.value) if isinstance(change, Put) else 0
                changes.append(change)
            yield changes

    def _change(self, path: str, value: bytes | None) -> Change | None:
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = _Node()
        if value is None:
            return None if node.version == NOT_EXISTING else Delete(path, node.version)
        must_claim = not self._is_claimed and path != self._extras
        if node.version != NOT_EXISTING and node.stored == digest(value) and not must_claim:
            return None
        return Put(path, value, node.version)

    async def _perform(self, changes: list[Change]) -> None:
        for change in changes:
            if not isinstance(change, Check):
                tried = self._nodes[change.path].tried
                tried.append(digest(change.value) if isinstance(change, Put) else b"")
                del tried[:-MAX_TRIED]
        versions = await self._metadata.change_together(changes)
        for change, version in zip(changes, versions, strict=True):
            if isinstance(change, Put):
                assert version is not None, "the version of a put"
                self._nodes[change.path].is_stored(version, digest(change.value))
            elif isinstance(change, Delete):
                del self._nodes[change.path]

    async def _find_out(self) -> None:
        """Read all nodes again. Raises StoreError, LedgerFenced if one has a value that this object has not tried to write."""
        paths = list(self._nodes)
        for path, found in zip(paths, await self._metadata.values_of(paths), strict=True):
            node = self._nodes[path]
            version, stored = (NOT_EXISTING, b"") if found is None else (found.version, digest(found.value))
            if (version, stored) == (node.version, node.stored):
                continue
            if not _follows(version, node) or stored not in node.tried:
                logs.error("managed_ledger.fenced", managed_ledger=path, version=version, known_version=node.version)
                raise fenced(self.path)
            node.is_stored(version, stored)


def _hidden_cursor(mark: tuple[int, int]) -> ManagedCursorInfo:
    return ManagedCursorInfo(
        cursors_ledger_id=STATE_IN_DOCUMENT, mark_delete_ledger_id=mark[0], mark_delete_entry_id=mark[1]
    )


def _follows(version: int, node: _Node) -> bool:
    """Return whether a change of this owner can have led to `version`."""
    return NOT_EXISTING in (version, node.version) or version == node.version + 1


def document_path(path: str) -> str:
    """Return the path of Pulsar's document for the managed ledger at `path`. The two paths differ in the encoding of
    the topic's name.
    """
    parent, _, name = path.rpartition("/")
    return f"{parent}/{java_encoded(java_decoded(name))}"
