"""Acknowledgements of whole entries by a consumer, compared with a set of messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.consuming import acknowledged
from pybroker.client.consuming.acknowledged import MAX_PARTLY_BITS, EntriesOfParts, PartlyAcknowledged, ack_set
from pybroker.client.message import MessageId

SIZES = {0: 1, 1: 3, 2: 1, 3: 70}
ALL = [MessageId(7, entry, -1, index, size) for entry, size in SIZES.items() for index in range(size)]
steps = st.lists(st.tuples(st.sampled_from(ALL), st.booleans()), max_size=60)


@given(steps)
def test_an_entry_is_whole_exactly_when_all_its_messages_are_acknowledged(walk: list[tuple[MessageId, bool]]) -> None:
    partly = PartlyAcknowledged()
    acknowledged: set[MessageId] = set()
    told: set[int] = set()
    for message_id, is_cumulative in walk:
        if is_cumulative:
            acknowledged |= {each for each in ALL if each <= message_id}
            told |= set(range(partly.up_to(message_id)[1] + 1))
        else:
            acknowledged.add(message_id)
            if partly.is_whole(message_id):
                told.add(message_id.entry_id)
        whole = {
            entry
            for entry, size in SIZES.items()
            if {each for each in ALL if each.entry_id == entry} <= acknowledged and size
        }
        assert told <= whole
        # A batch that is acknowledged partly by cumulative and partly by single calls is complete at its next call.
        assert whole - told <= {message_id.entry_id for message_id in acknowledged}
    assert len(partly) <= len(SIZES)


@given(st.integers(2, 200).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))), st.booleans())
def test_bits_that_are_set_are_messages_that_are_left(place: tuple[int, int], is_cumulative: bool) -> None:
    size, index = place
    words = ack_set(MessageId(1, 1, -1, index, size), is_cumulative=is_cumulative)
    assert len(words) == -(-size // 64)
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    left = {number for number in range(64 * len(words)) if words[number >> 6] >> (number & 63) & 1}
    wanted = set(range(index + 1, size)) if is_cumulative else set(range(size)) - {index}
    assert left == wanted


def test_all_entries_of_a_message_in_parts_go_with_its_last_one_and_once() -> None:
    parts = EntriesOfParts()
    for entry in (2, 4, 6):
        parts.keep([(1, entry - 1), (1, entry)])
    assert parts.take((1, 4)) == [(1, 3), (1, 4)]
    assert parts.take((1, 4)) == [(1, 4)]
    parts.drop_up_to((1, 5))
    assert len(parts) == 1
    assert parts.take((1, 6)) == [(1, 5), (1, 6)]


def test_the_message_in_parts_that_was_handed_out_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged, "MAX_PARTLY", 2)
    parts = EntriesOfParts()
    for entry in (2, 4, 2, 6):
        parts.keep([(1, entry - 1), (1, entry)])
    assert len(parts) == 2
    assert parts.take((1, 4)) == [(1, 4)]
    assert parts.take((1, 2)) == [(1, 1), (1, 2)]


def test_oldest_partly_acknowledged_batches_are_dropped_above_the_limit_of_bits() -> None:
    partly, size = PartlyAcknowledged(), MAX_PARTLY_BITS // 4
    for entry in range(6):
        assert not partly.is_whole(MessageId(1, entry, batch_index=0, batch_size=size))
    assert len(partly) == 4
    assert partly.up_to(MessageId(1, 4, batch_index=0, batch_size=size)) == (1, 3)
    assert len(partly) == 2  # and capacity for two more
    for entry in range(6, 8):
        partly.is_whole(MessageId(1, entry, batch_index=0, batch_size=size))
    assert len(partly) == 4
