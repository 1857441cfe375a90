"""Average rates of bundles over their last reports: a short average for shedding, a long one for the choice of a broker.

As in Pulsar, the first report replaces the default of an unknown bundle, and later ones count with 1/n up to a number of
samples. A bundle that no report lists any more keeps its averages for a while, because the choice of its next owner needs them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport

SHORT_SAMPLES = 10
LONG_SAMPLES = 1000
KEPT_MS = 10 * 60_000
UNKNOWN_BUNDLE = BundleFigures(50.0, 50_000.0, 50.0, 50_000.0)
"""Pulsar's assumption about a bundle without a report."""


class _Average:
    __slots__ = ("byte_rate", "message_rate", "samples", "samples_limit")

    def __init__(self, samples_limit: int) -> None:
        self.message_rate = 0.0
        self.byte_rate = 0.0
        self.samples = 0
        self.samples_limit = samples_limit

    def add(self, figures: BundleFigures) -> None:
        self.samples = min(self.samples + 1, self.samples_limit)
        self.message_rate += (figures.message_rate - self.message_rate) / self.samples
        self.byte_rate += (figures.byte_rate - self.byte_rate) / self.samples


class BundleAverages:
    """The averages of all bundles in the last reports, and of bundles that disappeared from the reports at most KEPT_MS
    ago.
    """

    def __init__(self) -> None:
        self._short: dict[str, _Average] = {}
        self._long: dict[str, _Average] = {}
        self._seen_ms: dict[str, float] = {}
        self._counted: dict[str, int] = {}  # time of the last counted report, by broker

    def add(self, broker_id: str, report: LoadReport, now_ms: float) -> None:
        """Add a report to the averages, unless it was added before."""
        for bundle in report.bundles:
            self._seen_ms[bundle] = now_ms
        if self._counted.get(broker_id) == report.measured_ms:
            return
        self._counted[broker_id] = report.measured_ms
        for bundle, figures in report.bundles.items():
            self._short.setdefault(bundle, _Average(SHORT_SAMPLES)).add(figures)
            self._long.setdefault(bundle, _Average(LONG_SAMPLES)).add(figures)

    def expire(self, reports: Mapping[str, LoadReport], now_ms: float) -> None:
        """Forget bundles that no registered broker has reported for KEPT_MS, and brokers that have left."""
        self._counted = {broker_id: at_ms for broker_id, at_ms in self._counted.items() if broker_id in reports}
        for bundle in [bundle for bundle, seen_ms in self._seen_ms.items() if seen_ms < now_ms - KEPT_MS]:
            for values in (self._seen_ms, self._short, self._long):
                values.pop(bundle, None)

    def __len__(self) -> int:
        return len(self._seen_ms)

    def long_message_rate(self, bundle: str) -> float:
        found = self._long.get(bundle)
        return UNKNOWN_BUNDLE.message_rate if found is None else found.message_rate

    def short_byte_rate(self, bundle: str) -> float:
        found = self._short.get(bundle)
        return UNKNOWN_BUNDLE.byte_rate if found is None else found.byte_rate
