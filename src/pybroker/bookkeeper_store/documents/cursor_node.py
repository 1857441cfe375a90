"""The metadata document of one cursor. Both the cursor store and the managed ledger change it.

The cursor store changes the state and the cursor ledger's id, the managed ledger the properties. All changes are stored
by `save` of the managed ledger. It checks the versions of the documents, so only the owner of the managed ledger can
change a cursor.

Two cursors, `pulsar.dedup` and `__compaction`, have numbers in addition to their position. Pulsar calls them properties
of the position. Position and numbers change together, so this broker keeps the state of these cursors in their
document.

The cursor `pulsar.transactions` has no document: a Java broker would take it for a subscription, whose backlog grows.
Its mark-delete position is in the extras of the managed ledger.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

from pybroker.bookkeeper_store.documents.cursor_documents import (
    STATE_IN_DOCUMENT,
    clear_state,
    put_state,
    state_of_document,
)
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo, PositionInfo
from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR, CompactedInfo, CursorInfo
from pybroker.model.position import Position

DEDUPLICATION_CURSOR = "pulsar.dedup"
"""Its properties are the highest sequence ids by producer name; Pulsar stores them as numbers of the position."""
COMPACTION_CURSOR = "__compaction"
"""Its position is the horizon of the compacted view, whose ledger is a number of the position."""
COMPACTED_LEDGER = "CompactedTopicLedger"


class OwnedRecord(Protocol):
    """The documents of the managed ledger that owns a cursor."""

    async def save(self) -> None:
        """Store the changed documents, including the documents of cursors. Raises StoreError."""

    async def put_beside(self, path: str, value: bytes, expected_version: int) -> None:
        """Store another document in a transaction that succeeds only for the owner of the managed ledger.

        Raises LedgerFenced if this broker is not the owner any more, and other StoreErrors.
        """


class CursorNode:
    """The document of one cursor. `owner`: the path of the managed ledger that owns the cursor."""

    def __init__(self, owner: str, name: str, found: ManagedCursorInfo | None, record: OwnedRecord) -> None:
        self.owner = owner
        self.name = name
        self.record = record
        self.is_deleted = False
        """Whether the document was deleted, so that no document lists the cursor ledger any more."""
        self._info = ManagedCursorInfo(cursors_ledger_id=STATE_IN_DOCUMENT) if found is None else found
        self.position_properties = {each.name: each.value for each in self._info.properties}

    @property
    def ledger_id(self) -> int:
        """The id of the cursor ledger with the state; STATE_IN_DOCUMENT if there is none."""
        return self._info.cursors_ledger_id

    @property
    def keeps_state_in_document(self) -> bool:
        return self.name in (DEDUPLICATION_CURSOR, COMPACTION_CURSOR) or self.is_hidden

    @property
    def is_hidden(self) -> bool:
        """Whether Java brokers do not see the cursor, because it has no document. Its mark-delete position is in
        pybroker's own document of the managed ledger (the extras).
        """
        return self.name == TRANSACTIONS_CURSOR

    @property
    def mark(self) -> tuple[int, int]:
        return self._info.mark_delete_ledger_id, self._info.mark_delete_entry_id

    @property
    def compacted_ledger(self) -> int | None:
        """The id of the ledger with the compacted view; None without a view, and for all cursors except `__compaction`."""
        return self.position_properties.get(COMPACTED_LEDGER) if self.name == COMPACTION_CURSOR else None

    def state(self) -> bytes:
        """Return the state in the document as a cursor record (`cursor_record.py`). If the state is in a cursor ledger,
        the record contains only the mark-delete position in the document, which may be outdated.
        """
        return state_of_document(self._info)

    def put_state(self, record: CursorRecord) -> None:
        put_state(self._info, record, self.position_properties)

    def put_ledger(self, ledger_id: int, record: CursorRecord) -> None:
        clear_state(self._info, record.mark_delete_position)
        self._info.cursors_ledger_id = ledger_id

    def took(self, entry: PositionInfo) -> None:
        """Copy Pulsar's properties of the mark-delete position from `entry`, the last entry of the cursor ledger."""
        self.position_properties = {each.name: each.value for each in entry.properties}

    def info(self, cursor_id: str, *, is_delayed: bool) -> CursorInfo:
        """Return the loaded cursor as a part of the managed ledger info. `is_delayed`: whether an index of delayed
        entries was possibly stored for it.
        """
        found = self._info
        if self.name == DEDUPLICATION_CURSOR:
            properties = {name: str(value) for name, value in self.position_properties.items()}
        else:
            properties = {each.name: each.value for each in found.cursor_properties}
        position = (found.mark_delete_ledger_id, found.mark_delete_entry_id)
        return CursorInfo(cursor_id, position, properties, is_delayed)

    def encode(self, info: CursorInfo, view: CompactedInfo | None, now_ms: int) -> bytes:
        """Return the bytes of the cursor's document. `view`: the compacted view of the managed ledger, None without
        one. `now_ms`: the wall clock, in milliseconds since 1970.
        """
        found = self._info
        if not found.HasField("mark_delete_ledger_id"):
            found.mark_delete_ledger_id, found.mark_delete_entry_id = info.position
            found.last_active = now_ms
        if self.name == DEDUPLICATION_CURSOR:
            self._put_numbers(_numbers(self, info))
        else:
            del found.cursor_properties[:]
            for name, value in info.properties.items():
                found.cursor_properties.add(name=name, value=value)
        if self.name == COMPACTION_CURSOR:
            if view is not None:
                clear_state(found, Position(*view.horizon))
            self._put_numbers({} if view is None else {COMPACTED_LEDGER: view.ledger})
        return found.SerializeToString(deterministic=True)

    def _put_numbers(self, numbers: dict[str, int]) -> None:
        self.position_properties = numbers
        del self._info.properties[:]
        for name, value in self.position_properties.items():
            self._info.properties.add(name=name, value=value)


def _numbers(node: CursorNode, info: CursorInfo) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in info.properties.items()}
    except ValueError as error:
        raise StoreError(f"a property of the cursor {node.name} of {node.owner} must be a number: {error}") from error


CursorNodes: TypeAlias = "WeakValueDictionary[str, CursorNode]"
"""The cursors of open managed ledgers by cursor id. The records of the managed ledgers keep them alive."""
