"""Hashes that moved to another consumer while the one before still holds unacknowledged entries of them (PIP-379).

A key must not be unacknowledged at two consumers. So when the owner of hashes changes, those of which the former owner
holds entries begin to drain: nobody else gets entries of them until the last of these is acknowledged, taken back, or
lost with its consumer. All other hashes go on.

What is counted are entries, as in the pending acks: a batch is one. A hash whose ownership returns to the consumer that
drains it needs no protection any more; it is forgotten when the next entry of it is to be sent, so that nobody has to
look through all hashes when owners change.

Invariants: a listed hash has one consumer and at least one unacknowledged entry; while a hash is listed, nobody but its
consumer gets an entry of it. Empty on a subscription whose consumers stay: then it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.dispatch.consumer_state import ConsumerState


class DrainingHash:
    """One hash: who drains it, how many entries that consumer still holds, how often somebody else was refused."""

    __slots__ = ("blocked_attempts", "consumer", "unacked_entries")

    def __init__(self, consumer: ConsumerState, unacked_entries: int) -> None:
        self.consumer = consumer
        self.unacked_entries = unacked_entries
        self.blocked_attempts = 0


class DrainingHashes:
    """Owned by a Key_Shared dispatcher; its pending acks count it down.

    `freed` gathers hashes that are free again; the dispatcher takes them away and looks whether anything waits for them.
    """

    __slots__ = ("_by_hash", "cleared_total", "freed")

    def __init__(self) -> None:
        self._by_hash: dict[int, DrainingHash] = {}
        self.freed: list[int] = []
        self.cleared_total = 0
        """Hashes that were drained, over all consumers."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def __iter__(self) -> Iterator[tuple[int, DrainingHash]]:
        return iter(self._by_hash.items())

    def drain(self, consumer: ConsumerState, sticky_hash: int, unacked_entries: int) -> None:
        """`sticky_hash` is not `consumer`'s any more, which holds `unacked_entries` of it.

        Said again of a hash that returned and moved away once more before anybody noticed, it counts afresh.
        """
        assert unacked_entries > 0
        draining = self._by_hash.get(sticky_hash)
        if draining is None:
            self._by_hash[sticky_hash] = DrainingHash(consumer, unacked_entries)
            return
        assert draining.consumer is consumer, "one hash, two consumers with unacknowledged entries"
        draining.unacked_entries = unacked_entries

    def blocks(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """Whether an entry of `sticky_hash` must not be sent to `consumer`, its owner; counts the attempt then."""
        draining = self._by_hash.get(sticky_hash)
        if draining is None:
            return False
        if draining.consumer is consumer:
            self._forget(sticky_hash)
            return False
        draining.blocked_attempts += 1
        return True

    def is_held_by_other(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """The same question without an attempt to send."""
        draining = self._by_hash.get(sticky_hash)
        return draining is not None and draining.consumer is not consumer

    def released(self, consumer: ConsumerState, sticky_hash: int) -> None:
        """`consumer` holds one entry of the hash less."""
        draining = self._by_hash.get(sticky_hash)
        if draining is None:
            return
        assert draining.consumer is consumer, "one hash, two consumers with unacknowledged entries"
        draining.unacked_entries -= 1
        if draining.unacked_entries > 0:
            return
        self._forget(sticky_hash)
        self.cleared_total += 1
        consumer.draining_hashes_cleared_total += 1
        self.freed.append(sticky_hash)

    def take_freed(self) -> list[int]:
        """The hashes freed since the last call."""
        freed, self.freed = self.freed, []
        return freed

    def unacked_entries(self) -> int:
        """Entries under all draining hashes."""
        return sum(draining.unacked_entries for draining in self._by_hash.values())

    def by_consumer(self) -> dict[ConsumerState, list[tuple[int, DrainingHash]]]:
        """The hashes that each consumer drains, rising; consumers without one are not named."""
        listed: dict[ConsumerState, list[tuple[int, DrainingHash]]] = {}
        for sticky_hash in sorted(self._by_hash):
            draining = self._by_hash[sticky_hash]
            listed.setdefault(draining.consumer, []).append((sticky_hash, draining))
        return listed

    def clear(self) -> None:
        """Nothing is unacknowledged any more; the totals stay."""
        self._by_hash = {}
        self.freed = []

    def _forget(self, sticky_hash: int) -> None:
        del self._by_hash[sticky_hash]
        if not self._by_hash:
            self._by_hash = {}  # A table keeps its size however little is in it.
