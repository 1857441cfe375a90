"""Limits the log lines of clients that attach and detach. Pure.

A client that loses its connection reconnects at once, hundreds of times a minute if the cause stays. So only the first
events of one client, kind and topic are logged in an interval, and a summary for each client at the end of the
interval.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

INTERVAL_S = 60.0
MAX_KEYS = 10_000
"""Maximum number of combinations of client, event and topic in an interval.

Events of further combinations count as `OTHER`.
"""
MAX_SUMMARIES = 20
"""Maximum number of summaries in an interval.

The last one, `OTHER`, has the events of all clients with fewer events.
"""
OTHER = "other"


@dataclass(frozen=True)
class ClientId:
    """The identity of a client, without its port, which changes with each connection."""

    host: str
    role: str


@dataclass
class Summary:
    """The number of events of one client that were not logged in an interval, by event name."""

    client: ClientId
    unlogged: Counter[str] = field(default_factory=Counter)


class RepeatedEvents:
    """The events of all clients in the current interval. The owner calls `end_interval` every `INTERVAL_S` seconds."""

    def __init__(self, max_per_interval: int) -> None:
        """`max_per_interval` is the number of events that are logged for one client, kind and topic; 0 means no
        limit.
        """
        self._max = max_per_interval
        self._counts: Counter[tuple[ClientId, str, str]] = Counter()
        self._summaries: dict[ClientId, Summary] = {}

    def add(self, client: ClientId, event: str, topic: str = "") -> bool:
        """Count an event of a client. Return whether to log it."""
        if not self._max:
            return True
        key = (client, event, topic)
        if key not in self._counts and len(self._counts) >= MAX_KEYS:
            client = ClientId(OTHER, OTHER)
            key = (client, event, OTHER)
        self._counts[key] += 1
        if self._counts[key] <= self._max:
            return True
        self._summaries.setdefault(client, Summary(client)).unlogged[event] += 1
        return False

    def end_interval(self) -> list[Summary]:
        """Start the next interval. Return at most `MAX_SUMMARIES` summaries of the events that were not logged in the
        last one. If there are more clients, the last summary covers the clients with the fewest events together.
        """
        ordered = sorted(self._summaries.values(), key=lambda summary: -summary.unlogged.total())
        self._counts.clear()
        self._summaries = {}
        if len(ordered) <= MAX_SUMMARIES:
            return ordered
        rest = Summary(ClientId(OTHER, OTHER))
        for summary in ordered[MAX_SUMMARIES - 1 :]:
            rest.unlogged.update(summary.unlogged)
        return [*ordered[: MAX_SUMMARIES - 1], rest]
