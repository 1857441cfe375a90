"""Stores the states of cursors on BookKeeper, in Pulsar's layout.

A cursor has a document (`cursor_node.py`). Its first change creates a cursor ledger with the state, and stores the
ledger's id in the document. Later changes add an entry with the whole state; the last entry counts. When the cursor is
closed, a small state is moved to the document and the ledger is deleted.

Records with other ids, which only this broker uses, have a document below `/pybroker/records` and a ledger
(`plain_record.py`).

Concurrency: the writes of a cursor run one at a time. A write stores the newest state, so one write completes all
changes before it.

Failure: after a failed write, the next one continues in a new cursor ledger. If it is unknown whether the document
contains the new ledger, because a response was lost, the ledger is kept.
"""

from __future__ import annotations

import asyncio

from pybroker.bookkeeper import BookKeeperClient
from pybroker.bookkeeper_store.documents.cursor_documents import (
    MAX_DOCUMENT_BYTES,
    MAX_RANGES_IN_DOCUMENT,
    STATE_IN_DOCUMENT,
    decode_position_info,
    position_info,
    range_count,
    state_of_entry,
)
from pybroker.bookkeeper_store.documents.cursor_node import CursorNode, CursorNodes
from pybroker.bookkeeper_store.documents.ledger_custom import cursor_metadata
from pybroker.bookkeeper_store.naming_limit import Moment, NamingLimit
from pybroker.bookkeeper_store.plain_record import PlainRecord, PlainRecordNodes
from pybroker.bookkeeper_store.state_ledger import StateLedger, delete_ledger, read_last
from pybroker.errors import DamagedEntries, NoSuchLedger, StateTooLarge, StoreError
from pybroker.ledgers.cursor_store import NO_CURSOR_LEDGER, CursorDone, CursorLedger, CursorOwner, CursorStore
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner

MAX_ENTRIES = 50_000
"""Maximum number of entries in a cursor ledger (managedLedgerCursorMaxEntriesPerLedger); then the cursor continues in a
new one.
"""
LARGE_STATE_BYTES = 64 * 1024
"""A state with more bytes is encoded in a thread."""


class _Cursor:
    """A cursor that has an owner."""

    def __init__(self, cursor_id: str, owner: CursorOwner, nodes: CursorNodes) -> None:
        self.cursor_id = cursor_id
        self.owner = owner
        self._nodes = nodes
        self._node = nodes.get(cursor_id)
        self.lock = asyncio.Lock()
        self.ledger: StateLedger | None = None
        self.ledger_created = Moment(0, 0)
        self.queue: list[tuple[bytes, CursorDone | None]] = []
        self.state_bytes = 0
        """The size of the last state that was stored or refused."""
        self.writing_since_ms: float | None = None
        """The start of the write in flight, by the monotonic clock."""

    @property
    def node(self) -> CursorNode | None:
        """The document of the cursor; None until it is stored for the first time."""
        if self._node is None:
            self._node = self._nodes.get(self.cursor_id)
        return self._node

    @property
    def is_deleted(self) -> bool:
        """Whether the document was deleted. The state is then not written any more."""
        return self._node is not None and self._node.is_deleted

    @property
    def ledger_ids(self) -> set[int]:
        """The ids of the ledgers that contain a state of the cursor."""
        found = {STATE_IN_DOCUMENT if self._node is None else self._node.ledger_id}
        if self.ledger is not None:
            found.add(self.ledger.ledger_id)
        return found - {STATE_IN_DOCUMENT}


