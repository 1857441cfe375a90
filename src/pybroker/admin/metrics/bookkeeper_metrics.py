"""Metrics of ledgers on BookKeeper, and the state of the bookies.

The metrics of ledgers have the names of a Java broker with `bookkeeperClientExposeStatsToPrometheus=true`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pybroker.admin.metrics.exposition_text import QUANTILES, Number, Samples, number_text, type_line
from pybroker.ledgers.bookie_report import BookieCondition
from pybroker.model.rates import quantile

if TYPE_CHECKING:
    from pybroker.ledgers.bookie_report import BookiesReport, ClientStatistics
    from pybroker.ledgers.ledger_store import LedgerStore

CLIENT = "pulsar_managedLedger_client_bookkeeper_client_"
MAX_BOOKIES = 100
"""Maximum number of bookies with separate rows; unusable bookies come first."""


def bookkeeper_lines(samples: Samples, store: LedgerStore) -> Iterator[str]:
    """Yield the metric lines; none if ledgers are not on BookKeeper."""
    statistics, bookies = store.client_statistics(), store.bookies()
    if statistics is not None:
        yield from _client(samples, statistics)
    if bookies is not None:
        yield from _bookies(samples, bookies)


def _client(samples: Samples, statistics: ClientStatistics) -> Iterator[str]:
    for operation, times in statistics.operations.items():
        name = CLIENT + operation
        yield type_line(name, "summary")
        for success, buckets in (("false", times.failed), ("true", times.succeeded)):
            for fraction in QUANTILES:
                value = quantile(buckets.counts, buckets.bounds, fraction)
                labels = samples.labels(success=success, quantile=str(fraction))
                yield f"{name}{labels} {number_text(value)}\n"
            yield f"{name}_count{samples.labels(success=success)} {buckets.count}\n"
            yield f"{name}_sum{samples.labels(success=success)} {number_text(buckets.total)}\n"
    yield from samples.gauge(CLIENT + "NUM_PENDING_ADD", statistics.pending_adds)
    # A Java broker declares these as counters although their names do not end in _total, which strict readers refuse.
    yield from samples.gauge(CLIENT + "NUM_ENSEMBLE_CHANGE", statistics.ensemble_changes)
    yield from samples.gauge(CLIENT + "BOOKIE_QUARANTINE", statistics.quarantines)


def _bookies(samples: Samples, report: BookiesReport) -> Iterator[str]:
    counts = Counter(each.condition for each in report.bookies)
    yield from samples.gauges("pybroker_bookies", "condition", {each.value: counts[each] for each in BookieCondition})
    yield from samples.gauge("pybroker_bookies_needed", report.needed)
    yield from samples.gauge("pybroker_bookies_writable", report.writable_count)
    usable = BookieCondition.USABLE
    listed = sorted(report.bookies, key=lambda each: (each.condition is usable, each.bookie_id))[:MAX_BOOKIES]
    up: dict[str, Number] = {each.bookie_id: int(each.condition is usable) for each in listed}
    yield from samples.gauges("pybroker_bookie_usable", "bookie", up)
    failures: dict[str, Number] = {each.bookie_id: each.failure_count for each in listed}
    yield from samples.gauges("pybroker_bookie_failures_total", "bookie", failures)
