"""Keys go where the clients send them."""

import mmh3
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pybroker.columns.partition_routing import java_string_hashes, partitions_of


def java_hash(text: str) -> int:
    """Java's String.hashCode, by its definition."""
    units = text.encode("utf-16-be")
    found = 0
    for index in range(0, len(units), 2):
        found = (31 * found + int.from_bytes(units[index : index + 2], "big")) % (1 << 32)
    return found


texts = st.text(max_size=12) | st.text("abc0123", max_size=12)


@given(st.lists(texts, max_size=20), st.integers(0, 3))
def test_hashes_are_those_of_java(keys: list[str], skipped: int) -> None:
    array = pa.array([key.encode() for key in keys], pa.binary()).slice(skipped)
    assert java_string_hashes(array).tolist() == [java_hash(key) for key in keys[skipped:]]


def test_known_hashes() -> None:
    assert java_string_hashes(pa.array([b"", b"a", b"hello"])).tolist() == [0, 97, 99162322]


@given(st.lists(st.none() | texts, min_size=1, max_size=20), st.integers(1, 9), st.integers(0, 20), st.booleans())
def test_equal_keys_meet_and_rows_without_a_key_go_together(
    keys: list[str | None], count: int, in_turn: int, is_murmur: bool
) -> None:
    found = partitions_of(pa.array(keys, pa.string()), len(keys), count, in_turn, is_murmur=is_murmur).tolist()
    for key, partition in zip(keys, found, strict=True):
        if key is None:
            assert partition == in_turn % count
        else:
            hashed = mmh3.hash(key.encode(), 0, False) if is_murmur else java_hash(key)
            assert partition == (hashed & 0x7FFFFFFF) % count
