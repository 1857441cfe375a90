"""Which entries a consumer acknowledges whole, against a set of messages."""

from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.acknowledged import PartlyAcknowledged, ack_set
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
        # A batch whose rest came by the one and whose beginning by the other is whole at the next call for it.
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
