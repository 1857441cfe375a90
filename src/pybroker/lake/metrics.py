"""Prometheus metrics of a pipeline, on a port or in a file for the node exporter."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pybroker.lake.lake_pipeline import Figures

_COUNTERS = {
    "commits": "Commits of rows or positions.",
    "rows": "Rows committed.",
    "files": "Data files committed.",
    "bytes_written": "Bytes of committed data files.",
    "bytes_read": "Bytes of stored entries whose rows are committed.",
    "conflicts": "Commits that conflicted with another process's, and were repeated or dropped.",
}
_GAUGES = {
    "lag_bytes": "Bytes of stored entries that are not in the table yet, at the last check.",
    "commit_seconds": "How long the last commit took, without reading and writing.",
}


class LakeMetrics:
    """A collector that reads the pipeline's counters at each scrape."""

    def __init__(self, figures: Figures, pipeline: str, table: str) -> None:
        self._figures = figures
        self._labels = [pipeline, table]
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        families: list[CounterMetricFamily | GaugeMetricFamily] = []
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"pybroker_lake_{name}", text, labels=["pipeline", "table"])
            counter.add_metric(self._labels, float(getattr(self._figures, name)))
            families.append(counter)
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"pybroker_lake_{name}", text, labels=["pipeline", "table"])
            gauge.add_metric(self._labels, float(getattr(self._figures, name)))
            families.append(gauge)
        last = GaugeMetricFamily(
            "pybroker_lake_last_commit_timestamp_seconds",
            "Time of the last commit, in seconds since 1970.",
            labels=["pipeline", "table"],
        )
        last.add_metric(self._labels, self._figures.last_commit_ms / 1000)
        families.append(last)
        return families

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        server, _ = start_http_server(port, host, self.registry)
        return int(server.server_port)

    def write(self, path: Path) -> None:
        write_to_textfile(str(path), self.registry)
