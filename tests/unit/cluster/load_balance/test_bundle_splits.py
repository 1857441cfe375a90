from __future__ import annotations

from collections.abc import Collection

import pytest

from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.bundle_splits import SplitSettings, bundles_to_split
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport

MIB = 1 << 20
CALM = BundleFigures(10, 1000, 10, 1000, 5, 5, 10)
SETTINGS = SplitSettings(max_topics=100, max_sessions=50, max_message_rate=1000, max_bytes_per_s=MIB, max_bundles=4)


def split(
    bundles: dict[str, BundleFigures], settings: SplitSettings = SETTINGS, present: Collection[str] | None = None
) -> list[tuple[str, str]]:
    report = LoadReport(bundles=bundles, measured_ms=1)
    averages = BundleAverages()
    averages.add("b:1", report, 0)
    existing = bundles if present is None else present
    return [each[:2] for each in bundles_to_split({"b:1": report}, averages, lambda _: existing, settings)]


@pytest.mark.parametrize(
    "figures",
    [
        CALM._replace(topic_count=101),
        CALM._replace(consumer_count=46),
        CALM._replace(producer_count=46),
        CALM._replace(message_rate_in=995),
        CALM._replace(byte_rate_out=MIB),
    ],
)
def test_bundle_above_one_threshold_is_split(figures: BundleFigures) -> None:
    assert split({"t/n/a": figures, "t/n/b": CALM}) == [("t/n/a", "b:1")]


def test_bundle_at_all_thresholds_stays() -> None:
    assert split({"t/n/a": BundleFigures(500, MIB / 2, 500, MIB / 2, 25, 25, 100)}) == []


def test_bundle_with_one_topic_stays() -> None:
    assert split({"t/n/a": CALM._replace(topic_count=1, message_rate_in=1e9)}) == []


def test_zero_sessions_mean_no_limit() -> None:
    figures = CALM._replace(consumer_count=10_000)
    assert split({"t/n/a": figures}, SETTINGS._replace(max_sessions=0)) == []


def test_namespace_is_split_up_to_its_maximum_of_bundles() -> None:
    loaded = {f"t/n/{number}": CALM._replace(topic_count=1000) for number in range(3)}
    assert split(loaded) == [("t/n/0", "b:1")]
    assert split(loaded, SETTINGS._replace(max_bundles=5)) == [("t/n/0", "b:1"), ("t/n/1", "b:1")]
    assert split(loaded, SETTINGS._replace(max_bundles=3)) == []


def test_bundle_that_was_split_or_deleted_meanwhile_is_left_out() -> None:
    assert split({"t/n/a": CALM._replace(topic_count=1000)}, present=["t/n/b"]) == []


def test_rates_count_by_their_long_average() -> None:
    averages = BundleAverages()
    peak = CALM._replace(message_rate_in=5000)
    for measured_ms, figures in enumerate([CALM] * 9 + [peak], 1):
        report = LoadReport(bundles={"t/n/a": figures}, measured_ms=measured_ms)
        averages.add("b:1", report, 0)
    assert bundles_to_split({"b:1": report}, averages, lambda _: ["t/n/a"], SETTINGS) == []
