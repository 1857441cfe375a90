"""Counts of messages by key in limited memory: exact up to `max_keys` keys.

Above that, the counts are a Misra-Gries summary. It contains each key with more than 1/`max_keys` of all messages, and
a count is too low by at most `error`. The shares of consumers are then based on the remaining keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.selectors.auto_split import AutoSplitSelector
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.dispatch.selectors.hash_selector import RANGE_SIZE, HashRange, HashSelector
from pybroker.model.hashing import key_hash


@dataclass(slots=True)
class KeyCount:
    """The number of messages of one key, and the bytes of their values."""

    messages: int = 0
    size_bytes: int = 0


class KeyCounts:
    """Counts by key. Each call of `add` adds one key of a batch."""

    def __init__(self, max_keys: int) -> None:
        assert max_keys > 0
        self.keys: dict[bytes, KeyCount] = {}
        self.total = KeyCount()
        self.without_key = KeyCount()
        self.error = 0
        """Upper bound of the messages missing in a count of `keys`; 0 while all keys fit."""
        self._max_keys = max_keys

    def add(self, key: bytes | None, messages: int, size_bytes: int) -> None:
        _add(self.total, messages, size_bytes)
        if key is None:
            _add(self.without_key, messages, size_bytes)
            return
        count = self.keys.get(key)
        if count is None:
            count = self.keys[key] = KeyCount()
        _add(count, messages, size_bytes)
        if len(self.keys) > self._max_keys:
            self._shrink()

    def of_hashes(self, owners: Owners) -> dict[str, KeyCount]:
        """Return the messages and bytes of all keys by the name of the consumer that owns the key's hash, according to
        `owners`. Those of keys whose hash no consumer owns are under the empty name.
        """
        shares: dict[str, KeyCount] = {}
        for sticky_hash, count in zip(owners.sticky_hashes(self.keys), self.keys.values(), strict=True):
            _add(shares.setdefault(owners.owner(sticky_hash), KeyCount()), count.messages, count.size_bytes)
        return shares

    def _shrink(self) -> None:
        """Subtract the median count from all keys, which removes the lighter half. Rarely called with many keys."""
        counts = sorted(count.messages for count in self.keys.values())
        taken = counts[len(counts) // 2]
        self.error += taken
        for key, count in list(self.keys.items()):
            if count.messages <= taken:
                del self.keys[key]
            else:
                count.size_bytes -= count.size_bytes * taken // count.messages
                count.messages -= taken

    def heaviest(self, number: int, *, by_bytes: bool = False) -> list[tuple[bytes, KeyCount]]:
        """Return the `number` keys with the most messages or bytes, in descending order. Keys with equal counts are
        sorted by key.
        """
        return sorted(
            self.keys.items(),
            key=lambda item: (-(item[1].size_bytes if by_bytes else item[1].messages), item[0]),
        )[:number]


def _add(count: KeyCount, messages: int, size_bytes: int) -> None:
    count.messages += messages
    count.size_bytes += size_bytes


def selector_of(mode: str, consumers: int, points: int = 100) -> HashSelector:
    """Return a selector that distributes hashes over `consumers` consumers as the broker does. `mode` is `auto-split`
    or `consistent-hash`; `points` is the number of points of each consumer on the hash ring of `consistent-hash`.
    """
    selector: HashSelector = AutoSplitSelector() if mode == "auto-split" else ConsistentHashSelector(points)
    for index in range(consumers):
        selector.add(ConsumerState(f"consumer-{index + 1}", 0, 0, None))
    return selector


class Owners:
    """Finds the consumer that owns a hash."""

    def __init__(self, ranges: Mapping[str, Sequence[HashRange]], fold: HashSelector) -> None:
        self.names = list(ranges)
        self._fold = fold
        self._owner = [""] * RANGE_SIZE
        for name, owned in ranges.items():
            for first, last in owned:
                self._owner[first : last + 1] = [name] * (last - first + 1)

    @classmethod
    def of_selector(cls, selector: HashSelector) -> Owners:
        return cls({consumer.name: ranges for consumer, ranges in selector.ranges().items()}, selector)

    def sticky_hashes(self, keys: Iterable[bytes]) -> list[int]:
        return self._fold.sticky_hashes(map(key_hash, keys))

    def owner(self, sticky_hash: int) -> str:
        return self._owner[sticky_hash]
