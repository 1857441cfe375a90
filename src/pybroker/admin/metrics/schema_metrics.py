"""Metrics of schemas by namespace, for namespaces with schema requests since the broker's start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pybroker.admin.metrics.exposition_text import Samples, number_text, type_line
from pybroker.model.counters import OperationCounters, SchemaCounters
from pybroker.model.names import NamespaceName
from pybroker.model.rates import quantile

_QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)


def schema_lines(samples: Samples, namespaces: Mapping[NamespaceName, SchemaCounters]) -> Iterator[str]:
    """Yield the metric lines. Quantiles cover all requests since the broker's start, and are estimated within buckets."""
    counted = [(samples.labels(namespace=str(name)), counters) for name, counters in namespaces.items()]
    operations = {
        "get": [(labels, counters.get) for labels, counters in counted],
        "put": [(labels, counters.put) for labels, counters in counted],
        "del": [(labels, counters.delete) for labels, counters in counted],
    }
    for name, rows in operations.items():
        yield from _operation_lines(f"pulsar_schema_{name}_ops", rows)
    for name, totals in {
        "pulsar_schema_compatible": [(labels, counters.compatible) for labels, counters in counted],
        "pulsar_schema_incompatible": [(labels, counters.incompatible) for labels, counters in counted],
    }.items():
        yield from _counter_lines(name, totals)


def _operation_lines(name: str, rows: list[tuple[str, OperationCounters]]) -> Iterator[str]:
    yield type_line(f"{name}_latency", "summary")
    for labels, operation in rows:
        took = operation.took_ms
        for fraction in _QUANTILES:
            value = number_text(quantile(took.counts, took.bounds, fraction))
            yield f'{name}_latency{labels[:-1]},quantile="{fraction}"}} {value}\n'
        yield f"{name}_latency_count{labels} {took.count}\n"
        yield f"{name}_latency_sum{labels} {number_text(took.total)}\n"
    yield from _counter_lines(f"{name}_failed", [(labels, operation.failures) for labels, operation in rows])


def _counter_lines(name: str, totals: list[tuple[str, int]]) -> Iterator[str]:
    yield type_line(name, "counter")
    for labels, total in totals:
        yield f"{name}_total{labels} {total}\n"
