"""Counts of keys in bounded memory, beside a counter that keeps them all."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pybroker.pipelines.key_counts import KeyCounts, Owners, selector_of

KEYS = st.lists(st.integers(0, 40).map(lambda number: b"k%d" % number), max_size=300)


@given(KEYS)
def test_counts_are_exact_while_all_keys_fit(keys: list[bytes]) -> None:
    counts = KeyCounts(41)
    for key in keys:
        counts.add(key, 1, 10)
    assert {key: count.messages for key, count in counts.keys.items()} == Counter(keys)
    assert (counts.error, counts.total.messages, counts.total.size_bytes) == (0, len(keys), 10 * len(keys))


@given(KEYS, st.integers(2, 12))
def test_above_the_bound_no_heavy_key_is_missing_and_no_count_is_too_high(keys: list[bytes], max_keys: int) -> None:
    counts = KeyCounts(max_keys)
    for key in keys:
        counts.add(key, 1, 10)
        assert len(counts.keys) <= max_keys
    exact = Counter(keys)
    for key, number in exact.items():
        kept = counts.keys[key].messages if key in counts.keys else 0
        assert number - counts.error <= kept <= number
    assert counts.total.messages == len(keys)


def test_messages_without_key_are_counted_apart() -> None:
    counts = KeyCounts(4)
    counts.add(None, 3, 30)
    counts.add(b"a", 2, 5)
    assert (counts.without_key.messages, counts.total.messages, list(counts.keys)) == (3, 5, [b"a"])


def test_every_hash_has_one_of_the_consumers_and_hashes_of_nobody_are_told() -> None:
    for mode in ("auto-split", "consistent-hash"):
        owners = Owners.of_selector(selector_of(mode, 5))
        found = {owners.owner(sticky_hash) for sticky_hash in range(1, 1 << 16)}
        assert found == {f"consumer-{number}" for number in range(1, 6)}
    half = Owners({"a": [(0, 100)]}, selector_of("auto-split", 0))
    assert (half.owner(100), half.owner(101)) == ("a", "")


def test_what_owners_get_is_the_sum_of_their_keys() -> None:
    selector = selector_of("auto-split", 3)
    owners, counts = Owners.of_selector(selector), KeyCounts(1000)
    for number in range(200):
        counts.add(b"key-%d" % number, number, 1)
    shares = counts.of_hashes(owners)
    assert sum(count.messages for count in shares.values()) == sum(range(200))
    ((key, heaviest),) = counts.heaviest(1)
    assert (key, heaviest.messages) == (b"key-199", 199)
