"""Sticky ranges: refused ranges, and gaps."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import sticky_consumer

from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.errors import ConsumerAssignError
from pybroker.model.hashing import key_hash


def test_the_documented_ranges_give_the_documented_consumer() -> None:
    selector = StickyRangesSelector()
    c1 = sticky_consumer("C1", (0, 16383), (32768, 49151))
    c2 = sticky_consumer("C2", (16384, 32767), (49152, 65535))
    assert selector.add(c1) == []
    assert selector.add(c2) == []
    (sticky_hash,) = selector.sticky_hashes([key_hash(b"Order-3459134")])
    assert sticky_hash == 6067
    assert selector.owner(sticky_hash) is c1
    owners = [selector.owner(end) for end in (16383, 16384, 32767, 32768, 49151, 49152, 65535)]
    assert owners == [c1, c2, c2, c1, c1, c2, c2]


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ([], "at least one hash range"),
        ([(9, 8)], r"\[9, 8\] of the consumer is invalid"),
        ([(-1, 8)], r"\[-1, 8\] of the consumer is invalid"),
        ([(1, 5), (5, 9)], r"with itself: \[5, 9\] overlaps \[1, 5\]"),
        ([(1, 5), (1, 5)], "conflict with itself"),
        ([(1, 5), (0, 65535)], "overlaps"),
        ([(1, 5), (90, 100)], r"with consumer other: \[90, 100\] overlaps \[100, 199\]"),
        ([(199, 300)], r"with consumer other: \[199, 300\] overlaps \[100, 199\]"),
        ([(120, 130)], "Range conflict with consumer other"),
    ],
)
def test_bad_ranges_are_refused_and_nothing_of_them_remains(ranges: list[tuple[int, int]], says: str) -> None:
    selector = StickyRangesSelector()
    other = sticky_consumer("other", (100, 199))
    selector.add(other)
    with pytest.raises(ConsumerAssignError, match=says):
        selector.add(sticky_consumer("new", *ranges))
    assert selector.ranges() == {other: [(100, 199)]}
    assert selector.owner(1) is None


def test_a_gap_has_no_owner_until_somebody_covers_it() -> None:
    selector = StickyRangesSelector()
    c1 = sticky_consumer("c1", (0, 99), (200, 70000))
    selector.add(c1)
    assert selector.owner(99) is c1
    assert selector.owner(100) is selector.owner(199) is None
    c2 = sticky_consumer("c2", (100, 199))
    selector.add(c2)
    assert selector.owner(150) is c2
    selector.remove(c1)
    assert selector.owner(99) is None
    assert selector.owner(65535) is None


def test_neighbouring_ranges_are_shown_as_one() -> None:
    selector = StickyRangesSelector()
    c1 = sticky_consumer("c1", (100, 199), (0, 99), (300, 300))
    selector.add(c1)
    assert selector.ranges() == {c1: [(0, 199), (300, 300)]}
