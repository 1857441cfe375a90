"""Bundles: the bundle of a hash, and split positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.cluster.bundles import (
    HIGHEST_HASH,
    Bundle,
    bundles_of,
    checked_bundle,
    find_bundle,
    fullest_bundle,
    hash_position,
    split_boundaries,
)
from pybroker.cluster.load_balance.load_report import BundleFigures
from pybroker.cluster.split_algorithms import (
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    TOPIC_COUNT_EQUALLY_DIVIDE,
    FlowLimits,
    TopicLoad,
    flow_positions,
    hottest_bundle,
    split_positions,
)
from pybroker.errors import AdminError
from pybroker.model.names import TopicName
from pybroker.model.policies import MAX_BUNDLE_COUNT, even_bundles

FOUR = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]


def position(text: str) -> int:
    return hash_position(TopicName.parse(text))


def test_a_topic_lies_in_the_bundle_of_its_names_crc32() -> None:
    found = {str(find_bundle(TopicName.parse(f"t-{i}"), FOUR)) for i in range(64)}
    assert found == {str(bundle) for bundle in bundles_of(FOUR)}
    assert str(find_bundle(TopicName.parse("some-topic"), FOUR)) == "0xc0000000_0xffffffff"  # as in Pulsar 4.2.4
    assert position("t") == 0x823CD929
    assert str(find_bundle(TopicName.parse("t"), FOUR)) == "0x80000000_0xc0000000"
    assert str(find_bundle(TopicName.parse("t"), ["0x00000000", "0xffffffff"])) == "0x00000000_0xffffffff"


@given(st.integers(0, HIGHEST_HASH), st.integers(1, 300))
def test_every_hash_is_in_exactly_one_bundle(hash_value: int, count: int) -> None:
    assert sum(hash_value in bundle for bundle in bundles_of(even_bundles(count).boundaries)) == 1


def test_the_highest_hash_is_in_the_last_bundle_and_an_upper_boundary_in_the_next() -> None:
    assert HIGHEST_HASH in Bundle(0xC0000000, HIGHEST_HASH)
    assert 0x40000000 not in Bundle(0, 0x40000000)
    assert 0x40000000 in Bundle(0x40000000, 0x80000000)


@pytest.mark.parametrize(
    "text", ["", "_", "LARGEST", "0x00000000", "0x00000000_0x50000000", "0x40000000_0x00000000", "a_b", "0x0_0x4_0x8"]
)
def test_a_bundle_that_the_namespace_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(AdminError) as refused:
        checked_bundle(text, FOUR)
    assert refused.value.status == 412


def test_a_bundle_is_cut_in_its_middle() -> None:
    bundle = checked_bundle("0x00000000_0x40000000", FOUR)
    cut = split_positions(bundle, RANGE_EQUALLY_DIVIDE, [], [])
    assert split_boundaries(FOUR, bundle, cut) == ["0x00000000", "0x20000000", *FOUR[1:]]


def test_a_bundle_is_cut_between_two_halves_of_its_topics() -> None:
    bundle = checked_bundle("0x40000000_0x80000000", FOUR)
    topics = [position(f"public/probe-brokers/{name}") for name in "ea"]
    assert split_positions(bundle, TOPIC_COUNT_EQUALLY_DIVIDE, topics, []) == [0x54371B92]  # as in Pulsar 4.2.4
    for too_few in ([], [topics[0]], [topics[0], topics[0]]):
        cut = split_positions(bundle, TOPIC_COUNT_EQUALLY_DIVIDE, too_few, [])
        assert len(cut) == (1 if len(too_few) == 2 else 0)


def test_positions_that_are_named_cut_a_bundle_where_they_lie_within_it() -> None:
    bundle = checked_bundle("0x80000000_0xc0000000", FOUR)
    wanted = [2400000000, 1, 2300000000, 2400000000, bundle.lower, bundle.upper, -1, 10**30]
    assert split_positions(bundle, SPECIFIED_POSITIONS_DIVIDE, [], wanted) == [2300000000, 2400000000]
    assert split_positions(bundle, SPECIFIED_POSITIONS_DIVIDE, [], [1]) == []


@pytest.mark.parametrize("algorithm", [SPECIFIED_POSITIONS_DIVIDE, "flow_or_qps_equally_divide", "nonsense"])
def test_a_split_without_what_it_needs_is_refused(algorithm: str) -> None:
    with pytest.raises(AdminError) as refused:
        split_positions(Bundle(0, 16), algorithm, [], [])
    assert refused.value.status == 412


def test_a_namespace_does_not_get_more_bundles_than_it_may_have() -> None:
    boundaries = even_bundles(MAX_BUNDLE_COUNT).boundaries
    with pytest.raises(AdminError) as refused:
        split_boundaries(boundaries, bundles_of(boundaries)[0], [1])
    assert refused.value.status == 412


def test_a_bundle_of_two_hashes_is_not_cut_into_nothing() -> None:
    assert split_positions(Bundle(8, 9), RANGE_EQUALLY_DIVIDE, [8, 8], []) == []


def test_the_fullest_bundle_is_the_first_of_those_with_most_topics() -> None:
    assert fullest_bundle(FOUR, []) is None
    assert fullest_bundle(FOUR, [1, 0x40000000, 0x40000001]) == bundles_of(FOUR)[1]
    assert fullest_bundle(FOUR, [1, HIGHEST_HASH, HIGHEST_HASH]) == bundles_of(FOUR)[3]


def test_hottest_bundle_has_most_bytes_per_second_of_bundles_with_topics() -> None:
    loads = {
        "t/n/0x00000000_0x40000000": BundleFigures(byte_rate_in=900.0),
        "t/n/0x40000000_0x80000000": BundleFigures(byte_rate_in=100.0, byte_rate_out=200.0, topic_count=3),
        "t/n/0x80000000_0xc0000000": BundleFigures(byte_rate_in=250.0, topic_count=9),
        "t/other/0xc0000000_0xffffffff": BundleFigures(byte_rate_in=5000.0, topic_count=1),
    }
    assert hottest_bundle("t/n", FOUR, loads) == bundles_of(FOUR)[1]
    assert hottest_bundle("t/n", FOUR, {}) is None


LIMITS = FlowLimits(100.0, 1000.0, 0.1)


def _loads(*rates: tuple[int, float, float]) -> list[TopicLoad]:
    return [TopicLoad(*each) for each in rates]


def test_bundle_is_divided_by_rates_so_that_parts_stay_within_limits() -> None:
    bundle = Bundle(0, 1000)
    busy = _loads((10, 60, 0), (20, 40, 0), (30, 1, 0), (40, 50, 0), (50, 60, 0))
    assert flow_positions(bundle, busy, LIMITS) == [26, 46]
    assert flow_positions(bundle, busy[::-1], LIMITS) == [26, 46]
    by_bytes = _loads((10, 1, 600), (21, 1, 600), (30, 0, 0))
    assert flow_positions(bundle, by_bytes, LIMITS) == [16]


def test_bundle_within_limits_or_with_one_busy_topic_is_not_divided_by_rates() -> None:
    bundle = Bundle(0, 1000)
    assert flow_positions(bundle, [], LIMITS) == []
    assert flow_positions(bundle, _loads((10, 500, 0), (20, 0, 0)), LIMITS) == []
    assert flow_positions(bundle, _loads((10, 54, 0), (20, 55, 0)), LIMITS) == []
    assert flow_positions(bundle, _loads((10, 55, 0), (20, 56, 0)), LIMITS) == [16]
    assert flow_positions(bundle, _loads((10, 500, 0), (10, 500, 0)), LIMITS) == []
    neighbours = _loads((0, 500, 0), (1, 500, 0), (999, 500, 0))
    assert flow_positions(bundle, neighbours, LIMITS) == [1, 501]
