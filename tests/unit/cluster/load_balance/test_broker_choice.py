from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pybroker.cluster.load_balance.broker_choice import (
    DECISION_MS,
    BundleAssignment,
    Candidate,
    ChoiceSettings,
    Placement,
)
from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.isolation_rules import permitted_hosts, spread_by_group
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage, changed_percent
from pybroker.model.cluster_data import AutoFailoverPolicy, NamespaceIsolationData

SETTINGS = ChoiceSettings()
EVERYWHERE = Placement()


def report(cpu: float = 10, **rates: float) -> LoadReport:
    """Bundles of namespace `t/n`, with messages per second."""
    bundles = {f"t/n/{name}": BundleFigures(rate, rate * 100, topic_count=1) for name, rate in rates.items()}
    return LoadReport(cpu=ResourceUsage(cpu, 100), bundles=bundles, measured_ms=1)


def assignment(**reports: LoadReport) -> BundleAssignment:
    averages = BundleAverages()
    for name, found in reports.items():
        averages.add(name, found, 0)
    chooser = BundleAssignment(averages, Random(1))
    chooser.set_candidates(Candidate(name, name, found) for name, found in reports.items())
    return chooser


def choose(chooser: BundleAssignment, bundle: str, placement: Placement = EVERYWHERE, now_ms: float = 0) -> str | None:
    return chooser.choose(bundle, placement, SETTINGS, now_ms)


def test_bundle_goes_to_the_lowest_message_rate() -> None:
    chooser = assignment(a=report(x=5000), b=report(y=10), c=report(z=4000))
    assert choose(chooser, "o/n/1") == "b"


def test_fresh_bundles_of_many_namespaces_are_divided_by_their_expected_rate() -> None:
    chooser = assignment(a=report(), b=report(), c=report(), d=report())
    found = Counter(choose(chooser, f"t/namespace-{number}/0") for number in range(16))
    assert found == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_fewest_bundles_of_the_namespace_come_before_the_rate() -> None:
    chooser = assignment(a=report(x=10), b=LoadReport(bundles={"o/o/1": BundleFigures(900)}, measured_ms=1))
    assert choose(chooser, "t/n/new") == "b"
    settings = ChoiceSettings(distributes_evenly=False)
    assert assignment(a=report(x=10), b=report(y=900)).best("t/n/new", EVERYWHERE, settings) == "a"


def test_overloaded_broker_gets_a_bundle_only_if_all_are() -> None:
    assert choose(assignment(a=report(cpu=86), b=report(cpu=84, x=10_000)), "o/n/1") == "b"
    assert choose(assignment(a=report(cpu=95), b=report(cpu=90, x=10_000)), "o/n/1") == "b"


def test_new_bundles_are_divided_among_brokers_that_are_all_overloaded() -> None:
    chooser = assignment(a=report(cpu=99), b=report(cpu=95), c=report(cpu=97))
    chosen = [choose(chooser, f"o/n/{number}") for number in range(9)]
    assert {broker: chosen.count(broker) for broker in "abc"} == {"a": 3, "b": 3, "c": 3}


def test_broker_without_a_report_comes_last() -> None:
    chooser = assignment(idle=LoadReport(), b=report(x=9000))
    assert choose(chooser, "o/n/1") == "b"


def test_decision_is_repeated_until_the_bundle_is_acquired() -> None:
    chooser = assignment(a=report(), b=report())
    first = choose(chooser, "t/n/1")
    assert {choose(chooser, "t/n/1") for _ in range(20)} == {first}
    assert chooser.open_count == 1
    chooser.acquired("t/n/1")
    assert chooser.open_count == 0
    assert choose(chooser, "t/n/2") != first, "the acquired bundle counts until a report shows it"


def test_decision_ends_when_its_broker_is_gone_and_after_a_time() -> None:
    chooser = assignment(a=report(), b=report())
    first = choose(chooser, "t/n/1")
    left = {"a": "b", "b": "a"}[str(first)]
    chooser.set_candidates([Candidate(left, left, report())])
    assert choose(chooser, "t/n/1") == left
    assert len(chooser) == 1
    chooser.set_candidates([])
    assert choose(chooser, "t/n/1") is None
    again = assignment(a=report())
    choose(again, "t/n/1", now_ms=0)
    choose(again, "t/n/2", now_ms=DECISION_MS)
    assert len(again) == 1


