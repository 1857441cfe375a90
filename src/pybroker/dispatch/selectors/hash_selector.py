"""Contract of the three ways to divide the hash space among the consumers of a Key_Shared subscription.

A key is hashed to 31 bits (`model.hashing.key_hash`). A selector maps that to its own space, the sticky hash, and
determines which consumer owns it. 0 is never a sticky hash: it means "no key" in the pending acks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from pybroker.dispatch.consumer_state import ConsumerState

RANGE_SIZE = 1 << 16
"""Ranges divide 0..65535; a ring has points at 1..65535."""

HashRange = tuple[int, int]
"""First and last hash, inclusive."""


def fold_into_ranges(key_hashes: Iterable[int]) -> list[int]:
    """Return the sticky key hashes of these 31-bit key hashes, for selectors with hash ranges: the key hash modulo
    65536, where 0 becomes 1.
    """
    return [key_hash % RANGE_SIZE or 1 for key_hash in key_hashes]


class HashSelector(ABC):
    """The owner of each hash of one subscription. Every hash has at most one owner, which is a connected consumer."""

    @abstractmethod
    def sticky_hashes(self, key_hashes: Iterable[int]) -> list[int]: ...

    @abstractmethod
    def owner(self, sticky_hash: int) -> ConsumerState | None: ...

    @abstractmethod
    def add(self, consumer: ConsumerState) -> list[ConsumerState]:
        """Assign hashes to `consumer`. Return the consumers that lost hashes. Raises ConsumerAssignError if no hash can
        be assigned; the selector is then unchanged.
        """

    @abstractmethod
    def remove(self, consumer: ConsumerState) -> None:
        """Assign the hashes of `consumer` to other consumers, which keep their own hashes. With ranges that the
        consumers chose (STICKY), the hashes have no owner afterwards.
        """

    @abstractmethod
    def ranges(self) -> dict[ConsumerState, list[HashRange]]:
        """Return the hashes of each consumer as ascending ranges. Adjacent ranges of a consumer are merged."""
