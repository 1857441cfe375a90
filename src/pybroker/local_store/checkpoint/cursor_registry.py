"""The records of cursors that are in the journal and not yet in the checkpoint table, and the owners of loaded cursors.

Invariant: table plus registry contain each durable record of a cursor. A record leaves the registry only when the table
contains it or a newer one. Record numbers are unique over the store, so comparing numbers shows whether a snapshot
includes a record. Pure state: the store does the IO and reports the results.
"""

from __future__ import annotations

from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.storage_format.journal_layout import CursorRecord, RecordType


class RegisteredCursor:
    """A cursor that is loaded, or has records in the journal that the table lacks."""

    __slots__ = ("cursor_id", "deleted_number", "deltas", "owner", "snapshot")

    def __init__(self, cursor_id: str) -> None:
        self.cursor_id = cursor_id
        self.owner: CursorOwner | None = None
        # number of the deletion record, which makes the table's rows void; 0 without a deletion
        self.deleted_number = 0
        self.snapshot: tuple[int, bytes] | None = None
        self.deltas: list[tuple[int, bytes]] = []

    @property
    def is_dirty(self) -> bool:
        return bool(self.deltas) or self.snapshot is not None or self.deleted_number > 0


class CursorRegistry:
    """All registered cursors of a store. Also assigns the numbers of records."""

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
        """Return a new record of a cursor with the next record number. The registry contains it only after `apply`."""
        record = CursorRecord(record_type, cursor_id, self.next_number, data)
        self.next_number += 1
        return record

    def apply(self, record: CursorRecord) -> None:
        cursor = self._cursor(record.cursor_id)
        if record.type is RecordType.CURSOR_DELTA:
            cursor.deltas.append((record.number, record.data))
        elif record.type is RecordType.CURSOR_SNAPSHOT:
            cursor.snapshot = (record.number, record.data)
            cursor.deltas.clear()
        else:
            # The next record number: a checkpoint that began before the deletion was durable does not cover it.
            cursor.deleted_number = self.next_number
            self.next_number += 1
            cursor.owner = None
            cursor.snapshot = None
            cursor.deltas.clear()

    def refused(self, record: CursorRecord) -> None:
        cursor = self._cursors.get(record.cursor_id)
        if cursor is not None:
            for index in reversed(range(len(cursor.deltas))):  # it is among the last ones
                if cursor.deltas[index][0] == record.number:
                    del cursor.deltas[index]
                    break
            self._drop_if_clean(cursor)

    def shelved(self, cursor_id: str) -> tuple[bool, tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        """Return the records of a cursor that the checkpoint table lacks: whether the cursor was deleted, so that its
        rows in the table are void; its snapshot (None without one); and its deltas. Snapshot and deltas have their
        record numbers.
        """
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            return False, None, []
        return cursor.deleted_number > 0, cursor.snapshot, list(cursor.deltas)

    def dirty(self) -> list[RegisteredCursor]:
        return [cursor for cursor in self._cursors.values() if cursor.is_dirty]

    def stored(self, cursor_id: str, number: int) -> None:
        """Drop the records of a cursor up to record number `number`, which the checkpoint table now contains."""
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
    """Combine the records of a cursor in the checkpoint table (`stored`, from `load_cursor`) and in the registry
    (`shelved`, from the method of this name). Return the newest snapshot (None without one), and all deltas after it,
    oldest first. Records in both count once.
    """
    is_void, shelved_snapshot, shelved_deltas = shelved
    stored_snapshot, stored_deltas = (None, []) if is_void else stored
    snapshots = [snapshot for snapshot in (stored_snapshot, shelved_snapshot) if snapshot is not None]
    number, data = max(snapshots) if snapshots else (-1, None)
    deltas = dict(stored_deltas)
    deltas.update(shelved_deltas)
    return data, [deltas[key] for key in sorted(deltas) if key > number]
