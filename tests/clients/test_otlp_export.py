"""A broker sends the figures of its metrics page to an OpenTelemetry collector, and reports a collector that fails."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.clients.conftest import until
from tests.support.broker_process import BrokerProcess
from tests.support.promql import labels_of_page


class Collector(ThreadingHTTPServer):
    """Keeps what brokers send, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorRequest)
        self.documents: list[dict[str, Any]] = []
        self.status = 200
        self.refused = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class CollectorRequest(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert (self.path, self.headers["Content-Type"]) == ("/v1/metrics", "application/json")
        if self.server.status == 200:
            self.server.documents.append(json.loads(gzip.decompress(body)))
        else:
            self.server.refused += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Write nothing to the output of the tests."""


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = Thread(target=collector.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()


def test_collector_receives_each_metric_of_the_page(tmp_path: Path) -> None:
    with collecting() as collector:
        settings = {"otelExporterOtlpEndpoint": collector.url, "otelExportIntervalSeconds": "1"}
        with BrokerProcess(tmp_path, settings).running_well() as broker:
            until(lambda: len(collector.documents) >= 2)
            page = labels_of_page(broker.get("/metrics"))
        resources = [resource for document in collector.documents for resource in document["resourceMetrics"]]
        attributes = {each["key"]: each["value"]["stringValue"] for each in resources[0]["resource"]["attributes"]}
        assert attributes["service.name"] == "pybroker"
        assert attributes["service.instance.id"].endswith(f":{broker.ready['http_port']}")
        sent = {metric["name"] for resource in resources for metric in resource["scopeMetrics"][0]["metrics"]}
        shown = {name for name in page if not name.endswith(("_bucket", "_sum", "_count"))}
        # A gauge without a value is not sent: no topic was loaded, so its load times are NaN.
        assert shown - sent == {name for name in shown if name.startswith("pulsar_topic_load_time_")}
        assert "pybroker_loop_tick_lag_seconds" in sent


def test_failing_collector_is_reported_once_and_when_it_works_again(tmp_path: Path) -> None:
    with collecting() as collector:
        collector.status = 500
        settings = {"otelExporterOtlpEndpoint": collector.url, "otelExportIntervalSeconds": "1"}
        with BrokerProcess(tmp_path, settings).running_well() as broker:
            until(lambda: collector.refused >= 2)
            collector.status = 200
            until(lambda: "otlp.restored" in broker.log.read_text())
            assert broker.log.read_text().count("otlp.failed") == 1
            assert collector.documents
