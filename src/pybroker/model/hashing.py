"""Hashes of message keys and of names on hash rings."""

from __future__ import annotations

import struct

import mmh3

_NON_NEGATIVE = 0x7FFF_FFFF


def key_hash(key: bytes) -> int:
    """Return Murmur3 32-bit (x86, seed 0) without its sign: 0..2^31-1, as Pulsar's clients and brokers hash keys."""
    return mmh3.hash(key, 0, False) & _NON_NEGATIVE


def java_string_hash(key: bytes) -> int:
    """Return Java's `String.hashCode` as an unsigned number: clients choose a message's partition by it unless
    configured otherwise.
    """
    found = 0
    for (unit,) in struct.iter_unpack("<H", key.decode().encode("utf-16-le")):
        found = (31 * found + unit) & 0xFFFF_FFFF
    return found
