"""Which messages of a batch are still unacknowledged, as bits: bit i is message i of the batch, 1 = unacknowledged.

In memory a set is one int. On the wire and on disk it is a list of 64-bit words, least significant word first; the
protocol's field is a signed int64, so a word with the top bit set may arrive, and has to leave, as a negative number.
Trailing zero words are left out, and a missing word means "all acknowledged".

What anything here costs is linear in the words that it is given or gives: an int is made from bytes at once, as adding one
word after the other would copy all before it each time; and nothing is as large as a batch claims to be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

WORD_BITS = 64
WORD_BYTES = WORD_BITS // 8
_WORD_MASK = (1 << WORD_BITS) - 1
_FEW_WORDS = 4
"""Up to here adding word after word is quicker than going by way of bytes."""
_SIGN_BIT = 1 << (WORD_BITS - 1)


def full(message_count: int) -> int:
    """The set of a batch of which nothing is acknowledged; as large as the batch, so `left_of` does without."""
    return (1 << message_count) - 1


def word_count(message_count: int) -> int:
    """How many words the set of a batch has at most."""
    return -(-message_count // WORD_BITS)


def from_words(words: Sequence[int]) -> int:
    """Words as they come, signed or unsigned, to bits."""
    if len(words) <= _FEW_WORDS:
        bits = 0
        for index, word in enumerate(words):
            bits |= (word & _WORD_MASK) << index * WORD_BITS
        return bits
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *[word & _WORD_MASK for word in words]), "little")


def to_words(bits: int) -> list[int]:
    """Bits to signed words, as the protocol's int64 field holds them; the empty set has no words."""
    if bits <= _WORD_MASK:
        return [bits - (1 << WORD_BITS) if bits & _SIGN_BIT else bits] if bits else []
    count = word_count(bits.bit_length())
    return list(struct.unpack(f"<{count}q", bits.to_bytes(count * WORD_BYTES, "little")))


def left_of(message_count: int, words: Sequence[int]) -> int:
    """Of a batch of so many messages, of which nothing was acknowledged, those that `words` leave unacknowledged.

    Bits behind the batch's end mean nothing, and the words that hold them are not looked at.
    """
    bits = from_words(words[: word_count(message_count)])
    return bits & full(message_count) if bits.bit_length() > message_count else bits


def indexes(bits: int, first: int = 0) -> Iterator[int]:
    """Yield the indexes of the messages in the set from `first` on, in ascending order."""
    digits = f"{bits:b}"[::-1]  # Repeated shifts of a large number would take quadratic time.
    index = digits.find("1", first)
    while index >= 0:
        yield index
        index = digits.find("1", index + 1)


def count(words: Iterable[int]) -> int:
    """How many messages of the batch are still unacknowledged."""
    unacked = 0
    for word in words:
        unacked += (word & _WORD_MASK).bit_count()
    return unacked
