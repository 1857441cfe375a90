"""Average rates of bundles over their last reports: a short average for shedding, a long one for the choice of a broker.

As in Pulsar, the first report replaces the default of an unknown bundle, and later ones count with 1/n up to a number of
samples. A bundle that no report lists any more keeps its averages for a while, because the choice of its next owner needs them.
A leader continues the averages that an earlier leader stored (`stored_averages.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport

SHORT_SAMPLES = 10
LONG_SAMPLES = 1000
KEPT_MS = 10 * 60_000
UNKNOWN_BUNDLE = BundleFigures(50.0, 50_000.0, 50.0, 50_000.0)
"""Pulsar's assumption about a bundle without a report."""


@dataclass(slots=True)
class RateAverage:
    """Averages of the four rates of a bundle, per second."""

    samples_limit: int
    samples: int = 0
    message_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    message_rate_out: float = 0.0
    byte_rate_out: float = 0.0

    def add(self, figures: BundleFigures) -> None:
        self.samples = min(self.samples + 1, self.samples_limit)
        self.message_rate_in += (figures.message_rate_in - self.message_rate_in) / self.samples
        self.byte_rate_in += (figures.byte_rate_in - self.byte_rate_in) / self.samples
        self.message_rate_out += (figures.message_rate_out - self.message_rate_out) / self.samples
        self.byte_rate_out += (figures.byte_rate_out - self.byte_rate_out) / self.samples

    @property
    def message_rate(self) -> float:
        return self.message_rate_in + self.message_rate_out

    @property
    def byte_rate(self) -> float:
        return self.byte_rate_in + self.byte_rate_out


def _of_unknown(samples_limit: int) -> RateAverage:
    return RateAverage(samples_limit, 0, *UNKNOWN_BUNDLE[:4])


@dataclass(slots=True)
class BundleAverage:
    """The averages of one bundle, and its number of topics in the last report."""

    short: RateAverage
    long: RateAverage
    topic_count: int = 0

    def add(self, figures: BundleFigures) -> None:
        self.short.add(figures)
        self.long.add(figures)
        self.topic_count = figures.topic_count


UNKNOWN = BundleAverage(_of_unknown(SHORT_SAMPLES), _of_unknown(LONG_SAMPLES))


class BundleAverages:
    """The averages of all bundles in the last reports, and of bundles that disappeared from the reports at most KEPT_MS
    ago.
    """

    def __init__(self) -> None:
        self._found: dict[str, BundleAverage] = {}
        self._seen_ms: dict[str, float] = {}
        self._counted: dict[str, int] = {}  # time of the last counted report, by broker

    def add(self, broker_id: str, report: LoadReport, now_ms: float) -> None:
        """Add the rates in a load report of a broker. If a report of the same measurement was added before, add only the
        rates of bundles that have no averages yet.
        """
        is_counted = self._counted.get(broker_id) == report.measured_ms
        self._counted[broker_id] = report.measured_ms
        for bundle, figures in report.bundles.items():
            self._seen_ms[bundle] = now_ms
            found = self._found.get(bundle)
            if found is None:
                found = self._found[bundle] = BundleAverage(RateAverage(SHORT_SAMPLES), RateAverage(LONG_SAMPLES))
            elif is_counted:
                continue
            found.add(figures)

    def continue_from(self, bundle: str, stored: BundleAverage, now_ms: float) -> None:
        """Use the averages of `bundle` that an earlier leader stored, unless the present averages come from at least as
        many reports.
        """
        found = self._found.get(bundle)
        if found is None or found.long.samples < stored.long.samples:
            self._found[bundle] = stored
            self._seen_ms.setdefault(bundle, now_ms)

    def expire(self, reports: Mapping[str, LoadReport], now_ms: float) -> None:
        """Forget bundles that no broker has reported for KEPT_MS, and brokers that are not in `reports`, because they
        have left the cluster.
        """
        self._counted = {broker_id: at_ms for broker_id, at_ms in self._counted.items() if broker_id in reports}
        for bundle in [bundle for bundle, seen_ms in self._seen_ms.items() if seen_ms < now_ms - KEPT_MS]:
            self.forget(bundle)

    def forget(self, bundle: str) -> None:
        self._seen_ms.pop(bundle, None)
        self._found.pop(bundle, None)

    def __len__(self) -> int:
        return len(self._seen_ms)

    def __contains__(self, bundle: str) -> bool:
        return bundle in self._found

    def of(self, bundle: str) -> BundleAverage:
        """Return the average rates of `bundle`; for a bundle without a report, the rates that Pulsar assumes."""
        return self._found.get(bundle, UNKNOWN)

    def busiest(self, count: int) -> Collection[str]:
        """Return the `count` bundles with the highest long-term average of bytes per second, highest first."""
        return sorted(self._found, key=lambda bundle: (-self._found[bundle].long.byte_rate, bundle))[:count]

    def long_message_rate(self, bundle: str) -> float:
        return self.of(bundle).long.message_rate

    def short_byte_rate(self, bundle: str) -> float:
        return self.of(bundle).short.byte_rate

    def sums(self, bundles: Iterable[str]) -> BundleAverage:
        total = BundleAverage(RateAverage(SHORT_SAMPLES), RateAverage(LONG_SAMPLES))
        for bundle in bundles:
            found = self.of(bundle)
            for into, one in ((total.short, found.short), (total.long, found.long)):
                into.message_rate_in += one.message_rate_in
                into.byte_rate_in += one.byte_rate_in
                into.message_rate_out += one.message_rate_out
                into.byte_rate_out += one.byte_rate_out
            total.topic_count += found.topic_count
        return total
