"""The whole metrics page of a running broker follows the rules of `promtool check metrics`."""

from pathlib import Path

import pulsar
from pulsar.schema import AvroSchema, Integer, Record
from tests.clients.conftest import admin, path_of, running_with_client, until
from tests.support.metric_rules import problems

TOPIC = "persistent://public/default/t"
EVERYTHING = {
    f"expose{part}InPrometheus": "true"
    for part in (
        "ConsumerLevelMetrics",
        "ProducerLevelMetrics",
        "ManagedCursorMetrics",
        "SubscriptionBacklogSize",
        "BundlesMetrics",
    )
}


class Order(Record):
    """A schema, so that the page has figures of schemas."""

    number = Integer()


def test_the_page_with_everything_on_it_has_help_and_type_for_each_family(tmp_path: Path) -> None:
    with running_with_client(tmp_path, **EVERYTHING) as (broker, client):
        admin(broker, "PUT", "/resourcegroups/g", {"publishRateInMsgs": 100})
        admin(broker, "POST", "/namespaces/public/default/resourcegroup/g")
        client.subscribe(TOPIC, "s", pulsar.ConsumerType.KeyShared)
        client.create_producer(TOPIC, schema=AvroSchema(Order)).send(Order(number=1), partition_key="k")
        admin(broker, "PUT", f"{path_of(TOPIC)}/compaction")
        until(lambda: admin(broker, "GET", f"{path_of(TOPIC)}/compaction").json["status"] == "SUCCESS")
        page = broker.get("/metrics")
    for name in (
        "pulsar_ml_cursor_",
        "pulsar_schema_put",
        "pulsar_compaction_",
        "pulsar_resource_group_",
        "pulsar_bundle_",
    ):
        assert f"\n# HELP {name}" in page
    assert problems(page) == []


def test_the_rules_find_what_is_wrong() -> None:
    page = """\
# TYPE wait_ms gauge
wait_ms 1
# HELP orders A counter.
# TYPE orders counter
orders{le="1"} 1
other 1
# HELP wait_seconds A histogram.
# TYPE wait_seconds histogram
wait_seconds_bucket{le="+Inf"} 1
wait_seconds_count 1
wait_seconds_sum 1
# HELP orders A counter.
# TYPE orders counter
"""
    assert problems(page) == [
        "orders: _total and the type counter go together, this is a counter",
        "orders: le and quantile are labels of histograms and summaries",
        "orders: the family is on the page twice",
        "other: a sample outside of its family, behind orders",
        "wait_ms: an abbreviated unit",
        "wait_ms: no HELP in front of TYPE",
    ]
