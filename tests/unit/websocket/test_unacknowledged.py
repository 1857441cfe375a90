"""Messages of a WebSocket session that are not acknowledged yet."""

from __future__ import annotations

from pybroker.client.message import Message, MessageId
from pybroker.websocket.unacknowledged import Unacknowledged


def message(entry_id: int, batch_index: int = -1) -> Message:
    return Message(MessageId(1, entry_id, -1, batch_index, 3 if batch_index >= 0 else 0), "t", b"")


def test_message_that_is_sent_again_counts_once() -> None:
    unacked = Unacknowledged(0, 10)
    for _ in range(2):
        unacked.sent(message(1), 0)
    unacked.sent(message(1, 0), 0)
    assert len(unacked) == 2
    assert unacked.take(MessageId(1, 1)) == ("t", MessageId(1, 1))
    assert unacked.take(MessageId(1, 1)) is None


def test_id_without_batch_size_finds_complete_id() -> None:
    unacked = Unacknowledged(0, 10)
    unacked.sent(message(1, 2), 0)
    assert unacked.take(MessageId(1, 1, -1, 2, 0)) == ("t", MessageId(1, 1, -1, 2, 3))


def test_overdue_messages_are_taken_oldest_first() -> None:
    unacked = Unacknowledged(5, 10)
    unacked.sent(message(1), 0)
    unacked.sent(message(2), 3)
    unacked.sent(message(1), 4)  # redelivered
    assert unacked.take_overdue(8) == [("t", MessageId(1, 2))]
    assert unacked.take_overdue(9) == [("t", MessageId(1, 1))]


def test_oldest_is_forgotten_above_maximum() -> None:
    unacked = Unacknowledged(0, 2)
    for entry_id in range(3):
        unacked.sent(message(entry_id), 0)
    assert unacked.take(MessageId(1, 0)) is None
    assert len(unacked) == 2
