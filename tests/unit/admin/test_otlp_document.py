"""The metrics page as OTLP documents: each kind of metric, labels, missing values, and the size of a document."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from pybroker.admin.metrics import otlp_document
from pybroker.admin.metrics.otlp_document import MAX_POINTS, documents

PAGE = r"""# HELP g A gauge.
# TYPE g gauge
g{cluster="c",topic="a \"b\"\\\n"} 1.5
g{cluster="c",topic="empty"} NaN
# HELP n_total A counter.
# TYPE n_total counter
n_total{cluster="c"} 3
# TYPE h histogram
h_bucket{cluster="c",le="0.1"} 2
h_bucket{cluster="c",le="1.0"} 5
h_bucket{cluster="c",le="+Inf"} 6
h_count{cluster="c"} 6
h_sum{cluster="c"} 4.5
# HELP s A summary.
# TYPE s summary
s{cluster="c",quantile="0.5"} 2.0
s{cluster="c",quantile="0.9"} NaN
s_count{cluster="c"} 4
s_sum{cluster="c"} 9
# HELP unused A family without samples.
# TYPE unused counter
"""
NOW_NS = 1_800_000_000_000_000_000
CLUSTER = {"key": "cluster", "value": {"stringValue": "c"}}


def metrics_of(document: otlp_document.Json) -> list[dict[str, Any]]:
    (resource,) = document["resourceMetrics"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "b"}}]
    (scope,) = resource["scopeMetrics"]
    assert scope["scope"] == {"name": "pybroker", "version": "1"}
    return list(scope["metrics"])


def test_each_kind_of_metric_is_converted() -> None:
    (document,) = documents(PAGE, {"service.name": "b"}, "1", NOW_NS)
    gauge, counter, histogram, summary = metrics_of(document)
    common = {"attributes": [CLUSTER], "timeUnixNano": str(NOW_NS)}
    topic = {"key": "topic", "value": {"stringValue": 'a "b"\\\n'}}
    assert gauge == {
        "name": "g",
        "description": "A gauge.",
        "gauge": {"dataPoints": [{**common, "attributes": [CLUSTER, topic], "asDouble": 1.5}]},
    }
    assert counter == {
        "name": "n_total",
        "description": "A counter.",
        "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [{**common, "asDouble": 3.0}]},
    }
    point = {**common, "count": "6", "sum": 4.5, "bucketCounts": ["2", "3", "1"], "explicitBounds": [0.1, 1.0]}
    assert histogram == {
        "name": "h",
        "description": "",
        "histogram": {"aggregationTemporality": 2, "dataPoints": [point]},
    }
    point = {**common, "count": "4", "sum": 9.0, "quantileValues": [{"quantile": 0.5, "value": 2.0}]}
    assert summary == {"name": "s", "description": "A summary.", "summary": {"dataPoints": [point]}}


def test_large_page_is_divided_and_complete() -> None:
    count = 2 * MAX_POINTS + 5
    rows = "".join(f'g{{topic="{index}"}} {index}\n' for index in range(count))
    page = f"# HELP g A gauge.\n# TYPE g gauge\n{rows}# HELP last Another.\n# TYPE last gauge\nlast{{}} 1\n"
    parts = [metrics_of(document) for document in documents(page, {"service.name": "b"}, "1", NOW_NS)]
    assert [[metric["name"] for metric in part] for part in parts] == [["g"], ["g"], ["g", "last"]]
    values = [
        point["asDouble"]
        for part in parts
        for metric in part
        if metric["name"] == "g"
        for point in metric["gauge"]["dataPoints"]
    ]
    assert values == list(range(count))


def test_empty_page_gives_no_document() -> None:
    assert list(documents("", {}, "1", NOW_NS)) == []


def test_exporter_is_imported_only_if_an_address_is_configured() -> None:
    program = "import sys, pybroker.broker_process; print([name for name in sys.modules if '.otlp_' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
