"""What of a batch is acknowledged: brokers take whole entries, unless they are told to keep a bit for each message.

Decides only: no clock, no IO.
"""

from __future__ import annotations

from collections import OrderedDict

from pybroker.client.message import MessageId

MAX_PARTLY = 100_000
"""So many batches may be acknowledged in part; the one that began first is forgotten then, and comes again as a whole. And so many
messages in parts may be unacknowledged."""
_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1


class PartlyAcknowledged:
    """Of one partition. Invariant: no batch of which nothing, or everything, is acknowledged is kept."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[int, int], int] = OrderedDict()  # a bit for each message that is not

    def __len__(self) -> int:
        return len(self._left)

    def is_whole(self, message_id: MessageId) -> bool:
        """Note this message; whether all of its entry are acknowledged now."""
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
        """Note this message and all in front of it; up to which entry all are acknowledged now."""
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
    """All entries of the messages of one partition that came in parts, by the last entry, whose id the message has.

    Invariant: at most `MAX_PARTLY` messages are kept; of one that is forgotten only the last entry is acknowledged.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, entries: list[tuple[int, int]]) -> None:
        """Of a message that is handed out, perhaps again."""
        self._entries[entries[-1]] = entries
        self._entries.move_to_end(entries[-1])
        if len(self._entries) > MAX_PARTLY:
            self._entries.popitem(last=False)

    def take(self, at: tuple[int, int]) -> list[tuple[int, int]]:
        """What is to be acknowledged, or delivered again, for the message with that id; it is not kept any more."""
        return self._entries.pop(at, None) or [at]

    def drop_up_to(self, at: tuple[int, int]) -> None:
        """All in front of it, and it, are acknowledged."""
        for each in [each for each in self._entries if each <= at]:
            del self._entries[each]


def ack_set(message_id: MessageId, *, is_cumulative: bool) -> list[int]:
    """The bits of a batch after this message alone, or it and those in front of it, as signed words of the protocol."""
    bits = (1 << message_id.batch_size) - 1
    bits &= ~((2 << message_id.batch_index) - 1) if is_cumulative else ~(1 << message_id.batch_index)
    words = range(-(-message_id.batch_size // _WORD_BITS))
    return [_signed(bits >> (_WORD_BITS * word) & _WORD_MASK) for word in words]


def _signed(word: int) -> int:
    return word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word
