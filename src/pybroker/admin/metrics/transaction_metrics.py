"""Metrics of transactions, for Pulsar's dashboards: per started coordinator, and per topic with transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pybroker.admin.metrics.exposition_text import Samples, type_line

if TYPE_CHECKING:
    from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
    from pybroker.transactions.coordinator import Coordinator

BUFFER_NAMES = ("pulsar_txn_tb_active_total", "pulsar_txn_tb_committed_total", "pulsar_txn_tb_aborted_total")


def transaction_lines(samples: Samples, coordinators: Sequence[Coordinator]) -> Iterator[str]:
    if not coordinators:
        return
    labels = [samples.labels(coordinator_id=str(each.id)) for each in coordinators]
    yield _lines("pulsar_txn_active_count", "gauge", labels, [len(each.state) for each in coordinators])
    totals = {
        "created": [each.counters.created for each in coordinators],
        "committed": [each.counters.committed for each in coordinators],
        "aborted": [each.counters.aborted for each in coordinators],
        "timeout": [each.counters.timed_out for each in coordinators],
        "append_log": [each.counters.appended for each in coordinators],
    }
    for name, values in totals.items():
        yield _lines(f"pulsar_txn_{name}", "counter", [f"_total{label}" for label in labels], values)
    took = [each.counters.took_ms for each in coordinators]
    for index, bound in enumerate(took[0].bounds):
        name = f"pulsar_txn_execution_latency_le_{int(bound)}"
        yield _lines(name, "gauge", labels, [each.counts[index] for each in took])
    yield _lines("pulsar_txn_execution_latency_overflow", "gauge", labels, [each.counts[-1] for each in took])
    yield _lines("pulsar_txn_execution_latency_count", "gauge", labels, [each.count for each in took])
    yield _lines("pulsar_txn_execution_latency_sum", "gauge", labels, [round(each.total) for each in took])
    # Not in Pulsar.
    yield _lines("pybroker_txn_ending", "gauge", labels, [len(each.endings) for each in coordinators])
    yield _lines("pybroker_txn_waiting", "gauge", labels, [each.waiting for each in coordinators])
    yield _lines("pybroker_txn_log_entries", "gauge", labels, [each.log_entries for each in coordinators])
    yield _lines("pybroker_txn_size_bytes", "gauge", labels, [each.state.size_bytes for each in coordinators])
    yield _lines("pybroker_txn_sinks", "gauge", labels, [len(each.state.marks) for each in coordinators])
    batches = {
        "sink_batches": [each.counters.batches for each in coordinators],
        "sink_batches_repeated": [each.counters.repeated_batches for each in coordinators],
    }
    for name, values in batches.items():
        yield _lines(f"pybroker_txn_{name}", "counter", [f"_total{label}" for label in labels], values)


def buffer_values(buffer: TransactionBuffer) -> tuple[int, int, int]:
    return len(buffer.open), buffer.committed_total, buffer.aborted_total


def _lines(name: str, kind: str, labels: list[str], values: list[int]) -> str:
    samples = "".join(f"{name}{label} {value}\n" for label, value in zip(labels, values, strict=True))
    return type_line(name, kind) + samples
