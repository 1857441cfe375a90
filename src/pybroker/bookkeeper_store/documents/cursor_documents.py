"""The state of a cursor in Pulsar's formats: in its document, and in the entries of its cursor ledger. Pure.

Up to `MAX_RANGES` ranges of deleted entries are written as ranges, more as bitmaps of ledgers. Java brokers read both.
No range is omitted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from pybroker.bookkeeper_store.documents.document_compression import plain
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import (
    BatchedEntryDeletionIndexInfo,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
)
from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord, encode_whole
from pybroker.model import ack_set
from pybroker.model.entry_runs import end_of_run
from pybroker.model.position import MAX_ENTRY_ID, Position

STATE_IN_DOCUMENT = -1
"""The cursor ledger id of a cursor whose state is in its document."""
MAX_RANGES = 10_000
MAX_RANGES_IN_DOCUMENT = 1_000
MAX_DOCUMENT_BYTES = 256 * 1024
"""A larger state stays in the cursor ledger when the cursor is closed."""
_WORD_BYTES = 8
MessageRanges: TypeAlias = "RepeatedCompositeFieldContainer[MessageRange]"
AckSetInfos: TypeAlias = "RepeatedCompositeFieldContainer[BatchedEntryDeletionIndexInfo]"


def range_count(record: CursorRecord) -> int:
    return sum(len(holes) - holes.intersection_cardinality(holes.shift(1)) for holes in record.holes.values())


def position_info(record: CursorRecord, properties: dict[str, int]) -> bytes:
    """Encode the state of a cursor as an entry of its cursor ledger. `properties`: names and values of Pulsar's
    properties of the mark-delete position.
    """
    info = PositionInfo(ledger_id=record.mark_delete_position.ledger_id, entry_id=record.mark_delete_position.entry_id)
    if range_count(record) <= MAX_RANGES:
        _add_ranges(info.individual_deleted_messages, record.holes)
    else:
        for ledger_id in sorted(record.holes):
            info.individual_deleted_message_ranges.add(key=ledger_id, values=_words(record.holes[ledger_id]))
    for name, value in properties.items():
        info.properties.add(name=name, value=value)
    _add_ack_sets(info.batched_entry_deletion_index_info, record.ack_sets)
    if record.held:
        info.pending_transaction_acks = record.held
    return info.SerializeToString()


def decode_position_info(name: str, value: bytes) -> PositionInfo:
    """Decode an entry of the cursor ledger of the cursor `name`. Raises StoreError."""
    try:
        return PositionInfo.FromString(plain(name, value))
    except DecodeError as error:
        raise StoreError(f"an entry of the cursor ledger of {name} is damaged: {error}") from error


def decode_cursor_info(path: str, value: bytes) -> ManagedCursorInfo:
    try:
        return ManagedCursorInfo.FromString(plain(path, value))
    except DecodeError as error:
        raise StoreError(f"the metadata of the cursor {path} is damaged: {error}") from error


def state_of_entry(info: PositionInfo) -> bytes:
    """Convert `info`, an entry of a cursor ledger, to a cursor record with the state of the cursor
    (`cursor_record.py`).
    """
    holes = _holes(info.individual_deleted_messages)
    for each in info.individual_deleted_message_ranges:
        _entries(holes, each.key).update(_bitmap(each.values))
    mark = Position(info.ledger_id, info.entry_id)
    sets = _ack_sets(info.batched_entry_deletion_index_info)
    return encode_whole(mark, _filled(holes), sets, info.pending_transaction_acks)


def state_of_document(info: ManagedCursorInfo) -> bytes:
    """Convert `info`, the document of a cursor, to a cursor record (`cursor_record.py`). If the state of the cursor is
    in a cursor ledger, the record contains only the mark-delete position in the document, which may be outdated.
    """
    mark = Position(info.mark_delete_ledger_id, info.mark_delete_entry_id)
    if info.cursors_ledger_id != STATE_IN_DOCUMENT:
        return encode_whole(mark, {}, {})
    sets = _ack_sets(info.batched_entry_deletion_index_info)
    return encode_whole(mark, _filled(_holes(info.individual_deleted_messages)), sets, info.pending_transaction_acks)


def put_state(info: ManagedCursorInfo, record: CursorRecord, properties: dict[str, int]) -> None:
    """Store the whole state of a cursor in its document. `properties`: names and values of Pulsar's properties
    of the mark-delete position.
    """
    clear_state(info, record.mark_delete_position)
    info.cursors_ledger_id = STATE_IN_DOCUMENT
    _add_ranges(info.individual_deleted_messages, record.holes)
    _add_ack_sets(info.batched_entry_deletion_index_info, record.ack_sets)
    for name, value in properties.items():
        info.properties.add(name=name, value=value)
    if record.held:
        info.pending_transaction_acks = record.held


def clear_state(info: ManagedCursorInfo, mark: Position) -> None:
    """Remove the state from a cursor's document, and set its mark-delete position to `mark`."""
    info.mark_delete_ledger_id, info.mark_delete_entry_id = mark
    for field in (
        "individual_deleted_messages",
        "batched_entry_deletion_index_info",
        "properties",
        "pending_transaction_acks",
    ):
        info.ClearField(field)


