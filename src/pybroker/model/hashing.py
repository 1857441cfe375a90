"""The hash of message keys and of the names that are spread over hash rings."""

from __future__ import annotations

import mmh3

_NON_NEGATIVE = 0x7FFF_FFFF


def key_hash(key: bytes) -> int:
    """Murmur3 32-bit (x86, seed 0) without its sign: 0..2^31-1, as Pulsar's clients and brokers hash keys."""
    return mmh3.hash(key, 0, False) & _NON_NEGATIVE
