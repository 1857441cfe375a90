from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from pybroker.cluster.load_balance.broker_choice import Candidate
from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage
from pybroker.cluster.load_balance.shedding import MIB, LoadShedding, Move, SheddingSettings

MINUTE_MS = 60_000.0
SETTINGS = SheddingSettings()


class Cluster:
    """Brokers whose use follows the traffic of their bundles, as a leader sees them."""

    def __init__(self, capacity_mib: float, **bundles: dict[str, float]) -> None:
        self.capacity_mib = capacity_mib
        self.bundles = bundles
        self.averages = BundleAverages()
        self.shedding = LoadShedding(self.averages)
        self.minute = 0
        self.moves: list[tuple[int, Move]] = []

    def usage(self, broker: str) -> float:
        return sum(self.bundles[broker].values()) / self.capacity_mib

    def candidates(self) -> list[Candidate]:
        found = []
        for broker, bundles in self.bundles.items():
            figures = {name: BundleFigures(0, rate * MIB, 0, 0, topic_count=1) for name, rate in bundles.items()}
            use = ResourceUsage(min(100.0, 100 * self.usage(broker)), 100)
            found.append(Candidate(broker, broker, LoadReport(cpu=use, bundles=figures, measured_ms=self.minute + 1)))
        return found

    def least_used(self, _bundle: str, source: str) -> str:
        return min((broker for broker in self.bundles if broker != source), key=self.usage)

    def run_minute(self, settings: SheddingSettings = SETTINGS) -> list[Move]:
        self.minute += 1
        candidates = self.candidates()
        for each in candidates:
            self.averages.add(each.broker_id, each.report, self.minute * MINUTE_MS)
        found = self.shedding.moves(candidates, self.least_used, lambda _: True, settings, self.minute * MINUTE_MS)
        for move in found:
            rate = self.bundles[move.source_id].pop(move.bundle)
            self.bundles[move.destination_id][move.bundle] = rate
            self.moves.append((self.minute, move))
        return found


def even(count: int, rate: float, prefix: str) -> dict[str, float]:
    return {f"t/n/{prefix}{number}": rate for number in range(count)}


def test_overused_broker_gives_bundles_to_the_least_used() -> None:
    cluster = Cluster(100, a=even(8, 10, "a"), b=even(1, 10, "b"))
    for _ in range(60):
        cluster.run_minute()
    assert cluster.usage("a") - cluster.usage("b") <= 0.2
    assert cluster.moves


def test_first_round_of_a_leader_moves_nothing() -> None:
    cluster = Cluster(100, a=even(8, 10, "a"), b={})
    assert cluster.run_minute() == []


def test_balanced_cluster_and_a_sole_bundle_stay() -> None:
    for bundles in ({"a": even(4, 10, "a"), "b": even(5, 10, "b")}, {"a": even(1, 90, "a"), "b": {}}):
        cluster = Cluster(100, **bundles)
        for _ in range(60):
            cluster.run_minute()
        assert cluster.moves == []


def test_little_traffic_is_not_worth_a_move() -> None:
    cluster = Cluster(10, a=even(9, 1, "a"), b={})
    for _ in range(60):
        cluster.run_minute()
    assert cluster.moves == []


def test_round_is_limited_and_touched_brokers_settle() -> None:
    cluster = Cluster(1000, a=even(90, 10, "a"), b={}, c={})
    settings = SETTINGS._replace(max_moves=3)
    counts = [len(cluster.run_minute(settings)) for _ in range(20)]
    assert max(counts) <= 3
    first = next(minute for minute, count in enumerate(counts) if count)
    assert counts[first + 1 : first + 5] == [0, 0, 0, 0], "reports show the effect first"


def test_moved_bundle_stays_for_the_grace_period() -> None:
    cluster = Cluster(100, a=even(8, 10, "a"), b={}, c={})
    for _ in range(300):
        cluster.run_minute()
    last: dict[str, int] = {}
    for minute, move in cluster.moves:
        assert minute - last.get(move.bundle, -1000) >= 30
        last[move.bundle] = minute


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simulated_week_shows_no_oscillation(seed: int) -> None:
    """Day and night, noise, and bundles of very different traffic: after the first hours hardly anything moves, and no bundle
    goes to and fro.
    """
    random = Random(seed)
    bases = {f"t/n/{number}": min(40.0, random.paretovariate(1.5) * 4) for number in range(48)}
    phase = {name: random.random() for name in bases}
    cluster = Cluster(260, a=dict(bases), b={}, c={}, d={})
    spreads: list[float] = []
    for minute in range(7 * 24 * 60 // 2):  # a report each two minutes
        day = 2 * math.pi * minute / 720
        for bundles in cluster.bundles.values():
            for name in bundles:
                wave = 1 + 0.5 * math.sin(day + phase[name])
                bundles[name] = bases[name] * wave * random.uniform(0.8, 1.2)
        cluster.run_minute()
        if minute > 720:
            usages = [cluster.usage(broker) for broker in cluster.bundles]
            spreads.append(max(usages) - sum(usages) / len(usages))
    settled = [move for minute, move in cluster.moves if minute > 720]
    assert len(cluster.moves) - len(settled) >= 20, "the first day divides the load"
    assert len(settled) <= 6 * 4, f"{len(settled)} moves in six days"
    returns = Counter((move.bundle, move.destination_id) for move in settled)
    assert not returns or max(returns.values()) <= 2
    assert sum(spread > 0.2 for spread in spreads) < len(spreads) * 0.02
