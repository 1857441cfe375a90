"""Unanswered entries of a producer."""

import pytest

from pybroker.client.consuming.flow_window import MAX_PERMITS, FlowWindow
from pybroker.client.frames import ReceivedEntry
from pybroker.client.producing.pending_sends import PendingSend, PendingSends
from pybroker.model.txn_id import TxnId


def entry(sequence_id: int, size: int = 10) -> PendingSend:
    return PendingSend(sequence_id, 0, 1, bytes(size), False, None, 0.0)


def test_receipts_come_in_order_and_old_ones_are_passed_over() -> None:
    pending = PendingSends(10, 1000)
    for sequence_id in (5, 6, 9):
        pending.add(entry(sequence_id))
    assert pending.receipted(4) is None
    found = pending.receipted(5)
    assert found is not None
    assert found.sequence_id == 5
    assert pending.receipted(5) is None
    with pytest.raises(ValueError, match="earlier message with sequence id 6"):
        pending.receipted(9)
    assert [each.sequence_id for each in pending] == [6, 9]
    assert pending.size_bytes == 20
    assert len(pending.clear()) == 2
    assert (pending.size_bytes, len(pending), pending.oldest) == (0, 0, None)


def test_one_that_is_refused_alone_leaves_the_others_in_their_order() -> None:
    pending = PendingSends(10, 1000)
    for sequence_id in (5, 6, 6, 7):  # two parts of one message
        pending.add(entry(sequence_id))
    assert pending.find(8) is None
    refused = pending.find(6)
    assert refused is not None
    pending.give_up(refused)
    assert [each.sequence_id for each in pending] == [5, 6, 7]
    assert pending.find(6) is not refused
    assert pending.size_bytes == 30


def test_entries_that_timed_out_are_given_up_with_the_other_parts_of_their_message() -> None:
    pending = PendingSends(10, 1000)
    for sequence_id, sent_at_s in ((5, 1.0), (6, 2.0), (6, 3.0), (7, 4.0)):  # 6 is two parts of one message
        each = entry(sequence_id)
        each.sent_at_s = sent_at_s
        pending.add(each)
    assert pending.give_up_sent_by(0.5) == []
    assert [each.sequence_id for each in pending.give_up_sent_by(2.5)] == [5, 6, 6]
    assert [each.sequence_id for each in pending] == [7]
    assert pending.size_bytes == 10
    for late in (5, 6, 6):
        assert pending.receipted(late) is None
    assert pending.receipted(7) is not None
    assert pending.give_up_sent_by(9.0) == []


def test_entries_and_bytes_are_bounded_but_one_entry_always_fits() -> None:
    pending = PendingSends(2, 100)
    assert pending.has_room(1000)
    pending.add(entry(1, 60))
    assert pending.has_room(40)
    assert not pending.has_room(41)
    pending.add(entry(2, 1))
    assert not pending.has_room(1)


def received(size: int) -> ReceivedEntry:
    return ReceivedEntry(1, 1, 1, 0, bytes(size))


def test_permits_follow_the_size_of_what_comes() -> None:
    window = FlowWindow(1 << 20)
    asked = window.due()
    assert asked == 64
    assert window.due() == 0
    window.consumed([received(100)] * 64)
    small = window.due()
    assert small == 256  # it grows in steps
    window.consumed([received(1 << 19)] * 3)
    window.consumed([received(1 << 19)] * (small - 3))
    assert window.due() == 2
    window.consumed([received(1)] * 100_000)
    # Excess messages are compensated: the broker sends nothing before that.
    assert 99_998 < window.due() <= 99_998 + MAX_PERMITS


def test_entries_of_transactions_are_given_up_together() -> None:
    pending = PendingSends(10, 1000)
    inside, outside = entry(1, 5), entry(2, 7)
    inside.txn = TxnId(0, 1)
    for each in (inside, outside):
        pending.add(each)
    assert pending.give_up_in_transactions() == [inside]
    assert pending.give_up_in_transactions() == []
    assert ([*pending], pending.size_bytes) == ([outside], 7)
