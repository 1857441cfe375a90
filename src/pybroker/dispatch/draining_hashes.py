"""Hashes that moved to another consumer while the one before still holds unacknowledged entries of them (PIP-379).

A key must not be unacknowledged at two consumers. So when the owner of hashes changes, those of which the former owner
holds entries begin to drain: nobody else gets entries of them until the last of these is acknowledged, taken back, or
lost with its consumer. All other hashes go on.

What is counted down are entries, as in the pending acks: a batch is one. How many messages they hold is kept besides, to be
shown. A hash whose ownership returns to the consumer that
drains it needs no protection any more; it is forgotten when the next entry of it is to be sent, so that nobody has to
look through all hashes when owners change.

Invariants: a listed hash has one consumer and at least one unacknowledged entry; while a hash is listed, nobody but its
consumer gets an entry of it. Empty on a subscription whose consumers stay: then it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pybroker.dispatch.consumer_state import ConsumerState


class DrainingHash(NamedTuple):
    """One hash, to look at: who drains it, how many entries that still holds, how often somebody else was refused.

    And how many messages of those entries are not acknowledged; and since when it drains, in milliseconds since the epoch.
    """

    consumer: ConsumerState
    unacked_entries: int
    blocked_attempts: int
    unacked_messages: int
    since_ms: int = 0


# Who drains a hash, how many entries that holds, and since when it drains. One object for all hashes that are alike: there
# may be 65,535 of them, and a plain object for each costs more than the table.
_Held = tuple[ConsumerState, int, int]


class DrainingHashes:
    """Owned by a Key_Shared dispatcher; its pending acks count it down.

    `freed` gathers hashes that are free again; the dispatcher takes them away and looks whether anything waits for them.
    """

    __slots__ = ("_alike", "_blocked_attempts", "_by_hash", "_more_messages", "cleared_total", "freed")

    def __init__(self) -> None:
        self._by_hash: dict[int, _Held] = {}
        self._alike: dict[_Held, _Held] = {}
        self._blocked_attempts: dict[int, int] = {}  # of those hashes that had any
        self._more_messages: dict[int, int] = {}  # beyond one for each entry, of hashes with batches
        self.freed: list[int] = []
        self.cleared_total = 0
        """Hashes that were drained, over all consumers."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def __iter__(self) -> Iterator[tuple[int, DrainingHash]]:
        for sticky_hash in self._by_hash:
            yield sticky_hash, self._shown(sticky_hash)

    def hashes(self) -> list[int]:
        """All that drain, in no order."""
        return list(self._by_hash)

    def of(self, sticky_hash: int) -> DrainingHash | None:
        """That hash, to look at; None when it does not drain."""
        return self._shown(sticky_hash) if sticky_hash in self._by_hash else None

    def drain(
        self,
        consumer: ConsumerState,
        sticky_hash: int,
        unacked_entries: int,
        unacked_messages: int | None = None,
        now_ms: int = 0,
    ) -> None:
        """`sticky_hash` is not `consumer`'s any more, which holds `unacked_entries` of it, of a message each unless it is said.

        Said again of a hash that returned and moved away once more before anybody noticed, it counts afresh.
        """
        assert unacked_entries > 0
        held = self._by_hash.get(sticky_hash)
        assert held is None or held[0] is consumer, "one hash, two consumers with unacknowledged entries"
        self._set(sticky_hash, consumer, unacked_entries, now_ms)
        self._more_messages.pop(sticky_hash, None)
        self._add_messages(sticky_hash, 0 if unacked_messages is None else unacked_messages - unacked_entries)

    def blocks(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """Whether an entry of `sticky_hash` must not be sent to `consumer`, its owner; counts the attempt then."""
        held = self._by_hash.get(sticky_hash)
        if held is None:
            return False
        if held[0] is consumer:
            self._forget(sticky_hash)
            return False
        self._blocked_attempts[sticky_hash] = self._blocked_attempts.get(sticky_hash, 0) + 1
        return True

    def is_held_by_other(self, consumer: ConsumerState, sticky_hash: int) -> bool:
        """The same question without an attempt to send."""
        held = self._by_hash.get(sticky_hash)
        return held is not None and held[0] is not consumer

    def holder(self, sticky_hash: int) -> ConsumerState | None:
        """Who drains this hash; None when it does not drain."""
        held = self._by_hash.get(sticky_hash)
        return None if held is None else held[0]

    def delivered(self, consumer: ConsumerState, sticky_hash: int, message_count: int = 1) -> None:
        """`consumer` got one entry more of a hash that it may drain: a part of a message of which it has another."""
        held = self._by_hash.get(sticky_hash)
        if held is not None:
            assert held[0] is consumer, "one hash, two consumers with unacknowledged entries"
            self._set(sticky_hash, consumer, held[1] + 1, held[2])
            self._add_messages(sticky_hash, message_count - 1)

    def lowered(self, sticky_hash: int, message_count: int) -> None:
        """Of a batch that is still held, so many messages were acknowledged."""
        if sticky_hash in self._more_messages:
            self._add_messages(sticky_hash, -message_count)

    def released(self, consumer: ConsumerState, sticky_hash: int, message_count: int = 1) -> None:
        """`consumer` holds one entry of the hash less, with so many messages."""
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
        """The hashes freed since the last call."""
        freed, self.freed = self.freed, []
        return freed

    def unacked_entries(self) -> int:
        """Entries under all draining hashes."""
        return sum(unacked_entries for _, unacked_entries, _ in self._by_hash.values())

    def unacked_messages(self) -> int:
        """Messages under all draining hashes."""
        return self.unacked_entries() + sum(self._more_messages.values())

    def by_consumer(self) -> dict[ConsumerState, list[tuple[int, DrainingHash]]]:
        """The hashes that each consumer drains, rising; consumers without one are not named."""
        listed: dict[ConsumerState, list[tuple[int, DrainingHash]]] = {}
        for sticky_hash in sorted(self._by_hash):
            shown = self._shown(sticky_hash)
            listed.setdefault(shown.consumer, []).append((sticky_hash, shown))
        return listed

    def clear(self) -> None:
        """Nothing is unacknowledged any more; the totals stay."""
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
            # Tables keep their size however little is in them.
            self._by_hash = {}
            self._alike = {}
            self._blocked_attempts = {}
