"""Read leases, which protect ledgers from trimming for a limited time while a reader (such as a Spark job) needs them.

A lease protects all ledgers of a topic from one position on. Leases are only in memory and do not count as backlog. A
lease ends if the reader does not renew it, if its position does not advance for too long, or when the broker stops.
Topic deletion ignores leases. Each role (without authentication, each client address) has a fair share of all leases
and of the leases on each topic (`waiting/fair_shares.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pybroker.waiting.fair_shares import FairShares, Holder

SWEEP_EVERY_MS = 1000.0
"""Minimum interval between searches for ended leases, because a search examines all leases."""


class LeaseOwner(NamedTuple):
    """Identity of a reader: the name that the reader chose, and its role."""

    reader: str
    role: str | None


@dataclass(slots=True)
class Lease:
    """Protection of all ledgers from `ledger_id` on, until `ends_ms`. `placed_ms` is the time of the last position
    change. Times are monotonic.
    """

    owner: LeaseOwner
    holder: str
    ledger_id: int
    placed_ms: float
    ends_ms: float


class TooManyLeases(Exception):
    """The limit of leases is reached, for one holder or for the broker."""


class ReadLeases:
    """All read leases of a broker."""

    def __init__(self, max_of_topic: int, max_in_all: int) -> None:
        self._max_of_topic = max_of_topic
        self._max_in_all = max_in_all
        self._by_topic: dict[str, dict[LeaseOwner, Lease]] = {}
        self.shares = FairShares()
        """Number of leases per holder, including ended leases that are still listed."""
        self._swept_ms = -SWEEP_EVERY_MS

    def __len__(self) -> int:
        """Return the number of leases, including ended ones that are not removed yet."""
        return self.shares.used

    @property
    def limit(self) -> int:
        return self._max_in_all

    def hold(
        self,
        topic: str,
        owner: LeaseOwner,
        ledger_id: int,
        duration_ms: float,
        longest_ms: float,
        now_ms: float,
        holder: Holder,
    ) -> float:
        """Create or renew the lease of the reader `owner` on the topic. Return the remaining time of the lease in
        milliseconds.

        The lease protects the ledgers from `ledger_id` on for `duration_ms`. If renewals do not change `ledger_id`, the
        lease ends after `longest_ms`. `holder`: the role or client address to which a new lease is charged. Raises
        TooManyLeases if the holder, the topic or the broker has the maximum number of leases.
        """
        leases = self._by_topic.get(topic, {})
        self._drop_ended(topic, leases, now_ms)
        lease = leases.get(owner)
        if lease is None:
            self._require_room(topic, leases.values(), holder, now_ms)
            lease = Lease(owner, holder.name, ledger_id, now_ms, now_ms)
            self._by_topic.setdefault(topic, leases)[owner] = lease
            self.shares.add(holder.name, 1)
        elif lease.ledger_id != ledger_id:
            lease.ledger_id, lease.placed_ms = ledger_id, now_ms
        lease.ends_ms = min(now_ms + duration_ms, lease.placed_ms + longest_ms)
        return lease.ends_ms - now_ms

    def give_back(self, owner: LeaseOwner, topics: Iterable[str]) -> list[str]:
        """End the owner's leases on `topics`. Return the topics on which a lease ended."""
        ended = []
        for topic in topics:
            leases = self._by_topic.get(topic)
            lease = None if leases is None else leases.pop(owner, None)
            if lease is not None:
                self.shares.add(lease.holder, -1)
                ended.append(topic)
                if not leases:
                    del self._by_topic[topic]
        return ended

    def end_all_of(self, holder: str) -> int:
        before = self.shares.used
        for topic, leases in list(self._by_topic.items()):
            for owner in [owner for owner, lease in leases.items() if lease.holder == holder]:
                self.give_back(owner, [topic])
        return before - self.shares.used

    def topics(self) -> list[str]:
        return list(self._by_topic)

    def topics_of(self, owner: LeaseOwner) -> list[str]:
        return [topic for topic, leases in self._by_topic.items() if owner in leases]

    def on(self, topic: str, now_ms: float) -> list[Lease]:
        return [lease for lease in self._by_topic.get(topic, {}).values() if lease.ends_ms > now_ms]

    def held_from(self, topic: str, now_ms: float) -> int | None:
        leases = self._by_topic.get(topic)
        if leases is None:
            return None
        self._drop_ended(topic, leases, now_ms)
        return min((lease.ledger_id for lease in leases.values()), default=None)

    def drop_ended(self, now_ms: float) -> None:
        for topic, leases in list(self._by_topic.items()):
            self._drop_ended(topic, leases, now_ms)

    def _drop_ended(self, topic: str, leases: dict[LeaseOwner, Lease], now_ms: float) -> None:
        for owner in [owner for owner, lease in leases.items() if lease.ends_ms <= now_ms]:
            self.shares.add(leases.pop(owner).holder, -1)
        if not leases:
            self._by_topic.pop(topic, None)

    def _require_room(self, topic: str, present: Collection[Lease], holder: Holder, now_ms: float) -> None:
        on_topic = FairShares()
        for lease in present:
            on_topic.add(lease.holder, 1)
        if not on_topic.may_take(holder, self._max_of_topic):
            why = on_topic.refusal(holder, self._max_of_topic, f"leases on {topic}", "maxReadLeasesPerTopic")
            raise TooManyLeases(f"the broker cannot grant a read lease: {why}")
        if self.shares.may_take(holder, self._max_in_all):
            return
        if now_ms >= self._swept_ms + SWEEP_EVERY_MS:
            self._swept_ms = now_ms
            self.drop_ended(now_ms)
        if not self.shares.may_take(holder, self._max_in_all):
            why = self.shares.refusal(holder, self._max_in_all, "leases", "maxReadLeases")
            raise TooManyLeases(f"the broker cannot grant a read lease on {topic}: {why}")
