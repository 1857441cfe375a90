"""Which messages of a batch are still unacknowledged, as bits: bit i is message i of the batch, 1 = unacknowledged.

In memory a set is one int. On the wire and on disk it is a list of 64-bit words, least significant word first; the
protocol's field is a signed int64, so a word with the top bit set may arrive, and has to leave, as a negative number.
Trailing zero words are left out, and a missing word means "all acknowledged".
"""

from __future__ import annotations

from collections.abc import Iterable

WORD_BITS = 64
_WORD_MASK = (1 << WORD_BITS) - 1
_SIGN_BIT = 1 << (WORD_BITS - 1)


def full(message_count: int) -> int:
    """The set of a batch of which nothing is acknowledged."""
    return (1 << message_count) - 1


def from_words(words: Iterable[int]) -> int:
    """Words as they come, signed or unsigned, to bits."""
    bits = 0
    shift = 0
    for word in words:
        bits |= (word & _WORD_MASK) << shift
        shift += WORD_BITS
    return bits


def to_words(bits: int) -> list[int]:
    """Bits to signed words, as the protocol's int64 field holds them; the empty set has no words."""
    words: list[int] = []
    while bits:
        word = bits & _WORD_MASK
        words.append(word - (1 << WORD_BITS) if word & _SIGN_BIT else word)
        bits >>= WORD_BITS
    return words


def count(words: Iterable[int]) -> int:
    """How many messages of the batch are still unacknowledged."""
    unacked = 0
    for word in words:
        unacked += (word & _WORD_MASK).bit_count()
    return unacked
