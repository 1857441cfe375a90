"""Conversion of the metrics page to OpenTelemetry documents (OTLP, JSON encoding).

Names, types, labels and values are parsed from the text of the page, so that metrics are defined only once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isnan
from typing import Any

MAX_POINTS = 2000
"""Approximate number of samples in a document. Collectors limit the size of requests."""
_CUMULATIVE = 2
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

Json = dict[str, Any]
_Labels = tuple[tuple[str, str], ...]


def documents(page: str, resource: dict[str, str], version: str, now_ns: int) -> Iterator[Json]:
    """Yield OTLP documents. A metric with more than MAX_POINTS samples continues in the next document.

    `resource` has attributes of the broker; `now_ns` is the time of the samples, in Unix nanoseconds.
    """
    metrics: list[Json] = []
    size = 0
    for metric, points in _metrics(page, str(now_ns)):
        metrics.append(metric)
        size += points
        if size >= MAX_POINTS:
            yield _document(metrics, resource, version)
            metrics, size = [], 0
    if metrics:
        yield _document(metrics, resource, version)


def _document(metrics: list[Json], resource: dict[str, str], version: str) -> Json:
    scope = {"scope": {"name": "pybroker", "version": version}, "metrics": metrics}
    return {
        "resourceMetrics": [{"resource": {"attributes": _attributes(tuple(resource.items()))}, "scopeMetrics": [scope]}]
    }


def _attributes(labels: _Labels) -> list[Json]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels]


def _metrics(page: str, time_ns: str) -> Iterator[tuple[Json, int]]:
    family = _Family("", "", "", time_ns)
    meaning = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            meaning = line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            yield from family.taken()
            _, _, name, kind = line.split(" ", 3)
            family, meaning = _Family(name, kind, meaning, time_ns), ""
        else:
            family.add(line)
            if family.is_full:
                yield from family.taken()
    yield from family.taken()


class _Family:
    def __init__(self, name: str, kind: str, meaning: str, time_ns: str) -> None:
        self._name = name
        self._kind = kind
        self._meaning = meaning
        self._time_ns = time_ns
        self._points: list[Json] = []
        self._grouped: dict[_Labels, Json] = {}

    @property
    def is_full(self) -> bool:
        return len(self._points) >= MAX_POINTS

    def add(self, line: str) -> None:
        head, _, text = line.rpartition(" ")
        name, _, labels_text = head.partition("{")
        value = float(text)
        labels = tuple((key, _unescaped(label)) for key, label in _LABEL.findall(labels_text))
        if self._kind in {"gauge", "counter"}:
            if not isnan(value):
                self._points.append(
                    {"attributes": _attributes(labels), "timeUnixNano": self._time_ns, "asDouble": value}
                )
            return
        own = tuple(label for label in labels if label[0] not in {"le", "quantile"})
        point = self._grouped.setdefault(own, {"attributes": _attributes(own), "timeUnixNano": self._time_ns})
        match name.removeprefix(self._name):
            case "_count":
                point["count"] = str(int(value))
            case "_sum":
                point["sum"] = value
            case "_bucket":
                point.setdefault("cumulative", []).append((dict(labels)["le"], int(value)))
            case _ if not isnan(value):
                quantile = {"quantile": float(dict(labels)["quantile"]), "value": value}
                point.setdefault("quantileValues", []).append(quantile)

    def taken(self) -> Iterator[tuple[Json, int]]:
        points, self._points = self._points, []
        data: Json
        match self._kind:
            case "gauge":
                data = {"gauge": {"dataPoints": points}}
            case "counter":
                data = {"sum": {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True, "dataPoints": points}}
            case "histogram":
                points = [_histogram_point(point) for point in self._grouped.values()]
                data = {"histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": points}}
            case _:
                points = list(self._grouped.values())
                data = {"summary": {"dataPoints": points}}
        self._grouped = {}
        if points:
            yield {"name": self._name, "description": self._meaning, **data}, len(points)


def _histogram_point(point: Json) -> Json:
    cumulative: list[tuple[str, int]] = point.pop("cumulative")
    counts = [count for _, count in cumulative]
    alone = [count - before for before, count in zip([0, *counts], counts, strict=False)]
    bounds = [float(bound) for bound, _ in cumulative[:-1]]  # the last bound is infinite
    return {**point, "bucketCounts": [str(count) for count in alone], "explicitBounds": bounds}


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text) if "\\" in text else text
