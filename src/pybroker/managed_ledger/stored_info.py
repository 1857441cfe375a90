"""Storage of the managed ledger info in the metadata store: one value with one writer and a version.

Operation: the owner of the managed ledger changes this object and calls `save`. Puts run one at a time, and each stores
the state at its start, so one put completes all saves that wait when it begins. (One put for each save would cost the
square of the number of cursors.) A put names the version that it replaces, so two owners never overwrite each other.

Failure: a put that fails, or whose caller is cancelled, may still be stored, now or later. The next save reads the
stored value, and continues only if this object has stored it or tried to store it. Any other value comes from another
owner: this object writes nothing more, calls `when_fenced` once, and every save raises LedgerFenced.

Limitations: identical bytes of another owner cannot be distinguished, but each owner first creates its own ledger, so
values differ. A value that is deleted and created again may reach an earlier version again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec

from pybroker.errors import BadVersionError, LedgerFenced, StoreError
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_ledger_info import (
    FORMAT_VERSION,
    CompactedInfo,
    CursorInfo,
    ManagedLedgerInfo,
    delayed_record_id,
)
from pybroker.managed_ledger.trimmed_ledgers import TrimmedLedgers
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, Versioned
from pybroker.runtime import logs

MAX_UNKNOWN_PUTS = 100
"""Unanswered puts with a remembered value. The value of an older one that is stored late is taken for another owner's.
"""
_PUTS = 3
"""The first put finds the wrong version if an earlier one was stored late, the second one only if another owner writes.
"""


class StoredInfo:
    """Owned by its managed ledger. `ledgers` must not be empty at a save."""

    def __init__(self, metadata: MetadataStore, path: str, ledgers: LedgerList, found: Versioned | None) -> None:
        """`found` is the value at `path` now."""
        self.path = path
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
        self._metadata = metadata
        self._saving = asyncio.Lock()
        self._asked_saves = 0
        self._covered_saves = 0  # the number of saves that were called before the stored state was encoded
        self._version = NOT_EXISTING if found is None else found.version
        self._stored = b"" if found is None else _digest(found.value)
        self._unknown: list[bytes] = []  # values of puts that follow `_version` and may have been stored

    def take(self, info: ManagedLedgerInfo) -> None:
        """Copy the stored state except the list of ledgers, which the caller has set."""
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

    def encode(self) -> bytes:
        return msgspec.json.encode(self.info())

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
        """NOT_EXISTING before the first stored value."""
        return self._version

    async def save(self) -> None:
        """Store the current state. Durable on return. Raises StoreError, and LedgerFenced permanently once another
        owner has written.
        """
        self._asked_saves += 1
        asked = self._asked_saves
        async with self._saving:
            self.require_owned()
            if self._covered_saves >= asked:
                return  # A put that began after this call has stored the state.
            covered = self._asked_saves
            await self._put(self.encode())
            self._covered_saves = covered

    async def _put(self, value: bytes) -> None:
        digest = _digest(value)
        for _ in range(_PUTS):
            if self._unknown and await self._has_come_late() and self._stored == digest:
                return
            self._unknown.append(digest)
            del self._unknown[:-MAX_UNKNOWN_PUTS]
            try:
                self._is_stored(await self._metadata.put(self.path, value, self._version), digest)
            except BadVersionError:
                continue
            return
        raise StoreError(f"{self.path} changed during each attempt to store it, try again")

    async def _has_come_late(self) -> bool:
        """Return whether a put without an answer was stored. Raises StoreError, LedgerFenced if another value was."""
        found = await self._metadata.get(self.path)
        version, digest = (NOT_EXISTING, b"") if found is None else (found.version, _digest(found.value))
        if (version, digest) == (self._version, self._stored):
            return False
        following = 0 if self._version == NOT_EXISTING else self._version + 1
        if version != following or digest not in self._unknown:
            self.is_fenced = True
            error = self._fenced()
            logs.error("managed_ledger.fenced", managed_ledger=self.path, version=version, known_version=self._version)
            self.when_fenced(error)
            raise error
        self._is_stored(version, digest)
        return True

    def _is_stored(self, version: int, digest: bytes) -> None:
        """Record the stored version. Puts that followed an earlier version can no longer be stored."""
        self._version, self._stored = version, digest
        self._unknown.clear()

    def require_owned(self) -> None:
        """Raise LedgerFenced if another owner is known to have written the value."""
        if self.is_fenced:
            raise self._fenced()

    def _fenced(self) -> LedgerFenced:
        return LedgerFenced(f"{self.path} was changed by another broker, which owns the topic now; look it up again")

    # --- changes of one thing, taken back when they cannot be stored --------------------------------------------------

    async def change_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, and remove those that are None. Durable on return. Raises StoreError, and then nothing
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
        """Durable on return. Raises StoreError, and then nothing changed."""
        info = self._cursor(name, cursor_id)
        before, info.properties = info.properties, dict(properties)
        try:
            await self.save()
        except StoreError:
            info.properties = before
            raise

    async def announce_delayed(self, name: str, cursor_id: str) -> str:
        """Record in the metadata that the cursor store may contain delayed entries of this cursor. Return their
        record id. Raises StoreError.
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
            raise StoreError(f"cursor {name} of {self.path} is deleted")
        return info


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=16).digest()


def _nobody(error: LedgerFenced) -> None: ...


def _apply(properties: dict[str, str], changes: Mapping[str, str | None]) -> None:
    for key, value in changes.items():
        if value is None:
            properties.pop(key, None)
        else:
            properties[key] = value
