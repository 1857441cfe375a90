"""Dashboards and alert rules use metrics and labels that a broker with default settings exports; promtool accepts all files."""

import re
import subprocess
from collections.abc import Iterator

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.support.alert_rules import ALERT_TESTS, ALERTS, DOCKER, alert_rules, is_about_bookies
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.promql import labels_of_page, problems
from tests.support.rest import call
from tests.support.secured import tls_settings
from tools import grafana_dashboards

OWN_METRICS = re.compile(r"(pybroker|process)_")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metrics of a broker with TLS, a topic, a subscription of each type, and a refused command."""
    directory = tmp_path_factory.mktemp("broker")
    settings = tls_settings(CertificateAuthority(directory))
    with BrokerProcess(directory, settings).running() as broker:
        client = new_client(broker.url)
        topic = "persistent://public/default/orders"
        for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Exclusive):
            client.subscribe(topic, kind.name, kind)
        client.create_producer(topic).send(b"1")
        assert call(f"{broker.http_url}/admin/v2/persistent/public/default/orders/terminate", "POST").status == 200
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer(topic)
        client.close()
        yield broker.get("/metrics")


def test_each_panel_uses_metrics_and_labels_of_the_page(page: str) -> None:
    labels = labels_of_page(page)
    found = []
    for dashboard in grafana_dashboards.DASHBOARDS:
        for panel in grafana_dashboards.document(dashboard)["panels"]:
            for target in panel.get("targets", ()):
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                where = f"{dashboard.title}, {panel['title']}"
                found += [f"{where}: {each}" for each in problems(target["expr"], shown, labels)]
    assert found == []


def test_each_variable_uses_a_metric_and_a_label_of_the_page(page: str) -> None:
    labels = labels_of_page(page)
    for dashboard in grafana_dashboards.DASHBOARDS:
        for variable in grafana_dashboards.document(dashboard)["templating"]["list"][1:]:
            query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert query is not None
            assert problems(query[1], {query[2]}, labels) == [], variable["name"]


def test_each_alert_uses_metrics_and_labels_of_the_page(page: str) -> None:
    labels = labels_of_page(page)
    found = []
    for rule in alert_rules():
        if is_about_bookies(rule):
            continue  # tests/bookkeeper/test_bookies_in_trouble.py
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
        found += [f"{rule.name}: {each}" for each in problems(rule.expression, shown, labels)]
    assert found == []


@pytest.mark.promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", str(ALERTS)),
        ("check", "config", str(DOCKER / "prometheus.yml")),
        ("test", "rules", str(ALERT_TESTS)),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_accepts_rules_and_configuration(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_promtool_has_no_objection_to_our_own_metrics(page: str) -> None:
    """Names that Pulsar defines are exempt: clients and dashboards depend on them."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    objections = (done.stdout + done.stderr).splitlines()
    assert done.returncode in {0, 3}, objections  # 3: objections, and no error
    assert [line for line in objections if OWN_METRICS.match(line)] == []
    assert all(line.startswith(("pulsar_", "topic_load_failed")) for line in objections), objections
