"""Draining hashes: key hashes that moved to a new consumer while the previous consumer has unacknowledged entries of
them (PIP-379). Until the previous consumer has none left, no other consumer receives entries of the hash.

A hash is free when its number of unacknowledged entries is zero; the number of messages is for display.

Invariants: a listed hash has one draining consumer and at least one unacknowledged entry, and only that consumer
receives entries of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pybroker.dispatch.consumer_state import ConsumerState


class DrainingHash(NamedTuple):
    """One draining hash, for display.

    `consumer` has `unacked_entries` with `unacked_messages`. `blocked_attempts` counts deliveries to other consumers
    that were refused. `since_ms`: since 1970.
    """

    consumer: ConsumerState
    unacked_entries: int
    blocked_attempts: int
    unacked_messages: int
    since_ms: int = 0


# Draining consumer, its number of entries, and the start time. Equal values share one object, because there may be
# 65,535 hashes.
_Held = tuple[ConsumerState, int, int]


class DrainingHashes:
    """The draining hashes of one Key_Shared dispatcher. `PendingAcks` reports each released entry.

    `freed` collects hashes that are free again. The dispatcher takes them and dispatches the entries that waited.
    """

    __slots__ = ("_alike", "_blocked_attempts", "_by_hash", "_more_messages", "cleared_total", "freed")

    def __init__(self) -> None:
        self._by_hash: dict[int, _Held] = {}
        self._alike: dict[_Held, _Held] = {}
        self._blocked_attempts: dict[int, int] = {}  # only hashes with attempts
        self._more_messages: dict[int, int] = {}  # messages beyond one per entry, for hashes with batches
        self.freed: list[int] = []
        self.cleared_total = 0
        """Total number of hashes that were drained since the dispatcher exists."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def __iter__(self) -> Iterator[tuple[int, DrainingHash]]:
        for sticky_hash in self._by_hash:
            yield sticky_hash, self._shown(sticky_hash)

    def hashes(self) -> list[int]:
        return list(self._by_hash)

    def of(self, sticky_hash: int) -> DrainingHash | None:
        return self._shown(sticky_hash) if sticky_hash in self._by_hash else None

    def drain(
        self,
        consumer: ConsumerState,
        sticky_hash: int,
        unacked_entries: int,
        unacked_messages: int | None = None,
        now_ms: int = 0,
    ) -> None:
        """Start draining `sticky_hash` at `consumer`, its previous owner, which has `unacked_entries` unacknowledged
        entries of the hash, with `unacked_messages` messages (default: one for each entry). A hash that already drains
        starts again with these counts. `now_ms`: since 1970, for statistics.
        """
        assert unacked_entries > 0
        held = self._by_hash.get(sticky_hash)
        assert held is None or held[0] is consumer, "one hash, two consumers with unacknowledged entries"
        self._set(sticky_hash, consumer, unacked_entries, now_ms)
        self._more_messages.pop(sticky_hash, None)
        self._add_messages(sticky_hash, 0 if unacked_messages is None else unacked_messages - unacked_entries)

    def blocks(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """Return whether an entry of this hash must not be sent to `consumer`, its new owner, because the hash drains
        at another consumer. If so, count a blocked attempt. If the hash drains at `consumer`, which owns it again, it
        stops draining.
        """
        held = self._by_hash.get(sticky_hash)
        if held is None:
            return False
        if held[0] is consumer:
            self._forget(sticky_hash)
            return False
        self._blocked_attempts[sticky_hash] = self._blocked_attempts.get(sticky_hash, 0) + 1
        return True

    def is_held_by_other(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """Return whether the hash drains at another consumer. Unlike `blocks`, count no attempt."""
        held = self._by_hash.get(sticky_hash)
        return held is not None and held[0] is not consumer

    def holder(self, sticky_hash: int) -> ConsumerState | None:
        held = self._by_hash.get(sticky_hash)
        return None if held is None else held[0]

    def delivered(self, consumer: ConsumerState, sticky_hash: int, message_count: int = 1) -> None:
        """Count one more unacknowledged entry of a draining hash at `consumer`, its previous owner: a further chunk of
        a message of which the consumer has already received chunks.
        """
        held = self._by_hash.get(sticky_hash)
        if held is not None:
            assert held[0] is consumer, "one hash, two consumers with unacknowledged entries"
            self._set(sticky_hash, consumer, held[1] + 1, held[2])
            self._add_messages(sticky_hash, message_count - 1)

    def lowered(self, sticky_hash: int, message_count: int) -> None:
        if sticky_hash in self._more_messages:
            self._add_messages(sticky_hash, -message_count)

    def released(self, consumer: ConsumerState, sticky_hash: int, message_count: int = 1) -> None:
        held = self._by_hash.get(sticky_hash)
        if held is None:
            return
        assert held[0] is consumer, "one hash, two consumers with unacknowledged entries"
        if held[1] > 1:
            self._set(sticky_hash, consumer, held[1] - 1, held[2])
            self._add_messages(sticky_hash, 1 - message_count)
            return
        self._forget(sticky_hash)
        self.cleared_total += 1
        consumer.draining_hashes_cleared_total += 1
        self.freed.append(sticky_hash)

    def take_freed(self) -> list[int]:
        freed, self.freed = self.freed, []
        return freed

    def unacked_entries(self) -> int:
        return sum(unacked_entries for _, unacked_entries, _ in self._by_hash.values())

    def unacked_messages(self) -> int:
        return self.unacked_entries() + sum(self._more_messages.values())

    def by_consumer(self) -> dict[ConsumerState, list[tuple[int, DrainingHash]]]:
        listed: dict[ConsumerState, list[tuple[int, DrainingHash]]] = {}
        for sticky_hash in sorted(self._by_hash):
            shown = self._shown(sticky_hash)
            listed.setdefault(shown.consumer, []).append((sticky_hash, shown))
        return listed

    def clear(self) -> None:
        """Remove all hashes, because no entry is unacknowledged. The counter `cleared_total` is not reset."""
        self._by_hash = {}
        self._alike = {}
        self._blocked_attempts = {}
        self._more_messages = {}
        self.freed = []

    def _shown(self, sticky_hash: int) -> DrainingHash:
        consumer, unacked_entries, since_ms = self._by_hash[sticky_hash]
        unacked_messages = unacked_entries + self._more_messages.get(sticky_hash, 0)
        blocked_attempts = self._blocked_attempts.get(sticky_hash, 0)
        return DrainingHash(consumer, unacked_entries, blocked_attempts, unacked_messages, since_ms)

    def _add_messages(self, sticky_hash: int, message_count: int) -> None:
        more = self._more_messages.get(sticky_hash, 0) + message_count
        assert more >= 0, "more messages acknowledged than a hash has"
        if more:
            self._more_messages[sticky_hash] = more
        else:
            self._more_messages.pop(sticky_hash, None)

    def _set(self, sticky_hash: int, consumer: ConsumerState, unacked_entries: int, since_ms: int) -> None:
        held = (consumer, unacked_entries, since_ms)
        self._by_hash[sticky_hash] = self._alike.setdefault(held, held)

    def _forget(self, sticky_hash: int) -> None:
        del self._by_hash[sticky_hash]
        self._blocked_attempts.pop(sticky_hash, None)
        self._more_messages.pop(sticky_hash, None)
        if not self._by_hash:
            # A cleared dict would keep its table size.
            self._by_hash = {}
            self._alike = {}
            self._blocked_attempts = {}
