"""Binary format of the stored acknowledgements of a cursor: whole states (snapshots) and changes (deltas).

Little-endian:

    version u8 | kind u8 | mark-delete ledger i64, entry i64 | ledger count u32 | ack set count u32
    for each ledger:    ledger id i64 | length u32 | roaring bitmap of deleted entries, portable format
    for each ack set:   ledger id i64 | entry id u32 | word count u32 | words u64, least significant first
    in version 2:       pending transaction acks, to the end (`pending_transaction_acks.py`)

Version 2 is written only with pending transaction acks, so that earlier versions can read other cursors.

Kind WHOLE replaces the state. Kind CHANGES adds to the state: the mark-delete position only moves forward, deleted
entries are added, and an ack set replaces the older one of its entry.
"""

from __future__ import annotations

import struct

from pyroaring import BitMap

from pybroker.errors import StoreError
from pybroker.model import ack_set
from pybroker.model.position import Position

FORMAT_VERSION = 2
_WITHOUT_HELD = 1
_WHOLE = 0
_CHANGES = 1
_HEADER = struct.Struct("<BBqqII")
_LEDGER = struct.Struct("<qI")
_ACK_SET = struct.Struct("<qII")


class CursorRecord:
    """A decoded snapshot or delta. Raises StoreError for a damaged record or an unknown version."""

    __slots__ = ("ack_sets", "held", "holes", "is_whole", "mark_delete_position")

    def __init__(self, data: bytes) -> None:
        if data and data[0] > FORMAT_VERSION:
            raise StoreError(
                f"the stored acknowledgements of the subscription have format version {data[0]}, but this broker reads only "
                f"versions up to {FORMAT_VERSION}: start the newer version that wrote it"
            )
        try:
            self._parse(data)
        except (struct.error, ValueError, IndexError) as error:
            raise StoreError(
                f"the stored acknowledgements of the subscription (a record of {len(data)} bytes) are damaged: {error}. Run "
                "`pybroker ledger verify`"
            ) from error

    def _parse(self, data: bytes) -> None:
        version, kind, mark_ledger_id, mark_entry_id, ledger_count, ack_set_count = _HEADER.unpack_from(data)
        self.is_whole = kind == _WHOLE
        self.mark_delete_position = Position(mark_ledger_id, mark_entry_id)
        self.holes: dict[int, BitMap] = {}
        self.ack_sets: dict[Position, int] = {}
        offset = _HEADER.size
        for _ in range(ledger_count):
            ledger_id, length = _LEDGER.unpack_from(data, offset)
            offset += _LEDGER.size
            if offset + length > len(data):
                raise ValueError(f"the record ends within the bitmap of the acknowledged entries of ledger {ledger_id}")
            self.holes[ledger_id] = BitMap.deserialize(data[offset : offset + length])
            offset += length
        for _ in range(ack_set_count):
            ledger_id, entry_id, word_count = _ACK_SET.unpack_from(data, offset)
            offset += _ACK_SET.size
            end = offset + word_count * ack_set.WORD_BYTES
            if end > len(data):
                raise ValueError(f"the record ends within the ack set of entry {ledger_id}:{entry_id}")
            self.ack_sets[Position(ledger_id, entry_id)] = int.from_bytes(data[offset:end], "little")
            offset = end
        self.held = data[offset:] if version > _WITHOUT_HELD else b""
        offset += len(self.held)
        if offset != len(data) or kind not in (_WHOLE, _CHANGES):
            raise ValueError(
                f"{len(data) - offset} bytes follow the last ack set of the record"
                if offset != len(data)
                else f"the kind {kind} of the record is unknown"
            )


def encode_whole(mark: Position, holes: dict[int, BitMap], ack_sets: dict[Position, int], held: bytes = b"") -> bytes:
    """Return a record of the whole state of a cursor. `mark`: the mark-delete position. `holes`: the individually
    deleted entries by ledger; the function compacts these bitmaps in place. `ack_sets`: the partly acknowledged
    batches, each with a bit set of its messages. `held`: the encoded pending transaction acks.
    """
    return _encode(_WHOLE, mark, holes, ack_sets, held)


def encode_changes(mark: Position, holes: dict[int, BitMap], ack_sets: dict[Position, int], held: bytes = b"") -> bytes:
    return _encode(_CHANGES, mark, holes, ack_sets, held)


def _encode(kind: int, mark: Position, holes: dict[int, BitMap], ack_sets: dict[Position, int], held: bytes) -> bytes:
    version = FORMAT_VERSION if held else _WITHOUT_HELD
    parts = [_HEADER.pack(version, kind, mark.ledger_id, mark.entry_id, len(holes), len(ack_sets))]
    for ledger_id, deleted in holes.items():
        deleted.run_optimize()
        bitmap = deleted.serialize()
        parts.append(_LEDGER.pack(ledger_id, len(bitmap)))
        parts.append(bitmap)
    for position, bits in ack_sets.items():
        word_count = ack_set.word_count(bits.bit_length())
        parts.append(_ACK_SET.pack(position.ledger_id, position.entry_id, word_count))
        parts.append(bits.to_bytes(word_count * ack_set.WORD_BYTES, "little"))
    parts.append(held)
    return b"".join(parts)
