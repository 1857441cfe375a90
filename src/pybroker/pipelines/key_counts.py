"""How often each key occurs, in bounded memory: exact up to a number of keys, and the heavy ones for sure above it.

Above `max_keys` the counts are those of Misra and Gries' summary: a key with more than 1/`max_keys` of all messages is among
them, and its count is too low by at most `error`. What consumers get is then made up of the keys that are left.
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
    """Of one key: messages and the bytes of their values."""

    messages: int = 0
    size_bytes: int = 0


class KeyCounts:
    """Counts keys; `add` takes what one batch holds of each."""

    def __init__(self, max_keys: int) -> None:
        assert max_keys > 0
        self.keys: dict[bytes, KeyCount] = {}
        self.total = KeyCount()
        self.without_key = KeyCount()
        self.error = 0
        """By how many messages a count of `keys` may be too low; 0 while all keys fit."""
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
        """What each owner gets of the keys that are counted; empty name: hashes of nobody."""
        shares: dict[str, KeyCount] = {}
        for sticky_hash, count in zip(owners.sticky_hashes(self.keys), self.keys.values(), strict=True):
            _add(shares.setdefault(owners.owner(sticky_hash), KeyCount()), count.messages, count.size_bytes)
        return shares

    def _shrink(self) -> None:
        """Take from all keys what the lighter half has, so that this half goes: once for very many keys."""
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
        """In falling order; equal ones by key."""
        return sorted(
            self.keys.items(),
            key=lambda item: (-(item[1].size_bytes if by_bytes else item[1].messages), item[0]),
        )[:number]


def _add(count: KeyCount, messages: int, size_bytes: int) -> None:
    count.messages += messages
    count.size_bytes += size_bytes


def selector_of(mode: str, consumers: int, points: int = 100) -> HashSelector:
    """As the broker would spread hashes over that many consumers, that came one after the other."""
    selector: HashSelector = AutoSplitSelector() if mode == "auto-split" else ConsistentHashSelector(points)
    for index in range(consumers):
        selector.add(ConsumerState(f"consumer-{index + 1}", 0, 0, None))
    return selector


class Owners:
    """Which consumer owns which hash."""

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
        """Empty for a hash that nobody owns."""
        return self._owner[sticky_hash]
