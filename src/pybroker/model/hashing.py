"""Hashes of message keys and of names on hash rings."""

from __future__ import annotations

import struct

import mmh3

_NON_NEGATIVE = 0x7FFF_FFFF


def key_hash(key: bytes) -> int:
    """Return the Murmur3 hash of a key without its sign (32-bit x86, seed 0): 0 to 2^31-1, as in Pulsar's clients and
    brokers.
    """
    return mmh3.hash(key, 0, False) & _NON_NEGATIVE


def java_string_hash(key: bytes) -> int:
    """Return Java's `String.hashCode` as an unsigned number. By default, clients choose a message's partition
    with it.
    """
    found = 0
    for (unit,) in struct.iter_unpack("<H", key.decode().encode("utf-16-le")):
        found = (31 * found + unit) & 0xFFFF_FFFF
    return found
