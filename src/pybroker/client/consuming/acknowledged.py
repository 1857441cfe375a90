"""Partly acknowledged batches of a consumer. Pure.

A broker accepts acknowledgements of whole entries only, unless batch index acknowledgement is enabled. So the client
waits until all messages of a batch are acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict

from pybroker.client.message import MessageId

MAX_PARTLY = 100_000
"""Maximum number of partly acknowledged batches, and of unacknowledged chunked messages. The oldest one is dropped; the
broker delivers all of it again.
"""
MAX_PARTLY_BITS = 1 << 27
"""Maximum number of bits of the partly acknowledged batches, one per message. Above it, the oldest batch is dropped."""
_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1


class PartlyAcknowledged:
    """The batches of one partition of which the caller has acknowledged some messages, but not all."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[int, int], int] = OrderedDict()  # bits of the unacknowledged messages
        self._bits = 0  # of all numbers in `_left`

    def __len__(self) -> int:
        return len(self._left)

    def is_whole(self, message_id: MessageId) -> bool:
        """Record the acknowledgement of a message. Return True if all messages of its entry are now acknowledged."""
        if message_id.batch_size <= 1:
            return True
        at = (message_id.ledger_id, message_id.entry_id)
        left = self._take(at, message_id.batch_size) & ~(1 << message_id.batch_index)
        if left:
            self._keep(at, left)
        return not left

    def _take(self, at: tuple[int, int], batch_size: int) -> int:
        """Remove and return the bits of a batch; all bits if none of its messages is acknowledged."""
        left = self._left.pop(at, None)
        if left is None:
            return (1 << batch_size) - 1
        self._bits -= left.bit_length()
        return left

    def _keep(self, at: tuple[int, int], left: int) -> None:
        self._left[at] = left
        self._bits += left.bit_length()
        while len(self._left) > MAX_PARTLY or self._bits > MAX_PARTLY_BITS:
            _, dropped = self._left.popitem(last=False)
            self._bits -= dropped.bit_length()

    def up_to(self, message_id: MessageId) -> tuple[int, int]:
        """Record a cumulative acknowledgement. Return ledger id and entry id of the last entry up to which all messages
        are acknowledged.
        """
        at = (message_id.ledger_id, message_id.entry_id)
        for each in [each for each in self._left if each < at]:
            self._take(each, 0)
        if message_id.batch_size <= 1:
            self._take(at, 0)
            return at
        left = self._take(at, message_id.batch_size) & ~((2 << message_id.batch_index) - 1)
        if not left:
            return at
        self._keep(at, left)
        return message_id.ledger_id, message_id.entry_id - 1

    def clear(self) -> None:
        self._left.clear()
        self._bits = 0


class EntriesOfParts:
    """The entries of each chunked message of one partition, by the id of the message, which is the id of its last
    chunk.

    At most `MAX_PARTLY` messages are kept. Of other messages, only the last chunk is acknowledged.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, entries: list[tuple[int, int]]) -> None:
        self._entries[entries[-1]] = entries
        self._entries.move_to_end(entries[-1])
        if len(self._entries) > MAX_PARTLY:
            self._entries.popitem(last=False)

    def take(self, at: tuple[int, int]) -> list[tuple[int, int]]:
        return self._entries.pop(at, None) or [at]

    def drop_up_to(self, at: tuple[int, int]) -> None:
        for each in [each for each in self._entries if each <= at]:
            del self._entries[each]


def ack_set(message_id: MessageId, *, is_cumulative: bool) -> list[int]:
    """Return the ack set that acknowledges this message of a batch, or with `is_cumulative` this and all earlier
    messages. The words are signed 64-bit numbers, as in the protocol.
    """
    bits = (1 << message_id.batch_size) - 1
    bits &= ~((2 << message_id.batch_index) - 1) if is_cumulative else ~(1 << message_id.batch_index)
    words = range(-(-message_id.batch_size // _WORD_BITS))
    return [_signed(bits >> (_WORD_BITS * word) & _WORD_MASK) for word in words]


def _signed(word: int) -> int:
    return word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word
