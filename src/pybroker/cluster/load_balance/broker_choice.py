"""The leader's choice of a broker for a bundle without owner, by the rules of Pulsar's Modular load manager.

Isolation policies decide which brokers may have the bundle. Each further rule narrows the candidates unless it would
leave none: brokers with a load report, with few enough topics, with the fewest namespaces of the anti-affinity group,
with the fewest bundles of the namespace. Of the rest, the one with the lowest long-term message rate is chosen, at
random between equal ones; overloaded brokers only if all are.

A decision that no report shows yet counts as load of its broker, so that many bundles that are chosen at the same time
do not all go to one broker. A decision is *open*, and repeated for each lookup, until the bundle is *acquired*. After
that it counts as load until the broker's report lists the bundle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.isolation_rules import permitted_hosts, spread_by_group
from pybroker.cluster.load_balance.load_report import LoadReport
from pybroker.model.cluster_data import NamespaceIsolationData

if TYPE_CHECKING:
    from random import Random

RATE_DIGITS = 6
"""Message rates that differ by less count as equal, because they are sums in different orders."""
DECISION_MS = 10 * 60_000
"""A decision ends after this time: by then a client has looked up again, or the broker has reported the load."""


class Candidate(NamedTuple):
    """The properties of a registered broker on which the choice depends."""

    broker_id: str
    host: str
    report: LoadReport
    is_compatible: bool = True
    """Whether the broker has the same load manager as the cluster."""


class ChoiceSettings(NamedTuple):
    """Configuration of the choice of a broker (`loadBalancer...` keys)."""

    overloaded_share: float = 0.85
    max_topics: int = 50_000
    distributes_evenly: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """Documents that restrict the choice: isolation policies, anti-affinity groups, failure domains."""

    isolation: Mapping[str, NamespaceIsolationData] = field(default_factory=dict)
    group_of: Callable[[str], str | None] = lambda _namespace: None
    """The anti-affinity group of a namespace."""
    domain_of: Mapping[str, str] = field(default_factory=dict)
    """The failure domain of a broker; empty without `failureDomainsEnabled`."""


class _Decision:
    __slots__ = ("broker_id", "decided_ms", "is_acquired")

    def __init__(self, broker_id: str, decided_ms: float) -> None:
        self.broker_id = broker_id
        self.decided_ms = decided_ms
        self.is_acquired = False


def namespace_of(bundle: str) -> str:
    return bundle.rpartition("/")[0]


class _BrokerView:
    """Sums over the bundles of one broker: bundles in its last report, and bundles of decisions that the report does
    not list yet.
    """

    def __init__(self, candidate: Candidate, decided: Iterable[str], averages: BundleAverages) -> None:
        self.report = candidate.report
        self._averages = averages
        self.topic_count = candidate.report.totals.topic_count
        self.usage_share = candidate.report.usage_share
        self.by_namespace: Counter[str] = Counter()
        self.message_rate = 0.0
        self.decided: dict[str, float] = {}  # with the rate that each was counted with
        for bundle in self.report.bundles:
            self._count(bundle, averages.long_message_rate(bundle), 1)
        for bundle in decided:
            self.add(bundle)

    def add(self, bundle: str) -> None:
        if bundle not in self.report.bundles and bundle not in self.decided:
            self.decided[bundle] = self._averages.long_message_rate(bundle)
            self._count(bundle, self.decided[bundle], 1)

    def remove(self, bundle: str) -> None:
        if bundle in self.decided:
            self._count(bundle, -self.decided.pop(bundle), -1)

    def _count(self, bundle: str, message_rate: float, count: int) -> None:
        self.message_rate += message_rate
        self.by_namespace[namespace_of(bundle)] += count
        if not self.by_namespace[namespace_of(bundle)]:
            del self.by_namespace[namespace_of(bundle)]

    def bundles_of(self, namespace: str, chosen_bundle: str) -> int:
        """Return the broker's number of bundles of `namespace`. The bundle that is being assigned does not count: the
        last report of its previous owner still lists it.
        """
        return self.by_namespace[namespace] - self._has(chosen_bundle)

    def rate_without(self, chosen_bundle: str) -> float:
        if chosen_bundle in self.decided:
            return self.message_rate - self.decided[chosen_bundle]
        if chosen_bundle in self.report.bundles:
            return self.message_rate - self._averages.long_message_rate(chosen_bundle)
        return self.message_rate

    def _has(self, bundle: str) -> bool:
        return bundle in self.decided or bundle in self.report.bundles


class BundleAssignment:
    """The decisions of one leader about the brokers of bundles."""

    def __init__(self, averages: BundleAverages, random: Random) -> None:
        self._averages = averages
        self._random = random
        self._decisions: dict[str, _Decision] = {}  # in the order of their time
        self._candidates: dict[str, Candidate] = {}
        self._views: dict[str, _BrokerView] = {}

    def set_candidates(self, candidates: Iterable[Candidate]) -> None:
        """Set the registered brokers with their load reports. Remove the decisions for brokers that are not registered.
        Also remove the decision for an acquired bundle if the load report of its broker contains the bundle.
        """
        self._candidates = {candidate.broker_id: candidate for candidate in candidates}
        for bundle, decision in list(self._decisions.items()):
            candidate = self._candidates.get(decision.broker_id)
            if candidate is None or (decision.is_acquired and bundle in candidate.report.bundles):
                self._end(bundle)  # the broker has left, or its report shows the load
        for broker_id in self._views.keys() - self._candidates.keys():
            del self._views[broker_id]
        for broker_id, candidate in self._candidates.items():
            view = self._views.get(broker_id)
            if view is None or view.report is not candidate.report:
                decided = view.decided if view is not None else ()
                self._views[broker_id] = _BrokerView(candidate, decided, self._averages)

    def choose(self, bundle: str, placement: Placement, settings: ChoiceSettings, now_ms: float) -> str | None:
        """Return the id of the broker that shall acquire `bundle`; None if no broker may have it. The result stays the
        same until a broker acquires the bundle. `now_ms`: the monotonic clock.
        """
        self._expire(now_ms)
        decided = self._decisions.get(bundle)
        if decided is not None and not decided.is_acquired:
            return decided.broker_id
        chosen = self.best(bundle, placement, settings)
        if chosen is not None:
            self.decide(bundle, chosen, now_ms)
        return chosen

    def decide(self, bundle: str, broker_id: str, now_ms: float) -> None:
        """Record that a broker shall acquire `bundle`, because of a decision outside of `choose`, such as shedding."""
        self._end(bundle)
        self._decisions[bundle] = _Decision(broker_id, now_ms)
        self._views[broker_id].add(bundle)

    def acquired(self, bundle: str) -> None:
        if bundle in self._decisions:
            self._decisions[bundle].is_acquired = True

    def released(self, bundle: str) -> None:
        """Record that the owner has released `bundle`. Remove the decision by which this owner acquired the bundle; a
        decision about the next owner stays.
        """
        if bundle in self._decisions and self._decisions[bundle].is_acquired:
            self._end(bundle)

    def forget(self) -> None:
        """Remove all decisions. Called when this broker becomes the leader, and when changes of ownership may have gone
        unreported.
        """
        for bundle in list(self._decisions):
            self._end(bundle)

    def has_decision(self, bundle: str) -> bool:
        return bundle in self._decisions

    @property
    def open_count(self) -> int:
        """The number of decisions for bundles that no broker has acquired yet."""
        return sum(not decision.is_acquired for decision in self._decisions.values())

    def __len__(self) -> int:
        return len(self._decisions)

    def _end(self, bundle: str) -> None:
        decision = self._decisions.pop(bundle, None)
        if decision is not None and decision.broker_id in self._views:
            self._views[decision.broker_id].remove(bundle)

    def _expire(self, now_ms: float) -> None:
        while self._decisions:
            bundle, oldest = next(iter(self._decisions.items()))
            if oldest.decided_ms > now_ms - DECISION_MS:
                return
            self._end(bundle)

    def best(self, bundle: str, placement: Placement, settings: ChoiceSettings, *, without: str = "") -> str | None:
        """Return the id of the broker that the rules prefer for `bundle` now, other than the broker `without`; None if
        no other broker may have the bundle. Record no decision.
        """
        namespace = namespace_of(bundle)
        hosts = permitted_hosts(namespace, [each.host for each in self._candidates.values()], placement.isolation)
        permitted = [each for each in self._candidates.values() if each.host in hosts and each.broker_id != without]
        if not permitted:
            return None
        views = self._views
        narrowed = _unless_empty(permitted, lambda each: each.is_compatible)
        narrowed = _unless_empty(narrowed, lambda each: each.report.is_measured)
        narrowed = _unless_empty(narrowed, lambda each: views[each.broker_id].topic_count <= settings.max_topics)
        narrowed = self._spread(narrowed, namespace, placement)
        if settings.distributes_evenly:
            counts = {each.broker_id: views[each.broker_id].bundles_of(namespace, bundle) for each in narrowed}
            fewest = min(counts.values())
            narrowed = [each for each in narrowed if counts[each.broker_id] == fewest]
        best = self._least_loaded(narrowed, bundle, settings) or self._least_loaded(permitted, bundle, settings)
        # All are overloaded. Among all of `permitted`, one broker would get every bundle until the next reports.
        return best or min(narrowed, key=lambda each: views[each.broker_id].usage_share).broker_id

    def _spread(self, candidates: list[Candidate], namespace: str, placement: Placement) -> list[Candidate]:
        group = placement.group_of(namespace)
        if not group:
            return candidates
        counts = {
            broker_id: sum(placement.group_of(each) == group for each in view.by_namespace)
            for broker_id, view in self._views.items()
        }
        kept = set(spread_by_group([each.broker_id for each in candidates], counts, placement.domain_of))
        return [each for each in candidates if each.broker_id in kept]

    def _least_loaded(self, candidates: list[Candidate], bundle: str, settings: ChoiceSettings) -> str | None:
        """Return the least loaded of the candidates; None if all are overloaded."""
        rates = {
            each.broker_id: round(self._views[each.broker_id].rate_without(bundle), RATE_DIGITS)
            for each in candidates
            if self._views[each.broker_id].usage_share <= settings.overloaded_share
        }
        if not rates:
            return None
        lowest = min(rates.values())
        return self._random.choice(sorted(broker_id for broker_id, rate in rates.items() if rate == lowest))


def _unless_empty(candidates: list[Candidate], is_kept: Callable[[Candidate], bool]) -> list[Candidate]:
    return [each for each in candidates if is_kept(each)] or candidates
