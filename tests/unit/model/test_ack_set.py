"""Bits of a partly acknowledged batch: words are signed or unsigned, short or padded."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from pybroker.model import ack_set


def test_the_full_set_of_a_batch_has_one_bit_for_each_message() -> None:
    assert ack_set.full(0) == 0
    assert ack_set.full(10) == 0b11_1111_1111
    assert ack_set.to_words(ack_set.full(10)) == [1023]
    assert ack_set.count(ack_set.to_words(ack_set.full(200))) == 200


def test_a_word_with_the_top_bit_leaves_as_a_negative_number() -> None:
    assert ack_set.to_words(ack_set.full(64)) == [-1]
    assert ack_set.to_words(ack_set.full(65)) == [-1, 1]


def test_signed_and_unsigned_words_mean_the_same() -> None:
    assert ack_set.from_words([-1, 1]) == ack_set.from_words([(1 << 64) - 1, 1]) == ack_set.full(65)
    assert ack_set.count([-1, 1]) == ack_set.count([(1 << 64) - 1, 1]) == 65


def test_the_least_significant_word_comes_first() -> None:
    assert ack_set.from_words([0, 2]) == 1 << 65
    assert ack_set.to_words(1 << 65) == [0, 2]


def test_the_empty_set_has_no_words_and_missing_words_mean_acknowledged() -> None:
    assert ack_set.to_words(0) == []
    assert ack_set.from_words([]) == 0
    assert ack_set.from_words([5]) == ack_set.from_words([5, 0, 0])
    assert ack_set.count([]) == 0


@given(st.integers(min_value=0, max_value=(1 << 300) - 1))
def test_bits_survive_the_way_through_words(bits: int) -> None:
    words = ack_set.to_words(bits)
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert ack_set.from_words(words) == bits
    assert ack_set.count(words) == bits.bit_count()


def test_a_long_set_costs_what_its_words_cost() -> None:
    """Adding word by word would copy all earlier words each time: terabytes, for these ten megabytes."""
    words = [-1] * 1_250_000
    bits = ack_set.from_words(words)
    assert bits.bit_length() == 64 * len(words)
    assert ack_set.to_words(bits) == words


def test_words_behind_the_end_of_a_batch_mean_nothing_and_are_not_looked_at() -> None:
    assert ack_set.left_of(10, [-1]) == ack_set.full(10)
    assert ack_set.left_of(64, [-1, *[None] * 5]) == ack_set.full(64)  # type: ignore[list-item]
    assert ack_set.left_of(70, [0, -1]) == ack_set.full(6) << 64
    assert ack_set.left_of(70, [1]) == 1


def test_a_batch_that_claims_to_be_large_costs_no_more_than_the_words_about_it() -> None:
    tracemalloc.start()
    try:
        assert ack_set.left_of((1 << 31) - 1, [5]) == 5
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
