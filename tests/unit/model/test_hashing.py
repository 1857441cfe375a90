"""Keys hash as Pulsar's clients and brokers hash them."""

from __future__ import annotations

import pytest

from pybroker.model.hashing import key_hash


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"Order-3459134", 3112179635 & 0x7FFFFFFF),
        (b"orders-aggregator-pod-2345-consumer1", 1003084738),
        (b"orders-aggregator-pod-2345-consumer2", 373317202),
        (b"orders-aggregator-pod-2345-consumer100", 320276078),
        (b"", 0),
    ],
)
def test_a_key_hashes_to_the_documented_number(key: bytes, expected: int) -> None:
    assert key_hash(key) == expected
