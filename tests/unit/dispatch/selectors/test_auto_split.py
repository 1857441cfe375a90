"""Auto-split hash ranges: the diagrams of the documentation, and further cases."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tests.unit.dispatch.support import consumer

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.auto_split import AutoSplitSelector
from pybroker.errors import ConsumerAssignError
from pybroker.model.hashing import key_hash

C1, C2, C3, C4 = (consumer(f"C{n}") for n in range(1, 5))


def drawn(selector: AutoSplitSelector) -> list[tuple[int, str]]:
    """Return the regions from left to right: their ends (not included) and owners."""
    ranges = {(start, end): owner for owner, each in selector.ranges().items() for start, end in each}
    return [(end + 1, ranges[start, end].name) for start, end in sorted(ranges)]


def of(*consumers: ConsumerState) -> AutoSplitSelector:
    selector = AutoSplitSelector()
    for each in consumers:
        selector.add(each)
    return selector


def test_four_consumers_come_as_in_the_diagram() -> None:
    assert drawn(of(C1)) == [(65536, "C1")]
    assert drawn(of(C1, C2)) == [(32768, "C2"), (65536, "C1")]
    assert drawn(of(C1, C2, C3)) == [(16384, "C3"), (32768, "C2"), (65536, "C1")]
    assert drawn(of(C1, C2, C3, C4)) == [(16384, "C3"), (32768, "C2"), (49152, "C4"), (65536, "C1")]


def test_consumers_leave_as_in_the_diagram() -> None:
    selector = of(C1, C2, C3, C4)
    selector.remove(C4)
    assert drawn(selector) == [(16384, "C3"), (32768, "C2"), (65536, "C1")]
    selector.remove(C1)
    assert drawn(selector) == [(16384, "C3"), (65536, "C2")], "the last region joins its left neighbour"
    selector.remove(C3)
    assert drawn(selector) == [(65536, "C2")]
    selector.remove(C2)
    assert drawn(selector) == []
    assert selector.owner(1) is None


def test_the_documented_key_goes_to_the_third_consumer() -> None:
    selector = of(C1, C2, C3, C4)
    (sticky_hash,) = selector.sticky_hashes([key_hash(b"Order-3459134")])
    assert sticky_hash == 6067
    assert selector.owner(sticky_hash) is C3


def test_a_newcomer_takes_hashes_of_one_consumer_which_is_named() -> None:
    selector = of(C1)
    assert selector.add(C2) == [C1]
    assert selector.add(C3) == [C2], "the leftmost of equal regions"
    assert selector.add(C4) == [C1]


@pytest.mark.parametrize(
    ("sticky_hash", "owner"), [(1, C2), (32767, C2), (32768, C1), (65535, C1)], ids=lambda value: str(value)[:9]
)
def test_a_region_begins_with_its_first_hash_and_ends_before_the_next_one(
    sticky_hash: int, owner: ConsumerState
) -> None:
    assert of(C1, C2).owner(sticky_hash) is owner


def test_no_hash_is_0() -> None:
    assert AutoSplitSelector().sticky_hashes([0, 1, 65535, 65536, 65537, (1 << 31) - 1]) == [1, 1, 65535, 1, 1, 65535]


def test_whatever_comes_and_goes_all_hashes_have_one_owner_and_only_the_leavers_move() -> None:
    chance = random.Random(1)
    selector = AutoSplitSelector()
    present: list[ConsumerState] = []
    before: list[ConsumerState | None] = []
    for step in range(60):
        leaver = None
        if present and chance.random() < 0.45:
            leaver = present.pop(chance.randrange(len(present)))
            selector.remove(leaver)
            losers = []
        else:
            present.append(consumer(f"c{step}"))
            losers = selector.add(present[-1])
        after = [selector.owner(sticky_hash) for sticky_hash in range(0, 65536, 97)]
        if before and present:
            moved = {one for one, other in zip(before, after, strict=True) if one is not other}
            assert moved <= ({leaver} if leaver else {*losers, None})
        assert set(after) - {None} <= set(present)
        ranges = sorted(each for mine in selector.ranges().values() for each in mine)
        assert not present or (ranges[0][0], ranges[-1][1]) == (0, 65535)
        assert all(one[1] + 1 == other[0] for one, other in pairwise(ranges))
        before = after


def test_a_consumer_without_a_hash_to_take_is_refused() -> None:
    selector = AutoSplitSelector()
    selector.add(C1)
    selector._starts = list(range(65536))
    selector._owners = [C1] * 65536
    with pytest.raises(ConsumerAssignError):
        selector.add(C2)
    assert len(selector._starts) == len(selector._owners) == 65536
