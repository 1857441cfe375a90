"""Shedding: the leader's rules that decide which bundles move away from brokers with more load than the average, after
Pulsar's ThresholdShedder.

A broker is over the threshold if its use, current and averaged, exceeds the average of all brokers by
`threshold_share`. Bundles with the most traffic move until its expected use is MARGIN_SHARE below the threshold. The
rules against oscillation:

* A bundle moves only if the destination stays less used afterwards than the broker that it leaves (the dead band).
* A broker that lost or gained a bundle is left alone for `settle_ms`, until reports show the effect.
* A bundle that was moved stays for `grace_ms`.
* A round moves at most `max_moves` bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pybroker.cluster.load_balance.broker_choice import Candidate
from pybroker.cluster.load_balance.bundle_averages import BundleAverages

MARGIN_SHARE = 0.05
MIB = 1 << 20


class SheddingSettings(NamedTuple):
    """Configuration of shedding: `loadBalancer...` keys, and constants."""

    threshold_share: float = 0.10
    history_share: float = 0.9
    min_bytes_per_s: float = 10.0 * MIB
    grace_ms: float = 30 * 60_000.0
    settle_ms: float = 5 * 60_000.0
    max_moves: int = 10


class Move(NamedTuple):
    """One bundle that its owner shall unload, with the broker that shall acquire it."""

    bundle: str
    source_id: str
    destination_id: str


Destination = Callable[[str, str], str | None]
"""Returns the destination for a bundle that leaves a broker. Arguments: bundle, source."""


class LoadShedding:
    """The shedding state of one leader. A new leader moves nothing in its first round, because it lacks averages."""

    def __init__(self, averages: BundleAverages) -> None:
        self._averages = averages
        self._usage: dict[str, float] = {}
        self._moved_ms: dict[str, float] = {}  # by bundle
        self._touched_ms: dict[str, float] = {}  # by broker

    def moves(
        self,
        candidates: Iterable[Candidate],
        destination_of: Destination,
        is_movable: Callable[[str], bool],
        settings: SheddingSettings,
        now_ms: float,
    ) -> list[Move]:
        """Return the bundles to move in this round of shedding. `destination_of` chooses the destination of a bundle.
        `is_movable` returns False for bundles that must stay, such as the bundles of health checks. `now_ms`: the
        monotonic clock.
        """
        by_id = {each.broker_id: each for each in candidates if each.report.is_measured}
        known = self._usage.keys() & by_id.keys()
        self._update(by_id, settings, now_ms)
        if len(by_id) < 2:
            return []
        average = sum(self._usage.values()) / len(self._usage)
        expected = {broker_id: each.report.usage_share for broker_id, each in by_id.items()}
        moves: list[Move] = []
        for broker_id in sorted(known, key=lambda each: self._usage[each], reverse=True):
            usage = min(self._usage[broker_id], expected[broker_id])
            if usage <= average + settings.threshold_share or broker_id in self._touched_ms:
                continue
            share = usage - average - settings.threshold_share + MARGIN_SHARE
            moves += self._moves_from(
                by_id[broker_id],
                share,
                expected,
                destination_of,
                is_movable,
                settings,
                settings.max_moves - len(moves),
            )
        for move in moves:
            self._moved_ms[move.bundle] = now_ms
            for broker_id in (move.source_id, move.destination_id):
                self._touched_ms[broker_id] = now_ms
                self._usage.pop(broker_id, None)  # starts again with the report after the move
        return moves

    def _update(self, by_id: dict[str, Candidate], settings: SheddingSettings, now_ms: float) -> None:
        self._moved_ms = {each: at_ms for each, at_ms in self._moved_ms.items() if at_ms > now_ms - settings.grace_ms}
        self._touched_ms = {
            each: at_ms for each, at_ms in self._touched_ms.items() if at_ms > now_ms - settings.settle_ms
        }
        before = self._usage
        self._usage = {
            broker_id: before[broker_id] * settings.history_share
            + each.report.usage_share * (1 - settings.history_share)
            if broker_id in before
            else each.report.usage_share
            for broker_id, each in by_id.items()
        }

    def _moves_from(
        self,
        source: Candidate,
        share: float,
        expected: dict[str, float],
        destination_of: Destination,
        is_movable: Callable[[str], bool],
        settings: SheddingSettings,
        most_moves: int,
    ) -> list[Move]:
        """Return the moves away from `source`, and change the `expected` use of brokers accordingly."""
        rates = {bundle: self._averages.short_byte_rate(bundle) for bundle in source.report.bundles}
        total = sum(rates.values())
        wanted = total * share
        if wanted < settings.min_bytes_per_s or len(rates) < 2:
            return []
        usage = expected[source.broker_id]
        moves: list[Move] = []
        moved = 0.0
        for bundle in sorted(rates, key=lambda each: (-rates[each], each)):
            if moved >= wanted or len(moves) >= most_moves:
                break
            if bundle in self._moved_ms or not is_movable(bundle):
                continue
            carried = usage * rates[bundle] / total
            destination = destination_of(bundle, source.broker_id)
            if destination is None or destination not in expected or destination in self._touched_ms:
                continue
            if (
                destination == source.broker_id
                or expected[destination] + carried >= expected[source.broker_id] - carried
            ):
                continue
            expected[source.broker_id] -= carried
            expected[destination] += carried
            moved += rates[bundle]
            moves.append(Move(bundle, source.broker_id, destination))
        return moves
