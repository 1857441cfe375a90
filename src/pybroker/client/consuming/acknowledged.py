"""Partly acknowledged batches of a consumer. Brokers only accept acknowledgements of whole entries, unless batch index
acknowledgement is enabled.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from pybroker.client.message import MessageId

MAX_PARTLY = 100_000
"""Maximum number of partly acknowledged batches, and of unacknowledged chunked messages. The oldest one is dropped; the
broker delivers all of it again.
"""
_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1


class PartlyAcknowledged:
    """Partly acknowledged batches of one partition. Invariant: a batch is kept only while some, but not all, of it is
    acknowledged.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[int, int], int] = OrderedDict()  # bits of the unacknowledged messages

    def __len__(self) -> int:
        return len(self._left)

    def is_whole(self, message_id: MessageId) -> bool:
        """Acknowledge a message. Return whether all messages of its entry are acknowledged now."""
        if message_id.batch_size <= 1:
            return True
        at = (message_id.ledger_id, message_id.entry_id)
        left = self._left.pop(at, (1 << message_id.batch_size) - 1) & ~(1 << message_id.batch_index)
        if left:
            self._left[at] = left
            if len(self._left) > MAX_PARTLY:
                self._left.popitem(last=False)
        return not left

    def up_to(self, message_id: MessageId) -> tuple[int, int]:
        """Acknowledge a message and all earlier ones. Return the last entry up to which all are acknowledged now."""
        at = (message_id.ledger_id, message_id.entry_id)
        for each in [each for each in self._left if each < at]:
            del self._left[each]
        if message_id.batch_size <= 1:
            self._left.pop(at, None)
            return at
        left = self._left.pop(at, (1 << message_id.batch_size) - 1) & ~((2 << message_id.batch_index) - 1)
        if not left:
            return at
        self._left[at] = left
        return message_id.ledger_id, message_id.entry_id - 1

    def clear(self) -> None:
        self._left.clear()


class EntriesOfParts:
    """The entries of each chunked message of one partition. The key is the last entry, whose id is the id of the
    message.

    Invariant: at most `MAX_PARTLY` messages are kept. Of a dropped message only the last entry is acknowledged.
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
    """Return the ack set of a batch in which only this message, or with `is_cumulative` this and all earlier ones, are
    acknowledged. Its words are signed, as in the protocol.
    """
    bits = (1 << message_id.batch_size) - 1
    bits &= ~((2 << message_id.batch_index) - 1) if is_cumulative else ~(1 << message_id.batch_index)
    words = range(-(-message_id.batch_size // _WORD_BITS))
    return [_signed(bits >> (_WORD_BITS * word) & _WORD_MASK) for word in words]


def _signed(word: int) -> int:
    return word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word