def _add_ranges(ranges: MessageRanges, holes: dict[int, BitMap]) -> None:
    for ledger_id in sorted(holes):
        deleted = holes[ledger_id]
        start: int | None = deleted.min() if deleted else None
        while start is not None:
            end = end_of_run(deleted, start)
            added = ranges.add()
            added.lower_endpoint.ledger_id, added.lower_endpoint.entry_id = ledger_id, start - 1
            added.upper_endpoint.ledger_id, added.upper_endpoint.entry_id = ledger_id, end
            start = deleted.next_set_bit(end + 1) if end < deleted.max() else None


def _holes(ranges: Iterable[MessageRange]) -> dict[int, BitMap]:
    """Return the deleted entries. A range over several ledgers covers the rest of the first ledger and the start of the
    last.
    """
    holes: dict[int, BitMap] = {}
    for each in ranges:
        lower, upper = each.lower_endpoint, each.upper_endpoint
        first = lower.entry_id + 1
        if lower.ledger_id != upper.ledger_id:
            _entries(holes, lower.ledger_id).add_range(min(max(0, first), MAX_ENTRY_ID), MAX_ENTRY_ID + 1)
            first = 0
        end = min(upper.entry_id, MAX_ENTRY_ID) + 1
        if max(0, first) < end:
            _entries(holes, upper.ledger_id).add_range(max(0, first), end)
    return holes


def _entries(holes: dict[int, BitMap], ledger_id: int) -> BitMap:
    return holes.setdefault(ledger_id, BitMap())


def _filled(holes: dict[int, BitMap]) -> dict[int, BitMap]:
    return {ledger_id: entries for ledger_id, entries in holes.items() if entries}


def _add_ack_sets(infos: AckSetInfos, sets: dict[Position, int]) -> None:
    for (ledger_id, entry_id), bits in sets.items():
        added = infos.add(delete_set=ack_set.to_words(bits))
        added.position.ledger_id, added.position.entry_id = ledger_id, entry_id


def _ack_sets(infos: Iterable[BatchedEntryDeletionIndexInfo]) -> dict[Position, int]:
    sets = {
        Position(each.position.ledger_id, each.position.entry_id): ack_set.from_words(each.delete_set)
        for each in infos
        if 0 <= each.position.entry_id <= MAX_ENTRY_ID
    }
    return {position: bits for position, bits in sets.items() if bits}


def _words(entries: BitMap) -> list[int]:
    bits = bytearray((entries.max() // 64 + 1) * _WORD_BYTES)
    for entry_id in entries:
        bits[entry_id >> 3] |= 1 << (entry_id & 7)
    return list(struct.unpack(f"<{len(bits) // _WORD_BYTES}q", bits))


def _bitmap(words: Iterable[int]) -> BitMap:
    entries = BitMap()
    for index, word in enumerate(words):
        bits = word & ((1 << 64) - 1)
        first = index * 64
        if bits == (1 << 64) - 1:
            entries.add_range(first, first + 64)
            continue
        while bits:
            low = bits & -bits
            entries.add(first + low.bit_length() - 1)
            bits ^= low
    return entries
