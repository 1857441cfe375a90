"""Storage of managed ledger infos as one JSON value each (`managed_ledger_info.py`).

Failure: a put that fails, or whose caller is cancelled, may still be stored, now or later. The next store reads the
stored value, and continues only if this object has stored it or tried to store it. Any other value comes from another
owner.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from pybroker.errors import BadVersionError, StoreError
from pybroker.managed_ledger.info.info_records import InfoRecord, InfoRecords, LoadedInfo, fenced
from pybroker.managed_ledger.info.managed_ledger_info import ManagedLedgerInfo, decode_info
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, Versioned
from pybroker.runtime import logs

MAX_UNKNOWN_PUTS = 100
"""Maximum number of unanswered puts whose value is remembered.

If an older one is stored late, its value is taken for another owner's.
"""
_PUTS = 3
"""The first put finds the wrong version if an earlier one was stored late, the second one only if another owner writes.
"""


class JsonRecords(InfoRecords):
    """Infos of ledgers that no other broker can read."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def load(self, path: str) -> LoadedInfo:
        found = await self._metadata.get(path)
        info = None if found is None else decode_info(path, found.value)
        return LoadedInfo(info, JsonRecord(self._metadata, path, found), 0 if found is None else len(found.value))

    async def exists(self, path: str) -> bool:
        found = await self._metadata.get(path)
        return found is not None and not decode_info(path, found.value).deleted

    async def create(self, path: str, info: ManagedLedgerInfo) -> None:
        await self._metadata.put(path, msgspec.json.encode(info), NOT_EXISTING)


class JsonRecord(InfoRecord):
    """The managed ledger info at one path, as one JSON value."""

    def __init__(self, metadata: MetadataStore, path: str, found: Versioned | None) -> None:
        """`found` is the stored value at `path`, None if there is none."""
        self.path = path
        self._metadata = metadata
        self._version = NOT_EXISTING if found is None else found.version
        self._stored = b"" if found is None else digest(found.value)
        self._unknown: list[bytes] = []  # values of puts that follow `_version` and may have been stored

    @property
    def version(self) -> int:
        return self._version

    async def store(self, info: ManagedLedgerInfo) -> None:
        value = msgspec.json.encode(info)
        wanted = digest(value)
        for _ in range(_PUTS):
            if self._unknown and await self._has_come_late() and self._stored == wanted:
                return
            self._unknown.append(wanted)
            del self._unknown[:-MAX_UNKNOWN_PUTS]
            try:
                self._is_stored(await self._metadata.put(self.path, value, self._version), wanted)
            except BadVersionError:
                continue
            return
        raise StoreError(
            f"the document {self.path} could not be stored, because another process changed it during each attempt: try again"
        )

    async def delete(self) -> None:
        await self._metadata.delete(self.path, self._version)

    async def _has_come_late(self) -> bool:
        """Return whether an earlier put that failed or was not answered was stored after all.

        Raises StoreError; LedgerFenced if another owner's value was stored.
        """
        found = await self._metadata.get(self.path)
        version, stored = (NOT_EXISTING, b"") if found is None else (found.version, digest(found.value))
        if (version, stored) == (self._version, self._stored):
            return False
        following = 0 if self._version == NOT_EXISTING else self._version + 1
        if version != following or stored not in self._unknown:
            logs.error("managed_ledger.fenced", managed_ledger=self.path, version=version, known_version=self._version)
            raise fenced(self.path)
        self._is_stored(version, stored)
        return True

    def _is_stored(self, version: int, stored: bytes) -> None:
        """Record the stored version. Puts that followed an earlier version can no longer be stored."""
        self._version, self._stored = version, stored
        self._unknown.clear()


def digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=16).digest()
