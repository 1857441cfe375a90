"""Metrics and labels that a PromQL expression uses, for the subset of PromQL in our dashboards and alert rules."""

from __future__ import annotations

import re
from typing import NamedTuple

OF_PROMETHEUS = frozenset({"up", "ALERTS"})
"""Metrics that Prometheus itself creates."""
TARGET_LABELS = frozenset({"job", "instance"})
"""Labels that Prometheus adds to each sample of a target."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^{}]*)\}")
_RANGE = re.compile(r"\[[^\]]*\]")
_METRIC = re.compile(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset"})


class Used(NamedTuple):
    """What one expression uses."""

    metrics: frozenset[str]
    matched_labels: frozenset[tuple[str, str]]
    """Metrics and the labels in their selectors."""
    grouping_labels: frozenset[str]


def used_by(expression: str) -> Used:
    rest = _STRING.sub('""', expression)
    groupings = _GROUPING.findall(rest)
    rest = _RANGE.sub("", _GROUPING.sub("", rest))
    matched = {
        (metric, matcher.strip())
        for metric, matchers in _SELECTOR.findall(rest)
        for matcher in re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", matchers)
    }
    names = _METRIC.findall(_SELECTOR.sub(r"\1", rest))
    labels = {label.strip() for grouping in groupings for label in grouping.split(",")}
    return Used(
        frozenset(name for name in names if name not in _WORDS),
        frozenset(matched),
        frozenset(label for label in labels if label),
    )


def labels_of_page(page: str) -> dict[str, set[str]]:
    """The labels of each sample's name on a metrics page."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.partition("{")
            found.setdefault(name, set()).update(re.findall(r'([a-zA-Z_]\w*)=(?=")', _STRING.sub('""', labels)))
    return found


def problems(expression: str, shown_labels: set[str], page_labels: dict[str, set[str]]) -> list[str]:
    """The metrics and labels in the expression, and the labels in its texts, that no sample of the page has."""
    used = used_by(expression)
    found = [f"no metric {name}" for name in sorted(used.metrics - OF_PROMETHEUS - page_labels.keys())]
    if not used.metrics:
        found.append("no metric at all")
    if used.metrics & OF_PROMETHEUS or found:
        return found
    for metric, label in sorted(used.matched_labels):
        if label not in page_labels[metric] | TARGET_LABELS:
            found.append(f"{metric} has no label {label}")
    labels = TARGET_LABELS.union(*(page_labels[metric] for metric in used.metrics))
    if used.grouping_labels:
        found += [f"no label {label}" for label in sorted(used.grouping_labels - labels)]
        labels &= used.grouping_labels
    return found + [f"no label {label} in the result" for label in sorted(shown_labels - labels)]
