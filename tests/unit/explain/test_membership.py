from __future__ import annotations

from pybroker.broker.explain.membership import explain_membership
from pybroker.cluster.membership.membership_report import MembershipReport
from pybroker.model.findings import Code

WELL = MembershipReport("h:1", True, True, "h:1", 2, "", "", {}, 0, 0)


def test_explain_reports_nothing_without_a_cluster_or_a_problem() -> None:
    assert explain_membership(None) == []
    assert explain_membership(WELL) == []


def test_explain_names_why_the_broker_is_not_registered() -> None:
    (finding,) = explain_membership(WELL._replace(is_registered=False, conflict="another broker is registered as h:1"))
    assert finding.code is Code.BROKER_NOT_REGISTERED
    assert "another broker is registered as h:1" in finding.sentence


def test_explain_names_another_load_manager_and_unusable_registrations() -> None:
    found = explain_membership(
        WELL._replace(load_manager_problem="broker b uses X", unusable={"j:1": "it is not JSON"})
    )
    assert [each.code for each in found] == [Code.LOAD_MANAGER_CONFLICT, Code.REGISTRATION_UNUSABLE]
    assert "j:1" in found[1].sentence
    assert not any(each.waits for each in found)


def test_explain_names_the_largest_clock_difference() -> None:
    (finding,) = explain_membership(WELL._replace(clock_differences_ms={"a:1": 7_000, "b:1": -61_000}))
    assert finding.code is Code.CLOCK_SKEW
    assert finding.sentence == "The clock of broker b:1 is 61 s behind that of broker h:1."
    assert not finding.waits
