"""The contract of the three ways to share the hash space among the consumers of a Key_Shared subscription.

A key is hashed once to 31 bits (`model.hashing.key_hash`), whatever the mode; a selector folds that into its own space,
the sticky hash, and says which consumer owns a sticky hash. 0 is never a sticky hash: it stands for "no key" in the
pending acks of types that do not look at keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from pybroker.dispatch.consumer_state import ConsumerState

RANGE_SIZE = 1 << 16
"""Ranges are cut from 0..65535; a ring has points at 1..65535."""

HashRange = tuple[int, int]
"""First and last hash, both included."""


def fold_into_ranges(key_hashes: Iterable[int]) -> list[int]:
    """The sticky hashes of selectors that cut ranges: 0..65535, where 0 becomes 1."""
    return [key_hash % RANGE_SIZE or 1 for key_hash in key_hashes]


class HashSelector(ABC):
    """Owned by its dispatcher. Every hash has at most one owner, which is a consumer that was added."""

    @abstractmethod
    def sticky_hashes(self, key_hashes: Iterable[int]) -> list[int]:
        """The sticky hash of each key hash."""

    @abstractmethod
    def owner(self, sticky_hash: int) -> ConsumerState | None:
        """Who gets entries of this hash; None while nobody does."""

    @abstractmethod
    def add(self, consumer: ConsumerState) -> list[ConsumerState]:
        """Give `consumer` its share; returns those who lost hashes to it.

        Raises ConsumerAssignError when it cannot get one, and nothing of it remains then.
        """

    @abstractmethod
    def remove(self, consumer: ConsumerState) -> None:
        """Take `consumer`'s share away; others get only what was its."""

    @abstractmethod
    def ranges(self) -> dict[ConsumerState, list[HashRange]]:
        """The hashes of each consumer as rising ranges, neighbours joined."""
