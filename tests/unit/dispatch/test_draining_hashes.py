"""Hashes that wait for their former owner: counted, blocked, freed."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.unit.dispatch.support import consumer

from pybroker.dispatch.draining_hashes import DrainingHashes

OLD, NEW = consumer("old"), consumer("new")


def listed(draining: DrainingHashes) -> list[tuple[int, str, int, int]]:
    return [(h, each.consumer.name, each.unacked_entries, each.blocked_attempts) for h, each in draining]


def test_a_hash_blocks_all_others_until_its_last_entry_is_released() -> None:
    draining, old = DrainingHashes(), consumer("old")
    draining.drain(old, 7, 2)
    assert draining.blocks(NEW, 7)
    assert draining.blocks(NEW, 7)
    assert not draining.blocks(NEW, 8)
    draining.released(old, 7)
    assert listed(draining) == [(7, "old", 1, 2)]
    assert draining.blocks(NEW, 7)
    draining.released(old, 7)
    assert not draining
    assert draining.take_freed() == [7]
    assert draining.take_freed() == []
    assert not draining.blocks(NEW, 7)
    assert (draining.cleared_total, old.draining_hashes_cleared_total) == (1, 1)


def test_to_ask_who_holds_a_hash_is_no_attempt() -> None:
    draining = DrainingHashes()
    draining.drain(OLD, 7, 1)
    assert draining.is_held_by_other(NEW, 7)
    assert not draining.is_held_by_other(OLD, 7)
    assert not draining.is_held_by_other(NEW, 8)
    assert listed(draining) == [(7, "old", 1, 0)]


def test_a_hash_that_returned_to_its_consumer_is_forgotten_with_the_next_attempt() -> None:
    draining = DrainingHashes()
    draining.drain(OLD, 7, 3)
    assert len(draining) == 1
    assert not draining.blocks(OLD, 7)
    assert len(draining) == 0
    assert draining.cleared_total == 0, "nothing was drained"
    draining.released(OLD, 7)
    assert draining.take_freed() == []


def test_a_hash_that_returns_and_moves_again_unnoticed_counts_afresh() -> None:
    draining = DrainingHashes()
    draining.drain(OLD, 7, 3)
    draining.blocks(NEW, 7)
    draining.drain(OLD, 7, 2)
    assert listed(draining) == [(7, "old", 2, 1)]


def test_one_hash_has_one_consumer() -> None:
    draining = DrainingHashes()
    draining.drain(OLD, 7, 1)
    with pytest.raises(AssertionError):
        draining.drain(NEW, 7, 1)
    with pytest.raises(AssertionError):
        draining.released(NEW, 7)


def test_the_numbers_of_each_consumer() -> None:
    draining = DrainingHashes()
    draining.drain(OLD, 9, 2)
    draining.drain(NEW, 3, 5)
    draining.drain(OLD, 4, 1)
    draining.blocks(NEW, 9)
    by_consumer = draining.by_consumer()
    assert [(h, each.unacked_entries, each.blocked_attempts) for h, each in by_consumer[OLD]] == [(4, 1, 0), (9, 2, 1)]
    assert [h for h, _ in by_consumer[NEW]] == [3]
    assert draining.unacked_entries() == 8
    draining.clear()
    assert draining.by_consumer() == {}


@pytest.mark.parametrize(("hashes", "most_bytes"), [(1_000, 80_000), (10_000, 600_000), (65_535, 5_300_000)])
def test_memory_is_bounded_and_given_back(hashes: int, most_bytes: int) -> None:
    """The keys of the table are ints that the pending acks hold anyway."""
    numbers = list(range(1, hashes + 1))
    draining = DrainingHashes()
    tracemalloc.start()
    try:
        for number in numbers:
            draining.drain(OLD, number, 1)
            draining.blocks(NEW, number)
        assert tracemalloc.get_traced_memory()[0] < most_bytes
        for number in numbers:
            draining.released(OLD, number)
        draining.take_freed()
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_messages_of_batches_are_counted_beside_the_entries() -> None:
    draining = DrainingHashes()
    draining.drain(OLD, 7, 2, 8)
    draining.drain(OLD, 8, 3, 3)
    assert (draining.unacked_entries(), draining.unacked_messages()) == (5, 11)
    draining.lowered(7, 2)
    draining.lowered(9, 1)
    assert {sticky_hash: each.unacked_messages for sticky_hash, each in draining} == {7: 6, 8: 3}
    draining.released(OLD, 7, 5)
    draining.delivered(OLD, 7, 4)
    assert dict(draining)[7].unacked_messages == 5
    draining.released(OLD, 7, 4)
    draining.released(OLD, 7, 1)
    assert draining.unacked_messages() == 3
