"""Ack sets: the unacknowledged messages of a batch as bits. Bit i is message i of the batch, 1 = unacknowledged.

In memory a set is one int. On the wire and on disk it is a list of 64-bit words, least significant word first. The
protocol's field is a signed int64, so a word with the top bit set is negative there. Trailing zero words are omitted; a
missing word means "all acknowledged".

All costs are linear in the number of words, and independent of the number of messages that a client claims.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

WORD_BITS = 64
WORD_BYTES = WORD_BITS // 8
_WORD_MASK = (1 << WORD_BITS) - 1
_FEW_WORDS = 4
"""Up to this number, adding word by word is faster than conversion through bytes."""
_SIGN_BIT = 1 << (WORD_BITS - 1)


def full(message_count: int) -> int:
    """Return the ack set of a batch of which no message is acknowledged. The result uses one bit of memory per message,
    which may be much: a client may claim any `message_count`, even for a small entry.
    """
    return (1 << message_count) - 1


def word_count(message_count: int) -> int:
    return -(-message_count // WORD_BITS)


def from_words(words: Sequence[int]) -> int:
    if len(words) <= _FEW_WORDS:
        bits = 0
        for index, word in enumerate(words):
            bits |= (word & _WORD_MASK) << index * WORD_BITS
        return bits
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *[word & _WORD_MASK for word in words]), "little")


def to_words(bits: int) -> list[int]:
    if bits <= _WORD_MASK:
        return [bits - (1 << WORD_BITS) if bits & _SIGN_BIT else bits] if bits else []
    count = word_count(bits.bit_length())
    return list(struct.unpack(f"<{count}q", bits.to_bytes(count * WORD_BYTES, "little")))


def left_of(message_count: int, words: Sequence[int]) -> int:
    """Return, as bits, the messages of a batch that the ack set `words` of a client leaves unacknowledged. Bits beyond
    the `message_count` messages of the batch are ignored. The result never uses more memory than `words`.
    """
    bits = from_words(words[: word_count(message_count)])
    return bits & full(message_count) if bits.bit_length() > message_count else bits


def indexes(bits: int, first: int = 0) -> Iterator[int]:
    digits = f"{bits:b}"[::-1]  # repeated shifts of a large number would take quadratic time
    index = digits.find("1", first)
    while index >= 0:
        yield index
        index = digits.find("1", index + 1)


def count(words: Iterable[int]) -> int:
    unacked = 0
    for word in words:
        unacked += (word & _WORD_MASK).bit_count()
    return unacked
