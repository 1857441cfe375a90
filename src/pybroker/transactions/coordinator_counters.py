"""Counters of a transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from pybroker.model.counters import Buckets

LATENCIES_MS = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000)


@dataclass
class Counters:
    """Counters of one coordinator since the broker started."""

    created: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    batches: int = 0
    """Batches of sinks that were committed."""
    repeated_batches: int = 0
    """Batches of sinks that were sent again after their commit."""
    appended: int = 0
    took_ms: Buckets = field(default_factory=lambda: Buckets(LATENCIES_MS))
    """Times from open to committed or aborted."""
