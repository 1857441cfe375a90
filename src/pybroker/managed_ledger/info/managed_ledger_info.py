"""The managed ledger info in the metadata store: one JSON document with the ledgers and durable cursors of a managed
ledger.

A ledger or cursor is added to this document before it is used, and removed from it before it is deleted. So after a
crash each stored entry belongs to a listed ledger, and the space of deleted ledgers is freed. Most properties are
optional:

    {"version": 1, "ledgers": {...}, "serial": 3,
     "cursors": {"sub": {"id": "...", "position": [ledger, entry], "properties": {},
                         "delayed": true}},     there may be a record of delayed entries beside the cursor's own
     "properties": {"k": "v"},
     "created": 1767000000000,   creation time in milliseconds since 1970; absent in documents of earlier versions
     "terminated": true,         no more appends
     "trimmed": [4, 5],          ledgers that may still be in the store and must be deleted
     "last_index": 41,           index of the last message, which the last entry may know better; -1 before the first one
     "gone": [[2, 100], [3, 7]], the last trimmed ledgers with entries, and their numbers of entries
     "gone_until": 1,            some entries behind positions in this or an earlier ledger are trimmed, or the position is
                                 of an earlier topic of that name; absent in documents of earlier versions
     "compacted": {"ledger": 7, "entries": 3, "bytes": 250, "horizon": [ledger, entry]},
                                 the ledger with the remaining messages up to and including `horizon`
     "deleted": true}            everything named here must be deleted, and then this document
"""

from __future__ import annotations

import msgspec

from pybroker.errors import StoreError

FORMAT_VERSION = 1
TRANSACTIONS_CURSOR = "pulsar.transactions"
"""The cursor with the snapshots of a topic's transactions. Entries after its mark-delete position are read again, so
they are not trimmed.
"""


class CursorInfo(msgspec.Struct, omit_defaults=True):
    """A durable cursor; `position` is its mark-delete position at creation.

    The properties of the cursor `pulsar.dedup`, which belongs to no subscription, are the highest durable sequence ids
    by producer name.
    """

    id: str
    position: tuple[int, int]
    properties: dict[str, str] = {}
    delayed: bool = False

    @property
    def record_ids(self) -> tuple[str, ...]:
        return (self.id, delayed_record_id(self.id)) if self.delayed else (self.id,)


class CompactedInfo(msgspec.Struct, frozen=True):
    """A compacted view: `ledger` contains the last messages of all keys up to and including `horizon`."""

    ledger: int
    entries: int
    bytes: int
    horizon: tuple[int, int]


class ManagedLedgerInfo(msgspec.Struct, omit_defaults=True):
    """The decoded document; the module describes its properties."""

    version: int
    ledgers: msgspec.Raw
    cursors: dict[str, CursorInfo]
    serial: int
    terminated: bool = False
    trimmed: list[int] = []
    deleted: bool = False
    created: int = 0
    properties: dict[str, str] = {}
    last_index: int | None = None
    compacted: CompactedInfo | None = None
    gone: list[tuple[int, int]] = []
    gone_until: int | None = None


def delayed_record_id(cursor_id: str) -> str:
    return f"{cursor_id}/delayed"


def decode_info(path: str, value: bytes) -> ManagedLedgerInfo:
    try:
        info = msgspec.json.decode(value, type=ManagedLedgerInfo)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"the document {path} in the metadata store, the ledger list of a topic, is damaged: {error}. Restore a backup"
        ) from error
    if info.version > FORMAT_VERSION:
        raise StoreError(
            f"the metadata of {path} has version {info.version}, but this broker reads only versions up to "
            f"{FORMAT_VERSION}: start the newer version that wrote it"
        )
    return info