def test_unloaded_bundle_does_not_count_against_its_former_owner() -> None:
    """The last report of the former owner still has it."""
    chooser = assignment(a=report(x=100, y=100), b=report(z=100, w=100))
    assert choose(chooser, "t/n/x") == "a"


def test_released_bundle_keeps_a_decision_that_was_made_before() -> None:
    chooser = assignment(a=report(x=1), b=report())
    chooser.decide("t/n/x", "b", 0)
    chooser.released("t/n/x")
    assert choose(chooser, "t/n/x") == "b"
    chooser.acquired("t/n/x")
    chooser.released("t/n/x")
    assert len(chooser) == 0


def policy(primary: list[str], secondary: list[str] | None = None, min_limit: str = "1") -> NamespaceIsolationData:
    failover = AutoFailoverPolicy("min_available", {"min_limit": min_limit, "usage_threshold": "80"})
    return NamespaceIsolationData(["t/.*"], primary, secondary or [], failover)


@pytest.mark.parametrize(
    ("namespace", "hosts", "found", "permitted"),
    [
        ("t/n", ["a", "b", "c"], policy(["a"]), {"a"}),
        ("t/n", ["b", "c"], policy(["a"]), set()),
        ("t/n", ["b", "c"], policy(["a"], ["c"]), {"c"}),
        ("t/n", ["a", "b", "c"], policy(["a"], ["c"], "2"), {"a", "c"}),
        ("t/n", ["a", "a", "c"], policy(["a"], ["c"], "2"), {"a"}),
        ("o/n", ["a", "b", "c"], policy(["a"], ["c"]), {"b", "c"}),
        ("o/n", ["a"], policy([".*"]), set()),
        ("t/n", ["a"], policy(["("]), set()),
    ],
)
def test_isolation_follows_pulsar(
    namespace: str, hosts: list[str], found: NamespaceIsolationData, permitted: set[str]
) -> None:
    assert permitted_hosts(namespace, hosts, {"p": found}) == permitted


def test_anti_affinity_spreads_the_namespaces_of_a_group() -> None:
    groups = {"t/red": "g", "t/blue": "g"}
    placement = Placement(group_of=groups.get)
    reds = LoadReport(bundles={"t/red/0": BundleFigures()}, measured_ms=1)
    chooser = assignment(a=reds, b=LoadReport(bundles={"o/n/0": BundleFigures(9000)}, measured_ms=1))
    assert choose(chooser, "t/blue/0", placement) == "b"
    assert choose(chooser, "o/other/0", placement) == "a"


def test_anti_affinity_prefers_the_failure_domain_with_the_fewest() -> None:
    domains = {"a": "d1", "b": "d1", "c": "d2", "e": "d2"}
    assert spread_by_group("abce", {"a": 2, "b": 1, "c": 3, "e": 1}, domains) == ["b"]
    assert spread_by_group("abce", {"a": 2, "b": 1, "c": 1, "e": 1}, domains) == ["c", "e"]
    assert spread_by_group("abc", {"a": 1}, {}) == ["b", "c"]


def test_averages_start_with_the_first_report_and_outlast_a_move() -> None:
    averages = BundleAverages()
    assert averages.long_message_rate("t/n/x") == 100
    averages.add("a", report(x=10), 0)
    assert averages.long_message_rate("t/n/x") == 10
    averages.add("a", report(x=90), 0)
    assert averages.long_message_rate("t/n/x") == 10, "the same report"
    averages.expire({"a": report()}, 60_000)
    assert averages.long_message_rate("t/n/x") == 10
    averages.expire({"a": report()}, 3_600_000)
    assert len(averages) == 0


def test_change_of_a_report_is_counted_as_by_java_brokers() -> None:
    assert changed_percent(report(cpu=10), report(cpu=25)) == pytest.approx(15)
    assert changed_percent(report(), report()) == 0
    assert changed_percent(report(), report(x=1)) == float("inf")
    assert changed_percent(report(x=100), report(x=111)) == pytest.approx(11)
