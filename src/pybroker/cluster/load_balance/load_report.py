"""The load of one broker: its use of the machine, and the rates of its bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple


class ResourceUsage(NamedTuple):
    """Usage and limit of one resource. If the limit is unknown (0 or less), `share` is 0, as in Pulsar."""

    usage: float = 0.0
    limit: float = 0.0

    @property
    def share(self) -> float:
        return self.usage / self.limit if self.limit > 0 else 0.0


class BundleFigures(NamedTuple):
    """The load of one bundle. Rates are per second."""

    message_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    message_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    consumer_count: int = 0
    producer_count: int = 0
    topic_count: int = 0

    @property
    def message_rate(self) -> float:
        return self.message_rate_in + self.message_rate_out

    @property
    def byte_rate(self) -> float:
        return self.byte_rate_in + self.byte_rate_out


NO_USAGE = ResourceUsage()


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One measurement of a broker's load. Invariant: all figures are finite, and usages and rates not negative."""

    cpu: ResourceUsage = NO_USAGE
    memory: ResourceUsage = NO_USAGE
    direct_memory: ResourceUsage = NO_USAGE
    bandwidth_in: ResourceUsage = NO_USAGE
    bandwidth_out: ResourceUsage = NO_USAGE
    bundles: Mapping[str, BundleFigures] = field(default_factory=dict)
    """Bundles with loaded topics, by `tenant/namespace/0x00000000_0x40000000`."""
    measured_ms: int = 0
    """The time of the measurement in milliseconds since 1970; 0 for a broker that never measured."""

    @property
    def is_measured(self) -> bool:
        return self.measured_ms > 0

    @property
    def usage_share(self) -> float:
        """The use of the broker's most used resource as a share of its limit (1.0: all of it). As in Java brokers, the
        memory of the process does not count.
        """
        return max(each.share for each in (self.cpu, self.direct_memory, self.bandwidth_in, self.bandwidth_out))

    @property
    def totals(self) -> BundleFigures:
        columns = list(zip(*self.bundles.values(), strict=True))
        return BundleFigures(*map(sum, columns)) if columns else BundleFigures()


def changed_percent(before: LoadReport, now: LoadReport) -> float:
    """Return the largest change of a figure between two load reports in percent; infinity if the figure was 0 before. A
    broker stores a new report if the change is large enough.
    """
    old, new = before.totals, now.totals
    return max(
        100 * abs(now.usage_share - before.usage_share),
        _percent(old.message_rate, new.message_rate),
        _percent(old.byte_rate, new.byte_rate),
        _percent(len(before.bundles), len(now.bundles)),
    )


def _percent(before: float, now: float) -> float:
    if before == 0:
        return 0.0 if now == 0 else inf
    return 100 * abs(now - before) / before
