"""The bytes of an entry on the wire and on the disks of bookies: header, digest, payload.

The header has the ids of ledger and entry, the last entry that was confirmed when this one was sent, and the payload
bytes of the ledger up to and including this entry. The digest covers header and payload.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from pybroker.bookkeeper.errors import DamagedEntry
from pybroker.bookkeeper.protocol.frames import ADD_HEAD_SIZE, add_head
from pybroker.wire.core import COMPILED, Core

_HEADER = struct.Struct(">qqqq")
_LAC_HEADER = struct.Struct(">qq")
_pack_header = _HEADER.pack
HEADER_SIZE = _HEADER.size
_pack_u32 = struct.Struct(">I").pack
_pack_u64 = struct.Struct(">Q").pack
MASTER_KEY_SIZE = 20


class DigestType(IntEnum):
    """The digest that protects entries, with its number in the ledger's metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class Entry(NamedTuple):
    """A stored entry. `last_confirmed`: the id of the last entry that was confirmed when this one was sent.
    `length_bytes`: the payload bytes of the ledger up to and including this entry.
    """

    entry_id: int
    last_confirmed: int
    length_bytes: int
    payload: bytes


class EntryFormat:
    """Encodes, decodes and verifies the entries of one ledger.

    With the digest CRC32C, the compiled core encodes adds and verifies entries; Python reports damaged entries.
    """

    __slots__ = ("_add_head", "_core", "_digest", "digest_size", "ledger_id", "master_key")

    def __init__(
        self, ledger_id: int, digest_type: DigestType, password: bytes, compiled: Core | None = COMPILED
    ) -> None:
        is_fast = compiled is not None and compiled.CRC32C != "software" and digest_type is DigestType.CRC32C
        self._core = compiled if is_fast else None
        self.ledger_id = ledger_id
        self.master_key = master_key(password)
        self._add_head = add_head(self.master_key)
        self._digest, self.digest_size = _digest_of(digest_type, password)

    def pack(self, entry_id: int, last_confirmed: int, length_bytes: int, payload: bytes) -> bytes:
        header = _pack_header(self.ledger_id, entry_id, last_confirmed, length_bytes)
        return b"".join((header, self._digest(header, payload), payload))

    def pack_add(self, entry_id: int, last_confirmed: int, length_bytes: int, payload: bytes) -> bytes:
        """Encode the request to store an entry. `last_confirmed`: the id of the last confirmed entry. `length_bytes`:
        the payload bytes of the ledger up to and including this entry.
        """
        if self._core is not None:
            return self._core.pack_ledger_add(
                self._add_head, self.ledger_id, entry_id, last_confirmed, length_bytes, payload
            )
        header = _pack_header(self.ledger_id, entry_id, last_confirmed, length_bytes)
        size_bytes = ADD_HEAD_SIZE + HEADER_SIZE + self.digest_size + len(payload)
        return b"".join((_pack_u32(size_bytes), self._add_head, header, self._digest(header, payload), payload))

    def unpack(self, stored: bytes, entry_id: int | None) -> Entry:
        """Decode a stored entry and check its digest, ledger and id (`entry_id`, None for any). Raises DamagedEntry."""
        if self._core is not None and entry_id is not None:
            found = self._core.unpack_ledger_entry(stored, self.ledger_id, entry_id)
            if found is not None:
                return Entry(entry_id, *found)
        start = HEADER_SIZE + self.digest_size
        if len(stored) < start:
            raise DamagedEntry(
                f"Entry {entry_id} of ledger {self.ledger_id} is damaged: it has {len(stored)} bytes, fewer "
                f"than the minimum of {start}."
            )
        ledger_id, stored_id, last_confirmed, length_bytes = _HEADER.unpack_from(stored)
        payload = stored[start:]
        if self._digest(stored[:HEADER_SIZE], payload) != stored[HEADER_SIZE:start]:
            raise DamagedEntry(f"Entry {entry_id} of ledger {self.ledger_id} is damaged: its digest is wrong.")
        if ledger_id != self.ledger_id or (stored_id != entry_id if entry_id is not None else stored_id < 0):
            raise DamagedEntry(
                f"A bookie sent entry {stored_id} of ledger {ledger_id} instead of entry {entry_id} of ledger {self.ledger_id}."
            )
        if not -1 <= last_confirmed < stored_id or length_bytes < len(payload):
            raise DamagedEntry(
                f"Entry {stored_id} of ledger {ledger_id} is damaged: the fields of its header contradict each other."
            )
        return Entry(stored_id, last_confirmed, length_bytes, payload)

    def pack_last_confirmed(self, last_confirmed: int) -> bytes:
        """Encode the id of the last confirmed entry, with a digest, for the request WRITE_LAC."""
        header = _LAC_HEADER.pack(self.ledger_id, last_confirmed)
        return header + self._digest(header, b"")

    def unpack_last_confirmed(self, record: bytes) -> int:
        """Decode and check a record of `pack_last_confirmed`, and return the id. Raises DamagedEntry."""
        header = record[: _LAC_HEADER.size]
        if len(record) < _LAC_HEADER.size or record[_LAC_HEADER.size :] != self._digest(header, b""):
            raise DamagedEntry(
                f"The number of the last confirmed entry of ledger {self.ledger_id} is damaged: its digest is wrong."
            )
        ledger_id, last_confirmed = _LAC_HEADER.unpack(header)
        if ledger_id != self.ledger_id or last_confirmed < -1:
            raise DamagedEntry(
                f"A bookie sent the last confirmed entry of ledger {ledger_id} instead of ledger {self.ledger_id}."
            )
        return int(last_confirmed)


def master_key(password: bytes) -> bytes:
    """Return the key for a ledger's password. Bookies refuse a request to write or recover the ledger if its key
    differs.
    """
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def _digest_of(digest_type: DigestType, password: bytes) -> tuple[Callable[[bytes, bytes], bytes], int]:
    if digest_type is DigestType.CRC32C:
        return _crc32c, 4
    if digest_type is DigestType.CRC32:
        return _crc32, 8
    if digest_type is DigestType.DUMMY:
        return _nothing, 0
    key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()

    def mac(header: bytes, payload: bytes) -> bytes:
        state = hmac.new(key, header, "sha1")
        state.update(payload)
        return state.digest()

    return mac, 20


def _crc32c(header: bytes, payload: bytes) -> bytes:
    return _pack_u32(crc32c(payload, crc32c(header)))


def _crc32(header: bytes, payload: bytes) -> bytes:
    return _pack_u64(zlib.crc32(payload, zlib.crc32(header)))


def _nothing(_header: bytes, _payload: bytes) -> bytes:
    return b""
