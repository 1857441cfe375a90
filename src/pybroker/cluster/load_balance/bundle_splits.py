"""The leader's rules that decide which bundles are split automatically, as in Pulsar's Modular load manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from pybroker.cluster.load_balance.broker_choice import namespace_of
from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport

LEAST_TOPICS = 2
"""A bundle with fewer topics is not split: its topic would only move with its half."""


class SplitSettings(NamedTuple):
    """Configuration of automatic splits: `loadBalancerNamespace...` keys. A bundle is split if it exceeds one of the
    first four limits.
    """

    max_topics: int = 1000
    max_sessions: int = 1000
    """Producers and consumers; 0 and less: no limit."""
    max_message_rate: float = 30_000.0
    max_bytes_per_s: float = 100.0 * (1 << 20)
    max_bundles: int = 128
    """Of one namespace."""


class Split(NamedTuple):
    """One bundle that its owner shall split, and why."""

    bundle: str
    owner_id: str
    reason: str


def bundles_to_split(
    reports: Mapping[str, LoadReport],
    averages: BundleAverages,
    bundles_of: Callable[[str], Collection[str]],
    settings: SplitSettings,
) -> list[Split]:
    """Return the bundles that their owners shall split. `reports`: the load reports by broker id.

    `bundles_of` returns the present bundles of a namespace. Other bundles in a report are ignored, so an empty result
    of `bundles_of` protects the namespace from splits.
    """
    splits: list[Split] = []
    added: Counter[str] = Counter()
    for broker_id, report in sorted(reports.items()):
        for bundle, figures in sorted(report.bundles.items()):
            reason = _reason(figures, bundle, averages, settings)
            if not reason:
                continue
            namespace = namespace_of(bundle)
            present = bundles_of(namespace)
            if bundle not in present or len(present) + added[namespace] >= settings.max_bundles:
                continue
            added[namespace] += 1
            splits.append(Split(bundle, broker_id, reason))
    return splits


def _reason(figures: BundleFigures, bundle: str, averages: BundleAverages, settings: SplitSettings) -> str:
    """Return the exceeded threshold; empty without one. Rates are long averages, against short peaks."""
    if figures.topic_count < LEAST_TOPICS:
        return ""
    if figures.topic_count > settings.max_topics:
        return f"{figures.topic_count} topics exceed {settings.max_topics}"
    sessions = figures.producer_count + figures.consumer_count
    if 0 < settings.max_sessions < sessions:
        return f"{sessions} producers and consumers exceed {settings.max_sessions}"
    if bundle not in averages:
        return ""
    long = averages.of(bundle).long
    if long.message_rate > settings.max_message_rate:
        return f"{long.message_rate:.0f} messages a second exceed {settings.max_message_rate:.0f}"
    if long.byte_rate > settings.max_bytes_per_s:
        return f"{long.byte_rate:.0f} bytes a second exceed {settings.max_bytes_per_s:.0f}"
    return ""
