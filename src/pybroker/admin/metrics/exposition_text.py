"""Prometheus text format of the metrics page: HELP and TYPE lines, samples, labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isnan

from pybroker.admin.metrics.help_texts import HELP
from pybroker.model.counters import Buckets
from pybroker.model.rates import BucketsWindow, quantile

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ROWS_PER_PIECE = 250
QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)

Number = int | float


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_TAKEN_LABELS = frozenset(
    {"cluster", "namespace", "topic", "partition", "subscription", "reason", "quota_type", "le", "quantile"}
    | {"consumer_name", "consumer_id", "producer_name", "producer_id"}
)


def is_free_label(name: str) -> bool:
    """Return whether `name` is a valid label name that no metric of topics uses."""
    return _LABEL.fullmatch(name) is not None and name not in _TAKEN_LABELS


def number_text(value: Number) -> str:
    return "NaN" if isnan(value) else str(value)


def type_line(name: str, kind: str = "gauge", meaning: str = "") -> str:
    """Return the HELP and TYPE lines of a metric. As in Pulsar, metrics are gauges by default. Without `meaning`, the
    text of HELP comes from `help_texts.py`.

    A metric with a name that ends in `_total` is declared as a counter.
    """
    if kind == "counter" and not name.endswith("_total"):
        name += "_total"
    elif kind == "gauge" and name.endswith("_total"):
        kind = "counter"
    meaning = meaning or HELP.get(name, "")
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n" if meaning else f"# TYPE {name} {kind}\n"


class Table:
    """Samples of many objects, such as topics, written metric by metric.

    Values are stored in columns of several hundred rows, because a tuple per row would slow down the garbage collector.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._parts: list[tuple[list[str], list[tuple[Number, ...]]]] = []
        self._labels: list[str] = []
        self._rows: list[Sequence[Number]] = []

    def add(self, labels: str, values: Sequence[Number]) -> None:
        """Add the samples of one object.

        `labels`: the labels as they are written between the braces, such as `topic="t",namespace="n"`. `values`: one
        value for each metric of the table.
        """
        self._labels.append(labels)
        self._rows.append(values)
        if len(self._rows) == ROWS_PER_PIECE:
            self._end_part()

    def _end_part(self) -> None:
        self._parts.append((self._labels, list(zip(*self._rows, strict=True))))
        self._labels, self._rows = [], []

    def lines(self) -> Iterator[str]:
        """Yield the lines. Can be called only once, because it releases the samples."""
        if self._rows:
            self._end_part()
        for index, name in enumerate(self._names if self._parts else ()):
            yield type_line(name)
            for labels, columns in self._parts:
                yield _column(name, labels, columns[index])
                columns[index] = ()


def _column(name: str, labels: list[str], values: Sequence[Number]) -> str:
    value = values[0]
    if values.count(value) == len(values):  # mostly 0; this is three times as fast
        between = f" {value}\n{name}"
        return f"{name}{between.join(labels)} {value}\n"
    return "".join([f"{name}{label} {value}\n" for label, value in zip(labels, values, strict=True)])


class Samples:
    """Formatter of broker metrics. Each sample starts with the cluster label."""

    def __init__(self, cluster: str) -> None:
        self._cluster = f'cluster="{escape(cluster)}"'

    def labels(self, **values: str) -> str:
        own = "".join(f',{key}="{escape(value)}"' for key, value in values.items())
        return f"{{{self._cluster}{own}}}"

    def gauge(self, name: str, value: Number, **labels: str) -> Iterator[str]:
        yield f"{type_line(name)}{name}{self.labels(**labels)} {number_text(value)}\n"

    def gauges(self, name: str, label: str, values: dict[str, Number]) -> Iterator[str]:
        yield type_line(name)
        for key, value in values.items():
            yield f"{name}{self.labels(**{label: key})} {number_text(value)}\n"

    def counter(self, name: str, total: Number, /, **labels: str) -> Iterator[str]:
        """Yield the lines of a counter. The suffix `_total` is appended to `name`."""
        yield f"{type_line(name, 'counter')}{name}_total{self.labels(**labels)} {total}\n"

    def summary(self, name: str, total: Buckets, window: BucketsWindow) -> Iterator[str]:
        """Yield the lines of a summary: quantiles of the last window, estimated within its buckets; count and sum since
        the broker's start.
        """
        yield type_line(name, "summary")
        for fraction in QUANTILES:
            value = quantile(window.counts, total.bounds, fraction)
            yield f"{name}{self.labels(quantile=str(fraction))} {number_text(value)}\n"
        yield f"{name}_count{self.labels()} {total.count}\n"
        yield f"{name}_sum{self.labels()} {number_text(total.total)}\n"

    def histogram(self, name: str, buckets: Buckets, *, divisor: int = 1, **labels: str) -> Iterator[str]:
        """Yield the lines of a cumulative histogram since the broker's start. Bounds and sum are divided by `divisor`,
        such as 1000 to convert ms to seconds.
        """
        yield type_line(name, "histogram")
        yield from self.histogram_samples(name, buckets, divisor, **labels)

    def histogram_samples(self, name: str, buckets: Buckets, divisor: int = 1, /, **labels: str) -> Iterator[str]:
        own_bounds = buckets.bounds if divisor == 1 else [bound / divisor for bound in buckets.bounds]
        bounds = (*map(str, own_bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(buckets.counts), strict=True):
            yield f"{name}_bucket{self.labels(**labels, le=bound)} {count}\n"
        total = buckets.total if divisor == 1 else buckets.total / divisor
        yield f"{name}_count{self.labels(**labels)} {buckets.count}\n"
        yield f"{name}_sum{self.labels(**labels)} {number_text(total)}\n"
