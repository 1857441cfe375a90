"""What each consumer of a shared subscription was sent and has not acknowledged: the one place that knows it.

Invariants: an entry is held by one consumer at a time; a consumer's `unacked_messages` is the sum over the entries it
holds, and `total_messages` the sum over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.model.position import Position

# The consumer that holds an entry, and how many of its messages are unacknowledged. A plain tuple, shared between the
# entries of one delivery: there is one for each unacknowledged entry, and its cost is the cost of a shared
# subscription.
Hold = tuple[ConsumerState, int]


class PendingAcks:
    """Unacknowledged entries by ledger and entry id."""

    __slots__ = ("_by_ledger", "total_messages")

    def __init__(self) -> None:
        self._by_ledger: dict[int, dict[int, Hold]] = {}
        self.total_messages = 0

    def __len__(self) -> int:
        return sum(len(holds) for holds in self._by_ledger.values())

    def overlaps(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """Whether one of the entries is held by somebody."""
        holds = self._by_ledger.get(ledger_id)
        return holds is not None and not holds.keys().isdisjoint(entry_ids)

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        holds = self._by_ledger.get(ledger_id)
        return holds is not None and entry_id in holds

    def add(self, consumer: ConsumerState, ledger_id: int, entry_ids: Sequence[int], message_counts: list[int]) -> int:
        """`consumer` holds these entries, which nobody holds yet, from now on. Returns how many messages that are."""
        holds = self._by_ledger.get(ledger_id)
        if holds is None:
            holds = self._by_ledger[ledger_id] = {}
        before = len(holds)
        messages = sum(message_counts)
        if messages == len(message_counts):
            holds.update(dict.fromkeys(entry_ids, (consumer, 1)))
        else:
            for entry_id, message_count in zip(entry_ids, message_counts, strict=True):
                holds[entry_id] = (consumer, message_count)
        assert len(holds) == before + len(entry_ids), "an entry at two consumers"
        self.total_messages += messages
        consumer.hold(messages)
        return messages

    def remove(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """The entries were acknowledged; unknown ones are ignored. True when that unblocked a consumer."""
        holds = self._by_ledger.get(ledger_id)
        if holds is None:
            return False
        unblocked = False
        for entry_id in entry_ids:
            hold = holds.pop(entry_id, None)
            if hold is not None:
                self.total_messages -= hold[1]
                if hold[0].release(hold[1]):
                    unblocked = True
        if not holds:
            del self._by_ledger[ledger_id]
        return unblocked

    def lower(self, ledger_id: int, entry_id: int, unacked_messages: int) -> bool:
        """Of the batch `unacked_messages` are left; True when that unblocked its consumer. Never raises the count."""
        holds = self._by_ledger.get(ledger_id)
        hold = None if holds is None else holds.get(entry_id)
        if holds is None or hold is None or hold[1] <= unacked_messages:
            return False
        holds[entry_id] = (hold[0], unacked_messages)
        self.total_messages -= hold[1] - unacked_messages
        return hold[0].release(hold[1] - unacked_messages)

    def remove_up_to(self, position: Position) -> bool:
        """Everything up to and including `position` was acknowledged; True when that unblocked a consumer."""
        unblocked = False
        for ledger_id in [ledger_id for ledger_id in self._by_ledger if ledger_id <= position.ledger_id]:
            holds = self._by_ledger[ledger_id]
            entry_ids = list(holds)
            if ledger_id == position.ledger_id:
                entry_ids = [entry_id for entry_id in entry_ids if entry_id <= position.entry_id]
            if self.remove(ledger_id, entry_ids):
                unblocked = True
        return unblocked

    def take_back(self, consumer: ConsumerState, ledger_id: int, entry_ids: Sequence[int]) -> list[int]:
        """Take those of the entries that `consumer` holds away from it, to be sent again; returns them."""
        holds = self._by_ledger.get(ledger_id)
        if holds is None:
            return []
        taken: list[int] = []
        messages = 0
        for entry_id in entry_ids:
            hold = holds.get(entry_id)
            if hold is not None and hold[0] is consumer:
                del holds[entry_id]
                taken.append(entry_id)
                messages += hold[1]
        if not taken:
            return taken
        if not holds:
            del self._by_ledger[ledger_id]
        self.total_messages -= messages
        consumer.take_back(messages)
        return taken

    def held_by(self, consumer: ConsumerState) -> dict[int, list[int]]:
        """Everything that `consumer` holds, by ledger. Looks at all entries: for one that leaves or asks for all."""
        if not consumer.unacked_messages:
            return {}
        held: dict[int, list[int]] = {}
        for ledger_id, holds in self._by_ledger.items():
            entry_ids = [entry_id for entry_id, hold in holds.items() if hold[0] is consumer]
            if entry_ids:
                held[ledger_id] = entry_ids
        return held

    def clear(self) -> None:
        """Forget everything, and what the consumers hold with it."""
        for holds in self._by_ledger.values():
            for consumer, message_count in holds.values():
                consumer.release(message_count)
        self._by_ledger.clear()
        self.total_messages = 0

    def __iter__(self) -> Iterator[tuple[int, int, ConsumerState, int]]:
        """Ledger id, entry id, consumer and unacknowledged messages of every entry, for views and checks."""
        for ledger_id, holds in self._by_ledger.items():
            for entry_id, (consumer, message_count) in holds.items():
                yield ledger_id, entry_id, consumer, message_count
