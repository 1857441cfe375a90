"""The documents of a managed ledger in Pulsar's layout: Pulsar's own, and a document of pybroker beside it (the
extras). Pure.

Pulsar's document has the ledgers with entries and bytes, the position of a terminated managed ledger, and properties.
The last ledger has no counts, unless the managed ledger is terminated: its next owner counts it. So a document lists at
most one open ledger, and closing a managed ledger does not change it.

The document of the cursor `__compaction` has the compacted view. The extras have all other values. They may be older
than Pulsar's document, or missing, because Java brokers do not know them; no data is lost then. They are valid for a
managed ledger that has or had the ledger `last_ledger`. A deletion in the extras is valid only while that is the last
ledger, since each owner begins with a new ledger.
"""

from __future__ import annotations

import msgspec
from google.protobuf.message import DecodeError

from pybroker.bookkeeper_store.documents.cursor_node import COMPACTION_CURSOR
from pybroker.bookkeeper_store.documents.document_compression import plain
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedLedgerInfo as PulsarInfo
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary
from pybroker.managed_ledger.info.managed_ledger_info import (
    FORMAT_VERSION,
    CursorInfo,
    ManagedLedgerInfo,
)
from pybroker.managed_ledger.ledger_list import LedgerList

EXTRAS_VERSION = 1


class Extras(msgspec.Struct, omit_defaults=True):
    """Values for which Pulsar's document has no field. `messages`: message counts of ledgers. `records`: ids of the
    records with delayed entries, by cursor name. `cursors`: mark-delete positions of cursors that Java brokers must not
    see.
    """

    version: int
    last_ledger: int
    serial: int = 0
    created: int = 0
    deleted: bool = False
    trimmed: list[int] = []
    last_index: int | None = None
    gone: list[tuple[int, int]] = []
    gone_until: int | None = None
    messages: dict[int, int] = {}
    records: dict[str, str] = {}
    cursors: dict[str, tuple[int, int]] = {}


def decode_pulsar_info(path: str, value: bytes) -> PulsarInfo:
    try:
        return PulsarInfo.FromString(plain(path, value))
    except DecodeError as error:
        raise StoreError(
            f"the document {path} in the metadata store, the ledger list of a topic, is damaged: {error}. Restore a backup"
        ) from error


def decode_extras(path: str, value: bytes) -> Extras | None:
    """Decode pybroker's own document (extras) of the managed ledger at `path`. Return None if it is damaged, which
    counts as missing. Raises StoreError if it is of a newer version.
    """
    try:
        extras = msgspec.json.decode(value, type=Extras)
    except msgspec.DecodeError:
        return None
    if extras.version > EXTRAS_VERSION:
        raise StoreError(
            f"the additional metadata of {path} has version {extras.version}, but this broker reads only "
            f"versions up to {EXTRAS_VERSION}: start the newer version that wrote it"
        )
    return extras


def ledger_info(pulsar: PulsarInfo, extras: Extras | None, cursors: dict[str, CursorInfo]) -> ManagedLedgerInfo:
    """Combine the documents of a managed ledger and its cursors. A ledger without an entry count is open, and its next
    owner recovers it.
    """
    is_terminated = pulsar.HasField("terminated_position")
    ids = [row.ledger_id for row in pulsar.ledger_info]
    if extras is not None and ids and extras.last_ledger < ids[0]:
        extras = None  # extras of an earlier managed ledger of this name
    messages = {} if extras is None else extras.messages
    last_id = max(ids, default=-1)
    ledgers = LedgerList()
    for row in sorted(pulsar.ledger_info, key=lambda row: row.ledger_id):
        ledgers.add_ledger(row.ledger_id)
        is_last = row.ledger_id == last_id
        if row.entries > 0 and (is_terminated or not is_last):
            summary = LedgerSummary(row.ledger_id, row.entries, messages.get(row.ledger_id), row.size)
            ledgers.close_ledger(summary, row.timestamp)
    found = ManagedLedgerInfo(
        FORMAT_VERSION,
        msgspec.Raw(ledgers.encode()),
        cursors,
        0,
        terminated=is_terminated,
        properties={each.key: each.value for each in pulsar.properties},
    )
    if extras is not None:
        found.serial = extras.serial
        found.created = extras.created
        found.deleted = extras.deleted and ids[-1:] == [extras.last_ledger]
        found.trimmed = [each for each in extras.trimmed if each not in ids]
        found.last_index = extras.last_index
        found.gone, found.gone_until = extras.gone, extras.gone_until
    return found


def pulsar_document(before: PulsarInfo, info: ManagedLedgerInfo, now_ms: int) -> bytes:
    """Encode Pulsar's document for `info`. `before`: the stored document, whose unknown fields are kept. `now_ms`: the
    timestamp for ledgers without a stored timestamp, in milliseconds since 1970.
    """
    ledgers = LedgerList.decode(bytes(info.ledgers), 0)
    rows = {row.ledger_id: row for row in before.ledger_info}
    after = PulsarInfo()
    after.CopyFrom(before)
    del after.ledger_info[:]
    last_id = ledgers.ledger_ids()[-1] if len(ledgers) else None
    for row in ledgers.rows():
        stored = after.ledger_info.add(ledger_id=row.ledger_id)
        if row.ledger_id in rows:
            stored.CopyFrom(rows[row.ledger_id])
        if row.is_sealed and (info.terminated or row.ledger_id != last_id):
            stored.entries, stored.size, stored.timestamp = row.entry_count, row.size_bytes, row.closed_ms
        elif not stored.HasField("timestamp"):
            stored.timestamp = now_ms
    if info.terminated:
        last = ledgers.last_position
        after.terminated_position.ledger_id, after.terminated_position.entry_id = last
    else:
        after.ClearField("terminated_position")
    del after.properties[:]
    for key, value in info.properties.items():
        after.properties.add(key=key, value=value)
    return after.SerializeToString(deterministic=True)


def extras_document(info: ManagedLedgerInfo, hidden_cursors: dict[str, tuple[int, int]]) -> bytes:
    """Encode pybroker's own document (extras) for `info`. `hidden_cursors`: mark-delete positions of cursors without a
    document.
    """
    ledgers = LedgerList.decode(bytes(info.ledgers), 0)
    extras = Extras(
        EXTRAS_VERSION,
        ledgers.ledger_ids()[-1] if len(ledgers) else -1,
        info.serial,
        info.created,
        info.deleted,
        _to_be_deleted(info),
        info.last_index,
        info.gone,
        info.gone_until,
        {row.ledger_id: row.message_count for row in ledgers.rows() if row.is_sealed and row.message_count is not None},
        {name: cursor.id for name, cursor in info.cursors.items() if cursor.delayed},
        hidden_cursors,
    )
    return msgspec.json.encode(extras)


def _to_be_deleted(info: ManagedLedgerInfo) -> list[int]:
    """Return the ledgers that must be deleted. The ledger of a compacted view without its cursor is included, because
    no other document lists it.
    """
    if info.compacted is None or COMPACTION_CURSOR in info.cursors:
        return info.trimmed
    return [*info.trimmed, info.compacted.ledger]
