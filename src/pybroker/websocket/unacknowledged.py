"""The messages that a session has sent to its client and that are not acknowledged yet. Pure."""

from __future__ import annotations

from collections import OrderedDict

from pybroker.client.message import Message, MessageId

Key = tuple[int, int, int]


class Unacknowledged:
    """Messages without an acknowledgement, oldest first. A message that is sent again counts once.

    Limitation: in pull mode the client decides how many messages are unacknowledged, so only the newest `max_messages`
    are kept. The acknowledgement deadline of older ones has no effect.
    """

    def __init__(self, timeout_s: float, max_messages: int) -> None:
        """`timeout_s`: the acknowledgement time-out; 0: none."""
        self._timeout_s = timeout_s
        self._max_messages = max_messages
        self._sent: OrderedDict[Key, tuple[float, str, MessageId]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, message: Message, now_s: float) -> None:
        key = _key(message.id)
        self._sent.pop(key, None)
        self._sent[key] = (now_s + self._timeout_s, message.topic, message.id)
        if len(self._sent) > self._max_messages:
            self._sent.popitem(last=False)

    def take(self, message_id: MessageId) -> tuple[str, MessageId] | None:
        """Remove the message with the ledger id, entry id and batch index of `message_id`. Return its topic and the
        complete id that was sent; None if the message was not sent or is already acknowledged.
        """
        found = self._sent.pop(_key(message_id), None)
        return None if found is None else found[1:]

    def take_oldest(self) -> None:
        if self._sent:
            self._sent.popitem(last=False)

    def take_overdue(self, now_s: float) -> list[tuple[str, MessageId]]:
        """Remove the messages whose acknowledgement is overdue, and return their topics and ids."""
        overdue: list[tuple[str, MessageId]] = []
        while self._sent:
            key, (due_s, topic, message_id) = next(iter(self._sent.items()))
            if due_s > now_s:
                break
            del self._sent[key]
            overdue.append((topic, message_id))
        return overdue


def _key(message_id: MessageId) -> Key:
    return message_id.ledger_id, message_id.entry_id, message_id.batch_index
