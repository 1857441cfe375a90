"""The managed ledger info in the metadata store: one JSON document with the ledgers and durable cursors of a managed ledger.

It is written before anything that it names is used, and before anything that it no longer names is deleted, so that after a crash
nothing receipted hangs in the air and nothing deleted takes space for ever:

    {"version": 1, "ledgers": {...}, "serial": 3,
     "cursors": {"sub": {"id": "...", "position": [ledger, entry], "properties": {},
                         "delayed": true}},     only if so: there may be a record of delayed entries beside the cursor's own
     "properties": {"k": "v"},   only if any
     "created": 1767000000000,   when it was made, in milliseconds since 1970; documents of earlier versions do not say
     "terminated": true,         only if so: it is closed for appends
     "trimmed": [4, 5],          only if any: ledgers that may still be in the store and are to be deleted
     "last_index": 41,           only if indexes were ever added to its entries: that of its last message, which the last
                                 entry may know better; -1 before the first one
     "gone": [[2, 100], [3, 7]], the last ledgers with entries that were trimmed, and how many entries they had
     "gone_until": 1,            what followed a place in this ledger or an earlier one is not all there any more, or the place is
                                 of an earlier topic of that name; documents of earlier versions do not say
     "compacted": {"ledger": 7, "entries": 3, "bytes": 250, "horizon": [ledger, entry]},
                                 only if it was compacted: the ledger that holds what is left of everything up to `horizon`
     "deleted": true}            only if so: everything named here is being deleted, and then this document
"""

from __future__ import annotations

import msgspec

from pybroker.errors import StoreError

FORMAT_VERSION = 1
TRANSACTIONS_CURSOR = "pulsar.transactions"
"""The cursor with the snapshots of a topic's transactions, instead of a record of delayed entries. Entries behind its mark-delete
position are read again, so they are not trimmed.
"""


class CursorInfo(msgspec.Struct, omit_defaults=True):
    """A durable cursor; `position` is its mark-delete position when it was made.

    Those of `pulsar.dedup`, which is no subscription, are producer names, each with its highest sequence id that is durable.
    """

    id: str
    position: tuple[int, int]
    properties: dict[str, str] = {}
    delayed: bool = False

    @property
    def record_ids(self) -> tuple[str, ...]:
        """The ids under which something of it is stored."""
        return (self.id, delayed_record_id(self.id)) if self.delayed else (self.id,)


class CompactedInfo(msgspec.Struct, frozen=True):
    """A compacted view: `ledger` contains the last messages of all keys up to and including `horizon`."""

    ledger: int
    entries: int
    bytes: int
    horizon: tuple[int, int]


class ManagedLedgerInfo(msgspec.Struct, omit_defaults=True):
    """The document."""

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
    """The id of the cursor's delayed entries in the cursor store."""
    return f"{cursor_id}/delayed"


def decode_info(path: str, value: bytes) -> ManagedLedgerInfo:
    """The document found at metadata path `path`. Raises StoreError."""
    try:
        info = msgspec.json.decode(value, type=ManagedLedgerInfo)
    except msgspec.DecodeError as error:
        raise StoreError(f"metadata of {path} is damaged: {error}") from error
    if info.version > FORMAT_VERSION:
        raise StoreError(
            f"metadata of {path} has version {info.version}, this broker reads versions up to {FORMAT_VERSION}"
        )
    return info
