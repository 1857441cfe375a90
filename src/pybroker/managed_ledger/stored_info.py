"""The managed ledger info of an open managed ledger, which its owner changes and saves in the metadata store.

Operation: changes of the record run one at a time, and each stores the state at its start, so one change completes all
saves that wait when it begins.

Failure: a change that fails may still be stored (`info_records.py`). Once the record finds that another owner has
written, this object writes nothing more, calls `when_fenced` once, and every save raises LedgerFenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from pybroker.errors import LedgerFenced, StoreError
from pybroker.managed_ledger.info.info_records import InfoRecord, fenced
from pybroker.managed_ledger.info.managed_ledger_info import (
    FORMAT_VERSION,
    CompactedInfo,
    CursorInfo,
    ManagedLedgerInfo,
    delayed_record_id,
)
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.trimmed_ledgers import TrimmedLedgers


class StoredInfo:
    """The managed ledger info of one open managed ledger. `ledgers` must not be empty at a save."""

    def __init__(self, record: InfoRecord, ledgers: LedgerList) -> None:
        self.path = record.path
        self.record = record
        self.ledgers = ledgers
        self.created_ms = 0
        self.properties: dict[str, str] = {}
        self.last_index: int | None = None
        """The index of the last durable message; None without indexes."""
        self.cursors: dict[str, CursorInfo] = {}
        self.cursor_serial = 0
        self.is_terminated = False
        self.is_deleted = False
        self.leaving_ledger_ids: list[int] = []
        """Ledgers that are still in `ledgers`, but no longer in the stored list: they are deleted regardless of
        cursors.
        """
        self.trimmed_ledger_ids: list[int] = []
        """Perhaps still in the ledger store; to be deleted."""
        self.unfinished_ledger_ids: list[int] = []
        """Being written by a compaction; stored as ledgers to be deleted, which they are after a crash."""
        self.compacted: CompactedInfo | None = None
        self.gone = TrimmedLedgers(-1)
        self.is_fenced = False
        """Whether another owner has written the value."""
        self.when_fenced: Callable[[LedgerFenced], None] = _nobody
        """Called once, during a save, when another owner is detected."""
        self._saving = asyncio.Lock()
        self._asked_saves = 0
        self._covered_saves = 0  # the number of saves that were called before the stored state was encoded
        record.save_with(self.save)

    def take(self, info: ManagedLedgerInfo) -> None:
        """Copy all fields of a stored info, except its list of ledgers."""
        self.created_ms = info.created
        self.properties = info.properties
        self.last_index = info.last_index
        self.cursors = info.cursors
        self.cursor_serial = info.serial
        self.is_terminated = info.terminated
        self.trimmed_ledger_ids = info.trimmed
        self.compacted = info.compacted
        if info.gone_until is not None:
            self.gone = TrimmedLedgers(info.gone_until, info.gone)

    def info(self) -> ManagedLedgerInfo:
        gone = self.gone.with_rows(self.ledgers.entry_counts_of(self.leaving_ledger_ids))
        return ManagedLedgerInfo(
            FORMAT_VERSION,
            msgspec.Raw(self.ledgers.encode(self.leaving_ledger_ids)),
            self.cursors,
            self.cursor_serial,
            self.is_terminated,
            self.trimmed_ledger_ids + self.leaving_ledger_ids + self.unfinished_ledger_ids,
            self.is_deleted,
            self.created_ms,
            self.properties,
            self.last_index,
            self.compacted,
            list(gone.rows),
            gone.until,
        )

    # --- versions ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.record.version

    async def save(self) -> None:
        """Store the current state. Durable on return. Raises StoreError, and LedgerFenced if another owner has taken
        over the managed ledger.
        """
        self._asked_saves += 1
        asked = self._asked_saves
        async with self._saving:
            self.require_owned()
            if self._covered_saves >= asked:
                return  # A put that began after this call has stored the state.
            covered = self._asked_saves
            try:
                await self.record.store(self.info())
            except LedgerFenced as error:
                self.lose(error)
                raise
            self._covered_saves = covered

    def lose(self, error: LedgerFenced) -> None:
        """Refuse all further saves, because another owner has taken over the managed ledger. The first call invokes
        the callback `when_fenced` with `error`.
        """
        if not self.is_fenced:
            self.is_fenced = True
            self.when_fenced(error)

    def require_owned(self) -> None:
        """Raise LedgerFenced if another owner has taken over the managed ledger, as far as this object knows."""
        if self.is_fenced:
            raise fenced(self.path)

    # --- single changes, undone if they cannot be stored --------------------------------------------------------------

    async def change_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties of the topic; None removes a property. Durable on return. Raises StoreError, and then nothing
        changed.
        """
        before = {key: self.properties.get(key) for key in changes}
        _apply(self.properties, changes)
        try:
            await self.save()
        except StoreError:
            # Concurrent changes of other keys stay.
            undone = {key: before[key] for key, value in changes.items() if self.properties.get(key) == value}
            _apply(self.properties, undone)
            raise

    async def set_cursor_properties(self, name: str, cursor_id: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of the cursor `name`. Durable on return. Raises StoreError, also if the cursor with
        the id `cursor_id` was deleted; then nothing changed.
        """
        info = self._cursor(name, cursor_id)
        before, info.properties = info.properties, dict(properties)
        try:
            await self.save()
        except StoreError:
            info.properties = before
            raise

    async def announce_delayed(self, name: str, cursor_id: str) -> str:
        """Record in the metadata that an index of delayed entries may be stored for the cursor `name`. Durable on
        return. Return the id of the index in the cursor store. Raises StoreError, also if the cursor with the id
        `cursor_id` was deleted.
        """
        info = self._cursor(name, cursor_id)
        if not info.delayed:
            info.delayed = True
            try:
                await self.save()
            except StoreError:
                info.delayed = False
                raise
        return delayed_record_id(info.id)

    def _cursor(self, name: str, cursor_id: str) -> CursorInfo:
        info = self.cursors.get(name)
        if info is None or info.id != cursor_id:
            raise StoreError(
                f"the cursor {name} of managed ledger {self.path} cannot be changed, because the cursor was deleted"
            )
        return info


def _nobody(error: LedgerFenced) -> None: ...


def _apply(properties: dict[str, str], changes: Mapping[str, str | None]) -> None:
    for key, value in changes.items():
        if value is None:
            properties.pop(key, None)
        else:
            properties[key] = value
