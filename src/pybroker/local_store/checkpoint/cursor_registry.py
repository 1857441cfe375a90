"""The state of cursors on the event loop: their owners, and their records that are in the journal but not yet in the
checkpoint table.

Invariant: table plus registry contain each durable record of a cursor. A record leaves the registry only after the
table has it or a newer one. Records are numbered over the whole store, so a comparison shows whether a snapshot
includes a record, whatever happened while it was taken. Pure state: the store does the IO, calls owners at the right
time, and reports the results.
"""

from __future__ import annotations

from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.storage_format.journal_layout import CursorRecord, RecordType


class RegisteredCursor:
    """A cursor that is attached or has records that the table does not have."""

    __slots__ = ("cursor_id", "deleted_number", "deltas", "owner", "snapshot")

    def __init__(self, cursor_id: str) -> None:
        self.cursor_id = cursor_id
        self.owner: CursorOwner | None = None
        self.deleted_number = 0  # number of the deletion record, which invalidates the table's rows; 0 for none
        self.snapshot: tuple[int, bytes] | None = None
        self.deltas: list[tuple[int, bytes]] = []

    @property
    def is_dirty(self) -> bool:
        return bool(self.deltas) or self.snapshot is not None or self.deleted_number > 0


class CursorRegistry:
    """All such cursors, and the numbering of records."""

    def __init__(self, next_number: int) -> None:
        self.next_number = next_number
        self._cursors: dict[str, RegisteredCursor] = {}

    def attach(self, cursor_id: str, owner: CursorOwner) -> None:
        self._cursor(cursor_id).owner = owner

    def owner(self, cursor_id: str) -> CursorOwner | None:
        cursor = self._cursors.get(cursor_id)
        return cursor.owner if cursor is not None else None

    def detach(self, cursor_id: str) -> None:
        cursor = self._cursors.get(cursor_id)
        if cursor is not None:
            cursor.owner = None
            self._drop_if_clean(cursor)

    def is_changed(self, cursor_id: str) -> bool:
        cursor = self._cursors.get(cursor_id)
        return cursor is not None and bool(cursor.deltas)

    def new_record(self, record_type: RecordType, cursor_id: str, data: bytes) -> CursorRecord:
        """The record counts once it is passed to `apply`."""
        record = CursorRecord(record_type, cursor_id, self.next_number, data)
        self.next_number += 1
        return record

    def apply(self, record: CursorRecord) -> None:
        """Add a record in journal order: a new one, or one found at recovery."""
        cursor = self._cursor(record.cursor_id)
        if record.type is RecordType.CURSOR_DELTA:
            cursor.deltas.append((record.number, record.data))
        elif record.type is RecordType.CURSOR_SNAPSHOT:
            cursor.snapshot = (record.number, record.data)
            cursor.deltas.clear()
        else:
            # The current number: a checkpoint that began before the deletion was durable does not cover it.
            cursor.deleted_number = self.next_number
            self.next_number += 1
            cursor.owner = None
            cursor.snapshot = None
            cursor.deltas.clear()

    def refused(self, record: CursorRecord) -> None:
        cursor = self._cursors.get(record.cursor_id)
        if cursor is not None:
            for index in reversed(range(len(cursor.deltas))):  # it is one of the newest
                if cursor.deltas[index][0] == record.number:
                    del cursor.deltas[index]
                    break
            self._drop_if_clean(cursor)

    def shelved(self, cursor_id: str) -> tuple[bool, tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        """Return whether the table's rows are invalid, and a copy of the records that it does not contain."""
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            return False, None, []
        return cursor.deleted_number > 0, cursor.snapshot, list(cursor.deltas)

    def dirty(self) -> list[RegisteredCursor]:
        return [cursor for cursor in self._cursors.values() if cursor.is_dirty]

    def stored(self, cursor_id: str, number: int) -> None:
        """The table has everything of this cursor up to and including `number`."""
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            return
        if cursor.snapshot is not None and cursor.snapshot[0] <= number:
            cursor.snapshot = None
        cursor.deltas = [delta for delta in cursor.deltas if delta[0] > number]
        if cursor.deleted_number <= number:
            cursor.deleted_number = 0
        self._drop_if_clean(cursor)

    def _cursor(self, cursor_id: str) -> RegisteredCursor:
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            cursor = self._cursors[cursor_id] = RegisteredCursor(cursor_id)
        return cursor

    def _drop_if_clean(self, cursor: RegisteredCursor) -> None:
        if cursor.owner is None and not cursor.is_dirty:
            self._cursors.pop(cursor.cursor_id, None)


def merge(
    stored: tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]],
    shelved: tuple[bool, tuple[int, bytes] | None, list[tuple[int, bytes]]],
) -> tuple[bytes | None, list[bytes]]:
    """Return the records for a cursor's owner: the newest snapshot and all deltas after it, oldest first.

    Both may overlap: a checkpoint can move records from the registry to the table between the two reads.
    """
    is_void, shelved_snapshot, shelved_deltas = shelved
    stored_snapshot, stored_deltas = (None, []) if is_void else stored
    snapshots = [snapshot for snapshot in (stored_snapshot, shelved_snapshot) if snapshot is not None]
    number, data = max(snapshots) if snapshots else (-1, None)
    deltas = dict(stored_deltas)
    deltas.update(shelved_deltas)
    return data, [deltas[key] for key in sorted(deltas) if key > number]
