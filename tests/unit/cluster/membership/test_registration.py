from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cluster.membership.members import broker, java_registration

from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage
from pybroker.cluster.membership.joining_rules import address_refusal
from pybroker.cluster.membership.leader_rules import encoded_leader, leader_of
from pybroker.cluster.membership.registration import (
    MAX_REGISTRATION_BYTES,
    Registration,
    Unusable,
    encoded,
    instance_of,
    parsed,
)


def test_registration_is_read_as_it_was_written() -> None:
    listeners = {"internal": LookupResult("pulsar://i:6650", "", "http://i:8080", "")}
    own = RegisteredBroker("h:8080", "http://h:8080", "", "pulsar://h:6650", "", listeners, "Class", 5, "0.1.0")
    figures = BundleFigures(1.5, 200.0, 3.0, 400.0, 1, 2, 3)
    report = LoadReport(cpu=ResourceUsage(50, 200), bundles={"t/n/0x0_0x1": figures}, measured_ms=9)
    written = Registration(own, report, is_pybroker=True, stored_ms=11)
    value = encoded(written, "directory")
    assert parsed("h:8080", value) == written
    assert instance_of(value) == "directory"
    assert instance_of(java_registration(1)) == ""


def test_registration_of_very_many_bundles_fits_and_counts_them_all() -> None:
    bundles = {f"tenant/namespace-{n:06d}/0x00000000_0x10000000": BundleFigures(n, n, n, n) for n in range(12_000)}
    value = encoded(Registration(broker(0), LoadReport(bundles=bundles, measured_ms=1)), "d")
    assert len(value) <= MAX_REGISTRATION_BYTES
    data = json.loads(value)
    assert data["numBundles"] == 12_000
    assert len(data["lastStats"]) == len(data["bundles"]) > 3_000
    assert "tenant/namespace-011999/0x00000000_0x10000000" in data["lastStats"], "those with the highest rates stay"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pulsarServiceUrl": None}, "it has no pulsarServiceUrl"),
        ({"webServiceUrl": None}, "it has no webServiceUrl"),
        ({"webServiceUrl": ""}, "it has no webServiceUrl"),
        ({"webServiceUrl": "ftp://h:1"}, "is not http://host:port"),
        ({"pulsarServiceUrl": "pulsar://host"}, "is not pulsar://host:port"),
        ({"pulsarServiceUrl": "pulsar://h:99999"}, "is not pulsar://host:port"),
        ({"pulsarServiceUrl": "pulsar://h\n:1"}, "is not pulsar://host:port"),
    ],
)
def test_registration_without_usable_addresses_is_refused_with_the_reason(changed: dict[str, Any], reason: str) -> None:
    found = parsed("h:8080", java_registration(1, **changed))
    assert isinstance(found, Unusable)
    assert reason in found.reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted(json.loads(java_registration(1))))


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_reading_never_fails_and_figures_are_finite(changed: dict[str, Any]) -> None:
    found = parsed("h:8080", java_registration(1, **changed))
    if isinstance(found, Registration):
        totals = found.report.totals
        assert all(0 <= each < float("inf") for each in (*totals, found.report.usage_share))


@given(st.binary(max_size=60))
def test_reading_any_bytes_never_fails(value: bytes) -> None:
    assert isinstance(parsed("h:8080", value), Unusable)
    assert leader_of(value) is not None


def test_leader_is_read_from_new_and_old_values() -> None:
    assert leader_of(encoded_leader("h:8080", "http://h:8080")) == "h:8080"
    assert leader_of(b'{"serviceUrl":"http://h:8080"}') == "h:8080"
    assert leader_of(None) is None


def test_address_of_a_listener_is_unique_too() -> None:
    other = broker(2)
    listeners = {"x": LookupResult(other.broker_service_url, "", "", "")}
    own = RegisteredBroker("a:1", "http://a:1", "", "pulsar://a:2", "", listeners)
    assert "host-2:8080 is registered with an address" in str(address_refusal(own, [other]))
    assert address_refusal(own, [broker(3)]) is None
    assert address_refusal(own, [own]) is None
