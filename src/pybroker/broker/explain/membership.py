"""Findings about this broker's membership in its cluster, which concern all topics of the broker."""

from __future__ import annotations

from pybroker.cluster.membership.membership_report import MembershipReport
from pybroker.model.findings import Code, Finding

MAX_NAMED = 5
"""Maximum number of brokers in the evidence of a finding."""


def explain_membership(report: MembershipReport | None) -> list[Finding]:
    """Return findings about problems of the membership. `report` is None for a standalone broker."""
    if report is None:
        return []
    findings = []
    if report.conflict:
        findings.append(
            Finding(
                Code.BROKER_NOT_REGISTERED,
                f"Broker {report.broker_id} is not registered in its cluster: {report.conflict}.",
                evidence={"broker": report.broker_id, "reason": report.conflict},
            )
        )
    if report.load_manager_problem:
        findings.append(
            Finding(
                Code.LOAD_MANAGER_CONFLICT,
                f"Lookups of this cluster may lead to the wrong broker: {report.load_manager_problem}.",
                waits=False,
                evidence={"leader": report.leader_id or "", "reason": report.load_manager_problem},
            )
        )
    if report.unusable:
        broker_id, reason = next(iter(sorted(report.unusable.items())))
        findings.append(
            Finding(
                Code.REGISTRATION_UNUSABLE,
                f"The registration of broker {broker_id} in the metadata store cannot be used: {reason}.",
                waits=False,
                evidence={
                    "brokers": dict(sorted(report.unusable.items())[:MAX_NAMED]),
                    "moreBrokers": max(0, len(report.unusable) - MAX_NAMED),
                },
            )
        )
    if report.clock_differences_ms:
        findings.append(_clock_skew(report))
    return findings


def _clock_skew(report: MembershipReport) -> Finding:
    found = sorted(report.clock_differences_ms.items(), key=lambda each: (-abs(each[1]), each[0]))
    broker_id, difference_ms = found[0]
    direction = "ahead of" if difference_ms > 0 else "behind"
    return Finding(
        Code.CLOCK_SKEW,
        f"The clock of broker {broker_id} is {abs(difference_ms) / 1000:,.0f} s {direction} that of broker {report.broker_id}.",
        waits=False,
        evidence={
            "clockDifferencesMs": dict(found[:MAX_NAMED]),
            "moreBrokers": max(0, len(found) - MAX_NAMED),
        },
    )
