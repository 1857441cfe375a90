"""Dashboards and alert rules: the files are up to date, and each alert has a section that says what to do."""

import json
import re
from typing import Any

import pytest
from tests.support.alert_rules import ALERT_TESTS, DOCKER, alert_rules
from tests.support.promql import labels_of_page, problems, used_by
from tools import grafana_dashboards

PAGE = DOCKER.parent / "docs" / "how-to" / "alerts.md"


def panels(dashboard: grafana_dashboards.Dashboard) -> list[dict[str, Any]]:
    return list(grafana_dashboards.document(dashboard)["panels"])


def test_files_are_those_that_the_tool_writes() -> None:
    written = {f"{each.uid}.json": grafana_dashboards.text(each) for each in grafana_dashboards.DASHBOARDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in grafana_dashboards.DIRECTORY.iterdir()}
    assert found == written, "run python -m tools.grafana_dashboards"


@pytest.mark.parametrize("dashboard", grafana_dashboards.DASHBOARDS, ids=lambda each: each.uid)
def test_panels_have_places_and_numbers_of_their_own(dashboard: grafana_dashboards.Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < grafana_dashboards.WIDTH for x, _ in cells), panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in panels(dashboard)]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("dashboard", grafana_dashboards.DASHBOARDS, ids=lambda each: each.uid)
def test_variables_in_expressions_are_those_of_the_dashboard(dashboard: grafana_dashboards.Dashboard) -> None:
    document = grafana_dashboards.document(dashboard)
    declared = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([document["panels"], document["templating"]])))
    assert used - {"__rate_interval", "__all"} == declared


def test_each_alert_has_texts_and_a_section_of_the_page() -> None:
    sections = {
        title: text
        for title, _, text in (each.partition("\n") for each in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
        if title.startswith("Pybroker")
    }
    rules = alert_rules()
    assert [rule.name for rule in rules] == list(sections)
    for rule in rules:
        assert set(rule.annotations) == {"summary", "description", "runbook"}, rule.name
        assert rule.annotations["runbook"] == f"docs/how-to/alerts.md#{rule.name.lower()}"
        assert rule.severity in {"critical", "warning"}
        for part in ("**Meaning.**", "**Look at.**", "**Do.**"):
            assert part in sections[rule.name], (rule.name, part)


def test_each_alert_is_among_those_that_the_tests_of_the_rules_see_firing() -> None:
    firing = re.findall(r"alertname=\"(\w+)\"}'", ALERT_TESTS.read_text(encoding="utf-8"))
    assert firing == [rule.name for rule in alert_rules()]


def test_files_that_compose_mounts_exist() -> None:
    mounted = re.findall(r"^ +- (\./[\w./-]+):", (DOCKER / "compose.yaml").read_text(), flags=re.MULTILINE)
    assert len(mounted) == 4
    assert [name for name in mounted if not (DOCKER / name).exists()] == []


@pytest.mark.parametrize(
    ("expression", "metrics", "matched", "grouping"),
    [
        ("a > 0 and b == 1e3 or vector(0)", "a b", {}, ""),
        ('rate(a{b="c{d}",e!~"f"}[5m]) / (g > 0)', "a g", {("a", "b"), ("a", "e")}, ""),
        ("histogram_quantile(0.99, sum by (le, i) (rate(a_bucket[$__rate_interval])))", "a_bucket", {}, "le i"),
        ('topk(10, time() - a{b=~"$c"} / 1000 unless on (d) e)', "a e", {("a", "b")}, "d"),
    ],
)
def test_metrics_and_labels_of_expressions_are_found(
    expression: str, metrics: str, matched: set[tuple[str, str]], grouping: str
) -> None:
    used = used_by(expression)
    assert used.metrics == set(metrics.split())
    assert used.matched_labels == set(matched)
    assert used.grouping_labels == set(grouping.split())


def test_metrics_and_labels_that_no_page_has_are_reported() -> None:
    page = labels_of_page('# TYPE a gauge\na{cluster="x",b="1,c=\\"2\\""} 1\nd{cluster="x"} 2\n')
    assert page == {"a": {"cluster", "b"}, "d": {"cluster"}}
    assert problems('a{b="1",job="j"} > d', {"b", "instance"}, page) == []
    assert problems("x + a", set(), page) == ["no metric x"]
    assert problems('d{b="1"}', set(), page) == ["d has no label b"]
    assert problems("sum by (c) (a)", set(), page) == ["no label c"]
    assert problems("sum by (b) (a)", {"cluster"}, page) == ["no label cluster in the result"]
    assert problems("1 + 1", set(), page) == ["no metric at all"]
