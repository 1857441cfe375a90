"""Chunks that wait for one consumer of a Shared subscription take bounded memory and delay no other consumer."""

from tests.unit.dispatch.support import LEDGER, Feed, consumer, shared

from pybroker.dispatch.chunks.parked_chunks import ParkedChunks
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

CHUNKS = 300
ROOM_BYTES = 1400
LARGE_MESSAGE = [Chunk(b"large", index, CHUNKS) for index in range(CHUNKS)]
# Every second entry is the next chunk of the large message; the others are whole messages.
INTERWOVEN: list[Chunk | None] = [each for chunk in LARGE_MESSAGE for each in (chunk, None)]
PARTS = list(range(0, 2 * CHUNKS, 2))
OTHERS = list(range(1, 2 * CHUNKS, 2))


def begun(room_bytes: int = ROOM_BYTES) -> tuple[SharedDispatcher, Feed, ConsumerState, ConsumerState]:
    """`first` has the first chunk and cannot take more; `second` has taken all that it may."""
    dispatcher = shared(look_ahead_bytes=room_bytes)
    first, second = consumer("first"), consumer("second")
    dispatcher.add_consumer(first)
    feed = Feed(dispatcher, 1, chunks=INTERWOVEN)
    dispatcher.flow(first, 1)
    assert feed.pump() == [("first", [0])]
    dispatcher.add_consumer(second)
    feed.entry_count = 2 * CHUNKS
    dispatcher.flow(second, 10 * CHUNKS)
    assert entries_of("second", feed.pump()) == OTHERS
    return dispatcher, feed, first, second


def entries_of(name: str, deliveries: list[tuple[str, list[int]]]) -> list[int]:
    assert {who for who, _ in deliveries} <= {name}
    return [entry_id for _, entry_ids in deliveries for entry_id in entry_ids]


def test_what_waits_for_one_consumer_takes_half_of_the_room_at_most_and_comes_in_order_when_it_can_take_it() -> None:
    dispatcher, feed, first, _ = begun()
    assert 0 < dispatcher.look_ahead_size_bytes <= ROOM_BYTES
    assert list(dispatcher.parked_chunks) == [first]
    dispatcher.flow(first, 10 * CHUNKS)
    assert entries_of("first", feed.pump()) == PARTS[1:]
    assert not dispatcher.parked_chunks
    assert dispatcher.look_ahead_size_bytes == 0


def test_one_part_at_a_time_goes_in_order_and_is_not_looked_for_each_time() -> None:
    _, feed, first, _ = begun()
    taken = []
    for _ in PARTS[1:]:
        feed.dispatcher.flow(first, 1)
        taken += entries_of("first", feed.pump())
    assert taken == PARTS[1:]
    # Each scan fills the available capacity of some dozens of chunks; it does not restart for each chunk.
    assert feed.scanned_entries < 30 * CHUNKS


def test_when_it_leaves_all_parts_go_to_another_one_in_order() -> None:
    dispatcher, feed, first, _ = begun()
    redelivery = dispatcher.remove_consumer(first)
    assert redelivery.rewind
    assert redelivery.wake
    feed.read_position = 0
    assert entries_of("second", feed.pump()) == PARTS
    assert not dispatcher.parked_chunks


def test_a_plan_that_was_made_before_it_left_is_void() -> None:
    dispatcher, feed, first, second = begun()
    feed.entry_count += 10
    plan = dispatcher.next_read()
    assert plan is not None
    dispatcher.remove_consumer(first)
    assert dispatcher.is_void(plan)
    assert second.can_take()


def test_without_room_to_keep_to_everything_is_listed() -> None:
    dispatcher, _, _, _ = begun(room_bytes=0)
    assert not dispatcher.parked_chunks
    assert dispatcher.replay_entry_count == CHUNKS - 1


def test_what_memory_allows_bounds_it_too_and_the_setting_stays_the_most() -> None:
    dispatcher, feed, first, _ = begun(room_bytes=1 << 20)
    listed_bytes = dispatcher.look_ahead_size_bytes
    dispatcher.limit_look_ahead(listed_bytes // 2)
    feed.entry_count += 2
    feed.chunks = [*INTERWOVEN, Chunk(b"large", 0, CHUNKS), None]
    assert entries_of("second", feed.pump()) == [2 * CHUNKS + 1]
    assert dispatcher.look_ahead_size_bytes == listed_bytes
    (row,) = dispatcher.look_ahead().consumers
    assert (row.consumer, row.entries, row.parked_from) == (first, CHUNKS - 1, Position(LEDGER, 2 * CHUNKS))
    dispatcher.limit_look_ahead(1 << 30)
    assert dispatcher.look_ahead().max_size_bytes == 1 << 20
    dispatcher.flow(first, 10 * CHUNKS)
    assert entries_of("first", feed.pump()) == [*PARTS[1:], 2 * CHUNKS]


def test_a_seek_forgets_what_is_set_aside() -> None:
    dispatcher, feed, first, second = begun()
    dispatcher.reset()
    assert not dispatcher.parked_chunks
    feed.read_position = 0
    dispatcher.flow(first, 10 * CHUNKS)
    assert sorted(entry_id for _, entry_ids in feed.pump() for entry_id in entry_ids) == list(range(2 * CHUNKS))
    assert second.can_take()


def test_a_scan_goes_on_without_those_that_find_no_room() -> None:
    aside, one, other = ParkedChunks(), consumer("one"), consumer("other")
    aside.add(one, Position(1, 10))
    aside.add(other, Position(1, 20))
    assert aside.begin_scan([one, other]) == Position(1, 10)
    aside.advance_scan(Position(1, 30))
    assert not aside.covers(one, Position(1, 25))
    assert aside.covers(one, Position(1, 30))
    aside.leave_scan(one, Position(1, 35))
    assert aside.position == Position(1, 30)
    assert aside.covers(one, Position(1, 35))
    assert not aside.covers(one, Position(1, 34))
    aside.finish_scan()
    assert list(aside) == [one]
    assert aside.position is None
    aside.check_invariants()
