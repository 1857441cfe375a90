"""Key_Shared: entries without capacity are parked and rescanned; listed entries take the memory that is counted."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.unit.dispatch.support import HIGH, LEDGER, LOW, LOW_2, Feed, consumer, key_shared, positions

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.key_shared.keyed_redelivery import KeyedReplay
from pybroker.dispatch.key_shared.parked_hashes import ParkedHashes
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.model.position import Position

STUCK, OTHER = consumer("stuck"), consumer("other")


def with_a_stuck_consumer(look_ahead_bytes: int) -> tuple[KeySharedDispatcher, ConsumerState]:
    dispatcher = key_shared(max_read_batch_entries=10, look_ahead_bytes=look_ahead_bytes)
    high, low = consumer("high"), consumer("low")
    for joining in (high, low):
        dispatcher.add_consumer(joining)
    dispatcher.flow(high, 100_000)
    return dispatcher, low


def sent_to(name: str, deliveries: list[tuple[str, list[int]]]) -> list[int]:
    return [entry_id for receiver, entry_ids in deliveries if receiver == name for entry_id in entry_ids]


def test_others_get_everything_beside_a_consumer_that_takes_nothing_and_it_gets_its_own_later_in_order() -> None:
    dispatcher, low = with_a_stuck_consumer(3000)
    feed = Feed(dispatcher, 2000, key_hashes=(LOW, HIGH, LOW_2, HIGH))
    assert sent_to("high", feed.pump()) == list(range(1, 2000, 2))
    assert 0 < dispatcher.replay_entry_count < 200
    assert sorted(each for each, _ in dispatcher.parked) == [LOW, LOW_2]
    assert dispatcher.look_ahead_size_bytes <= 3000 + 2 * 160 + 1028
    dispatcher.flow(low, 100_000)
    assert sent_to("low", feed.pump()) == list(range(0, 2000, 2))
    assert not dispatcher.parked
    assert not dispatcher.waiting


def test_a_second_reading_goes_on_where_the_room_of_the_one_before_ended() -> None:
    dispatcher, low = with_a_stuck_consumer(3000)
    feed = Feed(dispatcher, 3000, key_hashes=(LOW, HIGH))
    feed.pump()
    scanned = 0
    got: list[int] = []
    while len(got) < 1500:
        dispatcher.flow(low, 7)
        before = feed.scanned_entries
        got += sent_to("low", feed.pump())
        scanned += feed.scanned_entries - before
    assert got == list(range(0, 3000, 2))
    assert scanned < 2 * 3000, "what is set aside was read again and again"


def test_one_filler_leaves_room_for_the_next_one() -> None:
    dispatcher, _ = with_a_stuck_consumer(20_000)
    Feed(dispatcher, 5000, key_hashes=(LOW, HIGH)).pump()
    replay = dispatcher.waiting
    assert 0.3 < replay.size_bytes / 20_000 < 0.7
    (waiting,) = dispatcher.look_ahead(10).most
    assert (waiting.sticky_hash, waiting.consumer, waiting.is_draining) == (LOW, dispatcher.consumers[1], False)
    assert waiting.parked_from is not None
    assert not dispatcher.look_ahead(10).is_full


def test_limits_of_entries_stop_the_subscription_where_they_are_set() -> None:
    dispatcher = key_shared(per_subscription=60, max_read_batch_entries=10, look_ahead_bytes=1_000_000)
    for name in ("high", "low"):
        dispatcher.add_consumer(consumer(name))
    dispatcher.flow(dispatcher.consumers[0], 1000)
    Feed(dispatcher, 1000, key_hashes=(LOW, HIGH)).pump()
    assert dispatcher.replay_entry_count == 60
    assert dispatcher.look_ahead(10).is_full


def test_a_set_aside_hash_is_covered_from_its_position_on_and_a_scan_moves_that() -> None:
    place = {1: OTHER, 2: STUCK}
    parked = ParkedHashes(place.get)
    first, second, third = positions(10, 20, 30)
    parked.add(1, first)
    parked.add(2, second)
    parked.add(1, third)
    assert dict(parked) == {1: first, 2: second}
    assert parked.covers(1, second)
    assert not parked.covers(2, first)
    assert parked.begin_scan([OTHER]) == first
    parked.advance_scan(second)
    assert not parked.covers(1, Position(LEDGER, 15))
    parked.check_invariants()
    parked.leave_scan(1, third)
    assert (dict(parked), parked.position) == ({1: third, 2: second}, None)
    parked.begin_scan([OTHER, STUCK])
    parked.finish_scan()
    assert not parked
    parked.check_invariants()


@pytest.mark.parametrize(("hash_count", "entry_bytes"), [(1, 9), (1000, 12), (30_000, 180)])
def test_waiting_entries_take_the_memory_that_is_said(hash_count: int, entry_bytes: int) -> None:
    replay = KeyedReplay(lambda _: STUCK)
    tracemalloc.start()
    try:
        for first in range(0, 100_000, 100):
            entry_ids = range(first, first + 100)
            replay.add(LEDGER, entry_ids, [1 + entry_id * 7919 % hash_count for entry_id in entry_ids])
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bitmaps_bytes = 2 * 100_000 // 8  # not visible to Python's allocator
    assert held_bytes + bitmaps_bytes <= replay.size_bytes <= entry_bytes * 100_000
