from __future__ import annotations

import json

import pytest

from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport
from pybroker.cluster.load_balance.stored_averages import decoded_bundle, encoded_broker, encoded_bundle

BUNDLE = "t/n/0x00000000_0xffffffff"
OF_JAVA = (
    b'{"shortTermData":{"maxSamples":10,"numSamples":10,"msgThroughputIn":2.0,"msgThroughputOut":4.0,"msgRateIn":1.0,'
    b'"msgRateOut":3.0},"longTermData":{"maxSamples":1000,"numSamples":700,"msgThroughputIn":20.0,"msgThroughputOut":40.0,'
    b'"msgRateIn":10.0,"msgRateOut":30.0},"topics":7}'
)


def test_averages_of_java_are_read_and_written_with_the_same_members() -> None:
    found = decoded_bundle(OF_JAVA)
    assert found is not None
    assert (found.long.samples, found.long.message_rate, found.short.byte_rate, found.topic_count) == (700, 40, 6, 7)
    assert json.loads(encoded_bundle(found)) == json.loads(OF_JAVA)


def test_next_leader_continues_averages_unless_its_own_have_more_samples() -> None:
    averages, stored = BundleAverages(), decoded_bundle(OF_JAVA)
    assert stored is not None
    report = LoadReport(bundles={BUNDLE: BundleFigures(1, 1, 1, 1, topic_count=2)}, measured_ms=1)
    averages.add("b:1", report, 0)
    averages.continue_from(BUNDLE, stored, 0)
    assert averages.long_message_rate(BUNDLE) == 40
    averages.add("b:1", LoadReport(bundles=report.bundles, measured_ms=2), 0)
    assert averages.of(BUNDLE).long.samples == 701
    assert 39.9 < averages.long_message_rate(BUNDLE) < 40
    averages.continue_from(BUNDLE, stored, 0)
    assert averages.of(BUNDLE).long.samples == 701, "these are newer"


def test_broker_has_the_sums_of_its_bundles_and_the_default_of_unknown_ones() -> None:
    averages, stored = BundleAverages(), decoded_bundle(OF_JAVA)
    assert stored is not None
    averages.continue_from(BUNDLE, stored, 0)
    assert json.loads(encoded_broker(averages.sums([BUNDLE, "t/n/unknown"]))) == {
        "shortTermMsgThroughputIn": 50_002.0,
        "shortTermMsgThroughputOut": 50_004.0,
        "shortTermMsgRateIn": 51.0,
        "shortTermMsgRateOut": 53.0,
        "longTermMsgThroughputIn": 50_020.0,
        "longTermMsgThroughputOut": 50_040.0,
        "longTermMsgRateIn": 60.0,
        "longTermMsgRateOut": 80.0,
    }
    assert set(json.loads(encoded_broker(None)).values()) == {0.0}


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"{}", OF_JAVA.replace(b"10.0", b'"NaN"'), OF_JAVA.replace(b"10.0", b"-1"), b"\xff"]
)
def test_unusable_values_are_ignored(value: bytes) -> None:
    assert decoded_bundle(value) is None


def test_busiest_bundles_come_first() -> None:
    averages = BundleAverages()
    bundles = {f"t/n/{number}": BundleFigures(1, number, 1, 0) for number in range(5)}
    averages.add("b:1", LoadReport(bundles=bundles, measured_ms=1), 0)
    assert list(averages.busiest(2)) == ["t/n/4", "t/n/3"]
