"""Records that only this broker uses: delayed entries of a subscription, and snapshots of transactions.

The document /pybroker/records/ID contains the id of a ledger with the record's parts, oldest first. A part is divided into entries:
the first byte of an entry tells whether more entries of the part follow.

Only the owner of the cursor's managed ledger can change the document: it is stored together with a check of the managed
ledger's version. A broker that has lost a topic without noticing would otherwise replace the snapshot of the next owner.

Failure: a part of which the last entry is missing was not reported as durable, and is ignored. After a failed write, the
owner's snapshot begins a new ledger.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

from pybroker.bookkeeper import BookKeeperClient
from pybroker.bookkeeper_store.documents.cursor_node import CursorNodes
from pybroker.bookkeeper_store.documents.ledger_custom import record_metadata
from pybroker.bookkeeper_store.state_ledger import StateLedger, delete_ledger, read_all
from pybroker.errors import BadVersionError, LedgerFenced, NoSuchLedger, StoreError
from pybroker.ledgers.cursor_store import CursorDone, CursorOwner
from pybroker.managed_ledger.info.managed_ledger_info import delayed_record_id
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, Versioned
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner

RECORDS_PATH = "/pybroker/records"
MAX_ENTRY_BYTES = 1 << 20
MAX_LEDGER_ENTRIES = 10_000
MAX_LEDGER_BYTES = 32 << 20
"""At one of these limits, the record continues in a new ledger with the owner's snapshot."""
_LAST, _MORE = b"\0", b"\1"


class PlainRecord:
    """A record that has an owner, or is being written without one."""

    def __init__(self, record_id: str, owner: CursorOwner | None) -> None:
        self.record_id = record_id
        self.owner = owner
        self.lock = asyncio.Lock()
        self.ledger: StateLedger | None = None
        self.queue: list[tuple[bytes, CursorDone | None]] = []

    @staticmethod
    def is_record_id(cursor_id: str) -> bool:
        return cursor_id.endswith(delayed_record_id(""))


class PlainRecordNodes:
    """The records of this kind of one broker, by record id."""

    def __init__(self, client: BookKeeperClient, metadata: MetadataStore, nodes: CursorNodes, tasks: TaskOwner) -> None:
        self._client = client
        self._metadata = metadata
        self._nodes = nodes
        self._tasks = tasks
        self._records: dict[str, PlainRecord] = {}

    async def load(self, record_id: str) -> list[bytes]:
        found = await self._metadata.get(_path(record_id))
        if found is None:
            return []
        try:
            return _parts(await read_all(self._client, _ledger_id(found)))
        except NoSuchLedger as error:
            logs.error("record.lost", record=record_id, error=str(error))
            return []

    def attach(self, record_id: str, owner: CursorOwner) -> None:
        self._records[record_id] = PlainRecord(record_id, owner)

    def append(self, record_id: str, part: bytes, done: CursorDone | None) -> None:
        record = self._records.setdefault(record_id, PlainRecord(record_id, None))
        record.queue.append((part, done))
        if len(record.queue) == 1:
            self._tasks.start(self._write_queued(record), f"write {record_id}")

    async def _write_queued(self, record: PlainRecord) -> None:
        async with record.lock:
            queued, record.queue = record.queue, []
            failure: StoreError | None = None
            try:
                await self._write(record, [part for part, _ in queued])
            except StoreError as error:
                failure, record.ledger = error, None
            for _, done in queued:
                if done is not None:
                    done(failure)

    async def _write(self, record: PlainRecord, parts: list[bytes]) -> None:
        ledger = record.ledger
        if ledger is not None and ledger.entry_count < MAX_LEDGER_ENTRIES and ledger.size_bytes < MAX_LEDGER_BYTES:
            await _add(ledger, parts)
            return
        node = self._nodes.get(record.record_id.removesuffix(delayed_record_id("")))
        if node is None:
            raise StoreError(f"the record {record.record_id} cannot be written, because its managed ledger is closed")
        before = await self._metadata.get(_path(record.record_id))
        if record.owner is not None:
            parts = [record.owner.snapshot()]  # contains all parts
        elif before is not None:
            parts = _parts(await read_all(self._client, _ledger_id(before))) + parts
        ledger = await StateLedger.create(self._client, record_metadata(record.record_id))
        await _add(ledger, parts)
        value = json.dumps({"ledger": ledger.ledger_id}).encode()
        version = NOT_EXISTING if before is None else before.version
        try:
            await node.record.put_beside(_path(record.record_id), value, version)
        except LedgerFenced:
            await delete_ledger(self._client, ledger.ledger_id)
            raise
        record.ledger = ledger
        if before is not None:
            await delete_ledger(self._client, _ledger_id(before))

    async def detach(self, record_id: str) -> None:
        record = self._records.pop(record_id, None)
        if record is None:
            return
        async with record.lock:
            if record.queue:
                queued, record.queue = record.queue, []
                failure: StoreError | None = None
                try:
                    await self._write(record, [part for part, _ in queued])
                except StoreError as error:
                    failure = error
                for _, done in queued:
                    if done is not None:
                        done(failure)
                if failure is not None:
                    raise failure
            if record.ledger is not None:
                await record.ledger.seal()

    async def delete(self, record_id: str) -> None:
        self._records.pop(record_id, None)
        found = await self._metadata.get(_path(record_id))
        if found is None:
            return
        try:
            await self._metadata.delete(_path(record_id), found.version)
        except BadVersionError:
            logs.warning("record.changed", record=record_id)
            return
        await delete_ledger(self._client, _ledger_id(found))


def _path(record_id: str) -> str:
    return f"{RECORDS_PATH}/{quote(record_id, safe='')}"


def _ledger_id(found: Versioned) -> int:
    try:
        return int(json.loads(found.value)["ledger"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"a document below {RECORDS_PATH} in the metadata store is damaged: {error}") from error


async def _add(ledger: StateLedger, parts: list[bytes]) -> None:
    for part in parts:
        for start in range(0, max(1, len(part)), MAX_ENTRY_BYTES):
            piece = part[start : start + MAX_ENTRY_BYTES]
            await ledger.add((_MORE if start + MAX_ENTRY_BYTES < len(part) else _LAST) + piece)


def _parts(entries: list[bytes]) -> list[bytes]:
    parts: list[bytes] = []
    pieces: list[bytes] = []
    for entry in entries:
        pieces.append(entry[1:])
        if entry[:1] == _LAST:
            parts.append(b"".join(pieces))
            pieces = []
    return parts
