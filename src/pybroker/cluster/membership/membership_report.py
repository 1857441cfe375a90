"""The membership of this broker in its cluster, as `explain`, metrics and the console show it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class MembershipReport(NamedTuple):
    """The membership of a broker at one moment."""

    broker_id: str
    is_registered: bool
    is_leader: bool
    leader_id: str | None
    broker_count: int
    conflict: str
    """Why this broker is not registered; empty if it is."""
    load_manager_problem: str
    """Which broker has another load manager; empty without one."""
    unusable: Mapping[str, str]
    """Registrations that lookups cannot use, with the reasons."""
    open_decisions: int
    """Number of bundles that this broker assigned and no broker has acquired yet."""
    moved_total: int
    """Number of bundles that this broker moved as the leader, because of load."""
    split_total: int = 0
    """Bundles that owners split because this broker, as the leader, asked for it."""
    clock_differences_ms: Mapping[str, int] = MappingProxyType({})
    """By broker id, the milliseconds by which its clock is ahead of the clock of this broker; negative if it is behind. Only
    brokers whose clocks differ."""
