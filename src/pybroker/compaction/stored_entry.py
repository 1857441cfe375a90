"""An entry of a compacted ledger: the entry as clients receive it, and its position in the topic. There are two formats.

    own      entry bytes | ledger id i64 | entry id i64                        little-endian
    Pulsar   n u32 | MessageIdData, n bytes | m u32 | entry bytes, m bytes     big-endian

The store decides: a store that Java brokers read too has Pulsar's format. In the own format, readers of the beginning of an
entry (publish time, metadata) need not know about the position.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import entry_message_count

_OWN_POSITION = struct.Struct("<qq")
_LENGTH = struct.Struct(">I")


class CompactedEntry(NamedTuple):
    """An entry of the compacted view. `position` is its position in the topic."""

    position: Position
    payload: bytes
    message_count: int


class StoredFormat(Protocol):
    """The format of all entries of a compacted ledger."""

    def encode(self, position: Position, payload: bytes) -> bytes: ...

    def decode(self, stored: bytes, message_count: int) -> CompactedEntry:
        """Decode a stored entry of a compacted ledger. `message_count`: its number of messages according to the store.
        Raises StoreError if the entry is damaged.
        """


class OwnFormat:
    """The format of ledgers that only this broker reads."""

    def encode(self, position: Position, payload: bytes) -> bytes:
        return payload + _OWN_POSITION.pack(*position)

    def decode(self, stored: bytes, message_count: int) -> CompactedEntry:
        if len(stored) < _OWN_POSITION.size:
            raise _damaged(stored)
        position = Position(*_OWN_POSITION.unpack_from(stored, len(stored) - _OWN_POSITION.size))
        return CompactedEntry(position, stored[: -_OWN_POSITION.size], message_count)


_NO_PARTITION = -1
"""Java brokers write it explicitly, so that the sizes of views are equal."""


class PulsarFormat:
    """The format of Java brokers. The store takes the message count from the beginning of a stored entry, where this
    format has the position. Therefore `decode` counts the messages itself.
    """

    def encode(self, position: Position, payload: bytes) -> bytes:
        message_id = pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id, partition=_NO_PARTITION)
        head = message_id.SerializeToString()
        return b"".join((_LENGTH.pack(len(head)), head, _LENGTH.pack(len(payload)), payload))

    def decode(self, stored: bytes, message_count: int) -> CompactedEntry:
        try:
            start = _LENGTH.size
            end = start + _LENGTH.unpack_from(stored)[0]
            head = pb.MessageIdData.FromString(stored[start:end])
            payload = stored[end + _LENGTH.size :]
            if _LENGTH.unpack_from(stored, end)[0] != len(payload):
                raise _damaged(stored)
        except (struct.error, DecodeError) as error:
            raise _damaged(stored) from error
        return CompactedEntry(Position(head.ledgerId, head.entryId), payload, entry_message_count(payload))


_OWN, _PULSAR = OwnFormat(), PulsarFormat()


def format_in(store: LedgerStore) -> StoredFormat:
    return _PULSAR if store.has_pulsar_layout else _OWN


def _damaged(stored: bytes) -> StoreError:
    return StoreError(f"an entry of {len(stored)} bytes is not an entry of a compacted ledger")