class BookKeeperCursorStore(CursorStore):
    """Stores the states of all cursors of a broker.

    `nodes`: the cursors of open managed ledgers, shared with `PulsarRecords`.
    """

    def __init__(
        self,
        client: BookKeeperClient,
        metadata: MetadataStore,
        nodes: CursorNodes,
        *,
        max_entry_bytes: int,
        max_entries: int = MAX_ENTRIES,
        naming: NamingLimit,
    ) -> None:
        self._naming = naming
        self._client = client
        self._nodes = nodes
        self._max_entry_bytes = max_entry_bytes
        self._max_entries = max_entries
        self._tasks = TaskOwner("cursors")
        self._cursors: dict[str, _Cursor] = {}
        self._plain = PlainRecordNodes(client, metadata, nodes, self._tasks)

    @property
    def needs_whole_states(self) -> bool:
        return True

    def state_bytes(self, cursor_id: str) -> int:
        cursor = self._cursors.get(cursor_id)
        return 0 if cursor is None else cursor.state_bytes

    def write_wait_ms(self, cursor_id: str) -> float | None:
        cursor = self._cursors.get(cursor_id)
        if cursor is None or cursor.writing_since_ms is None:
            return None
        return self._client.clock.monotonic_ms() - cursor.writing_since_ms

    def ledger_of(self, cursor_id: str) -> CursorLedger:
        cursor = self._cursors.get(cursor_id)
        if cursor is None or cursor.ledger is None:
            return NO_CURSOR_LEDGER
        return CursorLedger(cursor.ledger.ledger_id, cursor.ledger.entry_count - 1)

    async def load(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        node = self._nodes.get(cursor_id)
        if node is None:
            return None, await self._plain.load(cursor_id)
        if node.ledger_id == STATE_IN_DOCUMENT:
            return node.state(), []
        try:
            found = await read_last(self._client, node.ledger_id)
        except (NoSuchLedger, DamagedEntries) as error:
            # As Java brokers do: messages after the older position are delivered again.
            logs.error(
                "cursor_ledger.lost",
                managed_ledger=node.owner,
                cursor=node.name,
                ledger_id=node.ledger_id,
                error=str(error),
                action="the cursor continues at the position in its document",
            )
            found = None
        if found is None:
            return node.state(), []
        entry = decode_position_info(node.name, found)
        node.took(entry)
        return state_of_entry(entry), []

    def attach(self, cursor_id: str, owner: CursorOwner) -> None:
        if _is_plain(cursor_id):
            self._plain.attach(cursor_id, owner)
        else:
            self._cursors[cursor_id] = _Cursor(cursor_id, owner, self._nodes)

    def append_delta(self, cursor_id: str, delta: bytes, done: CursorDone | None) -> None:
        if _is_plain(cursor_id):
            self._plain.append(cursor_id, delta, done)
            return
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            if done is not None:
                asyncio.get_running_loop().call_soon(done, StoreError(f"cursor {cursor_id} is closed"))
            return
        cursor.queue.append((delta, done))
        if len(cursor.queue) == 1:
            self._tasks.start(self._write_queued(cursor), f"write {cursor_id}")

    async def _write_queued(self, cursor: _Cursor) -> None:
        async with cursor.lock:
            queued, cursor.queue = cursor.queue, []
            if not queued:
                return  # `detach` has written them.
            failure: StoreError | None = None
            cursor.writing_since_ms = self._client.clock.monotonic_ms()
            try:
                await self._write(cursor, queued[-1][0])
            except StoreError as error:
                failure = None if cursor.is_deleted else error
            except asyncio.CancelledError:
                _complete(queued, StoreError("the broker stops"))
                raise
            finally:
                cursor.writing_since_ms = None
            _complete(queued, failure)

    async def _write(self, cursor: _Cursor, state: bytes) -> None:
        """Store the whole state of the cursor. Raises StoreError."""
        node = cursor.node
        if node is None:
            raise StoreError(f"Cursor {cursor.cursor_id} cannot be written, because it does not exist in the store")
        if node.is_deleted:
            return
        record = await _record(state)
        if node.keeps_state_in_document:
            node.put_state(record)
            await node.record.save()
            return
        payload = await self._encoded(node, record, state)
        cursor.state_bytes = len(payload)
        if len(payload) > self._max_entry_bytes:
            raise StateTooLarge(
                f"The acknowledgements of {node.name} on {node.owner} have {len(payload)} bytes and cannot be "
                f"stored, because an entry of a bookie has at most {self._max_entry_bytes} bytes. Acknowledge "
                "the oldest messages, so that fewer gaps remain",
                len(payload),
                self._max_entry_bytes,
            )
        ledger = cursor.ledger
        if ledger is not None and ledger.entry_count < self._max_entries and self._is_usable(cursor, ledger):
            try:
                await ledger.add(payload)
            except StoreError as error:
                cursor.ledger = None  # The document lists it until the next ledger is stored there.
                logs.warning("cursor_ledger.failed", managed_ledger=node.owner, cursor=node.name, error=str(error))
            else:
                if not ledger.is_named:
                    await self._name(node, cursor, ledger, record)
                return
        custom = cursor_metadata(node.owner, node.name, self._naming.mark)
        created = self._naming.now()
        ledger = await StateLedger.create(self._client, custom)
        cursor.ledger, cursor.ledger_created = ledger, created
        await ledger.add(payload)
        await self._name(node, cursor, ledger, record)

    def _is_usable(self, cursor: _Cursor, ledger: StateLedger) -> bool:
        return ledger.is_named or self._naming.allows(cursor.ledger_created)

    async def _name(self, node: CursorNode, cursor: _Cursor, ledger: StateLedger, record: CursorRecord) -> None:
        """Store the ledger's id in the cursor's document.

        Raises StoreError, also if this took so long that the leader may delete the ledger; the next write then uses
        another ledger.
        """
        before = node.ledger_id
        if self._naming.allows(cursor.ledger_created):
            node.put_ledger(ledger.ledger_id, record)
            await node.record.save()
        if not self._naming.allows(cursor.ledger_created):
            logs.warning(
                "ledger.named_too_late", managed_ledger=node.owner, cursor=node.name, ledger_id=ledger.ledger_id
            )
            raise StoreError(
                f"Storing the id of cursor ledger {ledger.ledger_id} in the metadata took too long. Try again"
            )
        ledger.is_named = True
        if before not in (STATE_IN_DOCUMENT, ledger.ledger_id):
            await delete_ledger(self._client, before)

    @staticmethod
    async def _encoded(node: CursorNode, record: CursorRecord, state: bytes) -> bytes:
        if len(state) > LARGE_STATE_BYTES:
            return await asyncio.to_thread(position_info, record, node.position_properties)
        return position_info(record, node.position_properties)

    async def detach(self, cursor_id: str, *, is_changed: bool = False) -> None:
        if _is_plain(cursor_id):
            await self._plain.detach(cursor_id)
            return
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            return
        async with cursor.lock:
            queued, cursor.queue = cursor.queue, []
            failure: StoreError | None = None
            try:
                await self._write_last(cursor, is_changed=is_changed or bool(queued))
            except StoreError as error:
                failure = error
            finally:
                if self._cursors.get(cursor_id) is cursor:
                    del self._cursors[cursor_id]
                _complete(queued, failure)
        if failure is not None:
            raise failure

    async def _write_last(self, cursor: _Cursor, *, is_changed: bool) -> None:
        node = cursor.node
        if node is None or node.is_deleted:
            await self._delete_ledgers(cursor.ledger_ids)
            return
        if not is_changed and cursor.ledger is None:
            return
        state = cursor.owner.snapshot()
        record = await _record(state)
        is_small = len(state) <= MAX_DOCUMENT_BYTES and range_count(record) <= MAX_RANGES_IN_DOCUMENT
        if not is_small:
            if is_changed:
                await self._write(cursor, state)
            if cursor.ledger is not None:
                await cursor.ledger.seal()
            return
        before = cursor.ledger_ids
        node.put_state(record)
        await node.record.save()
        await self._delete_ledgers(before)

    async def _delete_ledgers(self, ledger_ids: set[int]) -> None:
        for ledger_id in ledger_ids:
            await delete_ledger(self._client, ledger_id)

    async def delete(self, cursor_id: str) -> None:
        if _is_plain(cursor_id):
            await self._plain.delete(cursor_id)
            return
        cursor, node = self._cursors.pop(cursor_id, None), self._nodes.get(cursor_id)
        if cursor is not None:
            await self._delete_ledgers(cursor.ledger_ids)
        elif node is not None and node.ledger_id != STATE_IN_DOCUMENT:
            await delete_ledger(self._client, node.ledger_id)

    async def close(self) -> None:
        await self._tasks.close()


def _is_plain(cursor_id: str) -> bool:
    return PlainRecord.is_record_id(cursor_id)


async def _record(state: bytes) -> CursorRecord:
    return CursorRecord(state) if len(state) <= LARGE_STATE_BYTES else await asyncio.to_thread(CursorRecord, state)


def _complete(queued: list[tuple[bytes, CursorDone | None]], failure: StoreError | None) -> None:
    for _, done in queued:
        if done is not None:
            done(failure)
