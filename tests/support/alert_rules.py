"""The alert rules of `docker/prometheus/alerts.yml`, read line by line; promtool checks their syntax."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCKER = Path(__file__).resolve().parents[2] / "docker"
ALERTS = DOCKER / "prometheus" / "alerts.yml"
ALERT_TESTS = DOCKER / "prometheus" / "alerts_test.yml"


class AlertRule(NamedTuple):
    """One rule."""

    name: str
    expression: str
    severity: str
    annotations: dict[str, str]


def alert_rules() -> list[AlertRule]:
    rules = []
    for text in re.split(r"^ +- alert: ", ALERTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name = text.partition("\n")[0]
        found = re.search(r"^ +expr: (?:>-\n((?: {10}\S.*\n)+)|(.*)\n)", text, flags=re.MULTILINE)
        severity = re.search(r"^ +severity: (\w+)$", text, flags=re.MULTILINE)
        assert found is not None, name
        assert severity is not None, name
        expression = " ".join((found[1] or found[2]).split())
        annotations = dict(re.findall(r"^ +(summary|description|runbook): (.*)$", text, flags=re.MULTILINE))
        rules.append(AlertRule(name, expression, severity[1], annotations))
    return rules


def is_about_bookies(rule: AlertRule) -> bool:
    """Return whether only a broker with ledgers on BookKeeper exports the rule's metrics."""
    return "bookie" in rule.expression or "bookkeeper" in rule.expression
