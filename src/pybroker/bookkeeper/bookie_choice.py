"""Choice of bookies for ensembles: at random, preferably without bookies that failed often (quarantine)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from pybroker.bookkeeper.errors import NotEnoughBookies


class Chance(Protocol):
    """A source of randomness, such as `random.Random`."""

    def shuffle(self, x: list[str], /) -> None: ...


class Quarantine:
    """Bookies that failed `threshold` times within an interval. For some time they are not chosen for new ensembles."""

    def __init__(self, threshold: int, interval_ms: float, duration_ms: float) -> None:
        self._threshold = threshold
        self._interval_ms = interval_ms
        self._duration_ms = duration_ms
        self._failures: dict[str, tuple[float, int]] = {}
        self._until_ms: dict[str, float] = {}

    def failed(self, bookie_id: str, now_ms: float) -> bool:
        """Count a failure of a bookie. Return True if the bookie enters quarantine because of this failure. `now_ms`:
        the monotonic clock.
        """
        since_ms, count = self._failures.get(bookie_id, (now_ms, 0))
        if now_ms - since_ms > self._interval_ms:
            since_ms, count = now_ms, 0
        self._failures[bookie_id] = (since_ms, count + 1)
        if count + 1 < self._threshold or self.contains(bookie_id, now_ms):
            return False
        del self._failures[bookie_id]
        self._until_ms[bookie_id] = now_ms + self._duration_ms
        return True

    def contains(self, bookie_id: str, now_ms: float) -> bool:
        until_ms = self._until_ms.get(bookie_id)
        if until_ms is None:
            return False
        if now_ms >= until_ms:
            del self._until_ms[bookie_id]
            return False
        return True

    def keep(self, bookie_ids: Collection[str]) -> None:
        for table in (self._failures, self._until_ms):
            for bookie_id in [each for each in table if each not in bookie_ids]:
                del table[bookie_id]


def choose_bookies(count: int, healthy: Iterable[str], others: Iterable[str], chance: Chance) -> list[str]:
    """Return `count` different bookies, at random; bookies in quarantine (`others`) only if there are too few `healthy`
    ones. Raises NotEnoughBookies.
    """
    first, second = sorted(set(healthy)), sorted(set(others))
    chance.shuffle(first)
    chance.shuffle(second)
    chosen = (first + second)[:count]
    if len(chosen) < count:
        raise NotEnoughBookies(
            f"A new ledger needs {count} bookies, but only {len(chosen)} bookies are usable. Start more bookies."
        )
    return chosen
