"""Pending acks: the entries that each consumer of a shared subscription received and has not acknowledged.

Invariants: one consumer at a time has an entry; a consumer's `unacked_messages` is the sum over its entries, and
`total_messages` the sum over all; every entry is in its consumer's delivery log.

The log finds the entries of one consumer without a search through all entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pyroaring import BitMap

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.model.position import Position

# Consumer, unacknowledged messages, sticky hash (0 for types without keys), and delivery time in milliseconds since
# 1970. A plain tuple, shared between equal entries of one delivery, because its memory dominates a shared subscription.
Hold = tuple[ConsumerState, int, int, int]
_NOTHING: dict[int, Hold] = {}

# Acknowledged deliveries are not removed from a shorter log.
_MIN_LOG_LIMIT = 100


class PendingAcks:
    """The unacknowledged entries of one subscription, by ledger and entry id."""

    __slots__ = ("_by_ledger", "_draining", "_log_limits", "_logs", "total_messages")

    def __init__(self, draining: DrainingHashes | None = None) -> None:
        """`draining`: the draining hashes to which every acknowledged or returned entry is reported."""
        self._by_ledger: dict[int, dict[int, Hold]] = {}  # no inner dict is empty
        # The deliveries of each consumer as (ledger id, entry ids, time); some entries may be acknowledged.
        self._logs: dict[ConsumerState, list[tuple[int, Sequence[int], int]]] = {}
        self._log_limits: dict[ConsumerState, int] = {}  # of logs longer than the minimum
        self._draining = draining
        self.total_messages = 0

    def __len__(self) -> int:
        return sum(len(holds) for holds in self._by_ledger.values())

    def overlaps(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        holds = self._by_ledger.get(ledger_id)
        return holds is not None and not holds.keys().isdisjoint(entry_ids)

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        holds = self._by_ledger.get(ledger_id)
        return holds is not None and entry_id in holds

    def holder(self, position: Position) -> ConsumerState | None:
        hold = self._by_ledger.get(position.ledger_id, _NOTHING).get(position.entry_id)
        return None if hold is None else hold[0]

    def hold(self, position: Position) -> Hold | None:
        return self._by_ledger.get(position.ledger_id, _NOTHING).get(position.entry_id)

    def ledger_ids(self) -> list[int]:
        return sorted(self._by_ledger)

    def entries_in(self, ledger_id: int) -> BitMap:
        return BitMap(list(self._by_ledger.get(ledger_id, ())))

    def holds_in(self, ledger_id: int) -> Mapping[int, Hold]:
        """Return the pending acks of a ledger by entry id. The mapping changes with later calls."""
        return self._by_ledger.get(ledger_id, _NOTHING)

    def delivered_ms(self, position: Position) -> int | None:
        """Return the time of the entry's last delivery in milliseconds since 1970; None if no consumer has the entry."""
        hold = self._by_ledger.get(position.ledger_id, _NOTHING).get(position.entry_id)
        return None if hold is None else hold[3]

    def oldest_delivered_ms(self, consumer: ConsumerState) -> int | None:
        if not consumer.unacked_messages:
            return None
        for ledger_id, entry_ids, delivered_ms in self._logs.get(consumer, ()):
            holds = self._by_ledger.get(ledger_id, _NOTHING)
            for entry_id in entry_ids:
                hold = holds.get(entry_id)
                # An entry redelivered to the same consumer counts for its last delivery.
                if hold is not None and hold[0] is consumer and hold[3] == delivered_ms:
                    return delivered_ms
        return None

    def add(
        self,
        consumer: ConsumerState,
        ledger_id: int,
        entry_ids: Sequence[int],
        message_counts: list[int],
        sticky_hashes: list[int] | None = None,
        now_ms: int = 0,
    ) -> int:
        """Record entries that were delivered to `consumer`. No consumer may have them already. Return their number of
        messages.
        """
        holds = self._by_ledger.get(ledger_id)
        if holds is None:
            holds = self._by_ledger[ledger_id] = {}
        before = len(holds)
        messages = sum(message_counts)
        if sticky_hashes is not None:
            for entry_id, message_count, sticky_hash in zip(entry_ids, message_counts, sticky_hashes, strict=True):
                holds[entry_id] = (consumer, message_count, sticky_hash, now_ms)
        elif messages == len(message_counts):
            holds.update(dict.fromkeys(entry_ids, (consumer, 1, 0, now_ms)))
        else:
            for entry_id, message_count in zip(entry_ids, message_counts, strict=True):
                holds[entry_id] = (consumer, message_count, 0, now_ms)
        assert len(holds) == before + len(entry_ids), "an entry at two consumers"
        log = self._logs.get(consumer)
        if log is None:
            log = self._logs[consumer] = []
        log.append((ledger_id, entry_ids, now_ms))
        if len(log) > _MIN_LOG_LIMIT and len(log) > self._log_limits.get(consumer, 0):
            self._cut_log(consumer, log)
        self.total_messages += messages
        consumer.hold(messages)
        return messages

    def remove(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """Remove acknowledged entries; unknown ids are ignored. Return True if this unblocked a consumer."""
        holds = self._by_ledger.get(ledger_id)
        if holds is None:
            return False
        draining = self._draining or None  # Checked once: usually no hash drains.
        unblocked = False
        # Entries acknowledged together were usually delivered together: update each consumer once per run.
        holder: ConsumerState | None = None
        messages = 0
        for entry_id in entry_ids:
            hold = holds.pop(entry_id, None)
            if hold is None:
                continue
            if hold[0] is not holder:
                if holder is not None:
                    self.total_messages -= messages
                    unblocked = holder.release(messages) or unblocked
                    messages = 0
                holder = hold[0]
            messages += hold[1]
            if draining is not None:
                draining.released(hold[0], hold[2], max(1, hold[1]))
        if holder is not None:
            self.total_messages -= messages
            unblocked = holder.release(messages) or unblocked
        if not holds:
            del self._by_ledger[ledger_id]
        return unblocked

    def lower(self, ledger_id: int, entry_id: int, unacked_messages: int) -> bool:
        """Lower the number of unacknowledged messages of an entry to `unacked_messages`; a number that is not lower is
        ignored. With 0, the entry stays a pending ack, because open transactions may return its messages. Return True
        if this unblocked a consumer.
        """
        holds = self._by_ledger.get(ledger_id)
        hold = None if holds is None else holds.get(entry_id)
        if holds is None or hold is None or hold[1] <= unacked_messages:
            return False
        holds[entry_id] = (hold[0], unacked_messages, hold[2], hold[3])
        self.total_messages -= hold[1] - unacked_messages
        if self._draining:
            self._draining.lowered(hold[2], hold[1] - max(1, unacked_messages))
        return hold[0].release(hold[1] - unacked_messages)

    def remove_up_to(self, position: Position) -> bool:
        """Remove all entries up to and including `position`, which are acknowledged. Return True if this unblocked a
        consumer.
        """
        unblocked = False
        for ledger_id in [ledger_id for ledger_id in self._by_ledger if ledger_id <= position.ledger_id]:
            holds = self._by_ledger[ledger_id]
            entry_ids = list(holds)
            if ledger_id == position.ledger_id:
                entry_ids = [entry_id for entry_id in entry_ids if entry_id <= position.entry_id]
            if self.remove(ledger_id, entry_ids):
                unblocked = True
        return unblocked

    def take_back(
        self, consumer: ConsumerState, ledger_id: int, entry_ids: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Remove the pending acks of `consumer` among these entries, for redelivery. Return the removed entry ids and
        their sticky key hashes.
        """
        holds = self._by_ledger.get(ledger_id)
        taken: list[int] = []
        sticky_hashes: list[int] = []
        if holds is None:
            return taken, sticky_hashes
        draining = self._draining or None
        messages = 0
        for entry_id in entry_ids:
            hold = holds.get(entry_id)
            if hold is not None and hold[0] is consumer:
                del holds[entry_id]
                taken.append(entry_id)
                sticky_hashes.append(hold[2])
                messages += hold[1]
                if draining is not None:
                    draining.released(consumer, hold[2], max(1, hold[1]))
        if not taken:
            return taken, sticky_hashes
        if not holds:
            del self._by_ledger[ledger_id]
        self.total_messages -= messages
        consumer.take_back(messages)
        return taken, sticky_hashes

    def deliveries(self, consumer: ConsumerState) -> list[tuple[int, Sequence[int], int]]:
        """Return the deliveries to the consumer as (ledger id, entry ids, time in milliseconds since 1970), oldest
        first. They include all its pending acks, and may include entries that are not pending any more.
        """
        return list(self._logs.get(consumer, ()))

    def held_by(self, consumer: ConsumerState) -> dict[int, list[int]]:
        log = self._logs.get(consumer)
        if log is None:
            return {}
        held: dict[int, list[int]] = {}
        for ledger_id, entry_ids, _ in log:
            holds = self._by_ledger.get(ledger_id)
            if holds is None:
                continue
            mine = [e for e in entry_ids if (hold := holds.get(e)) is not None and hold[0] is consumer]
            if mine:
                held.setdefault(ledger_id, []).extend(mine)
        # An entry redelivered to the same consumer is in its log twice.
        return {ledger_id: list(dict.fromkeys(entry_ids)) for ledger_id, entry_ids in held.items()}

    def hash_counts(self, consumer: ConsumerState) -> dict[int, int]:
        counts: Counter[int] = Counter()
        for ledger_id, entry_ids in self.held_by(consumer).items():
            holds = self._by_ledger[ledger_id]
            counts.update([holds[entry_id][2] for entry_id in entry_ids])
        return counts

    def hash_messages(self, consumer: ConsumerState) -> dict[int, int]:
        """Return the consumer's number of unacknowledged messages by sticky key hash. An entry counts as at least one
        message.
        """
        counts: Counter[int] = Counter()
        for ledger_id, entry_ids in self.held_by(consumer).items():
            holds = self._by_ledger[ledger_id]
            for entry_id in entry_ids:
                counts[holds[entry_id][2]] += max(1, holds[entry_id][1])
        return counts

    def forget(self, consumer: ConsumerState) -> None:
        assert consumer.unacked_messages == 0
        self._logs.pop(consumer, None)
        self._log_limits.pop(consumer, None)

    def clear(self) -> None:
        for holds in self._by_ledger.values():
            for consumer, message_count, _, _ in holds.values():
                consumer.release(message_count)
        self._by_ledger.clear()
        self._logs.clear()
        self._log_limits.clear()
        self.total_messages = 0

    def __iter__(self) -> Iterator[tuple[int, int, ConsumerState, int, int]]:
        for ledger_id, holds in self._by_ledger.items():
            for entry_id, (consumer, message_count, sticky_hash, _) in holds.items():
                yield ledger_id, entry_id, consumer, message_count, sticky_hash

    def check_invariants(self) -> None:
        held: dict[ConsumerState, dict[int, set[int]]] = {}
        for ledger_id, entry_id, consumer, _, _ in self:
            held.setdefault(consumer, {}).setdefault(ledger_id, set()).add(entry_id)
        for consumer in {*held, *self._logs}:
            by_log = {ledger_id: set(entry_ids) for ledger_id, entry_ids in self.held_by(consumer).items()}
            assert by_log == held.get(consumer, {}), "a consumer's log differs from its pending acks"

    def _cut_log(self, consumer: ConsumerState, log: list[tuple[int, Sequence[int], int]]) -> None:
        by_ledger = self._by_ledger
        log[:] = [each for each in log if not by_ledger.get(each[0], _NOTHING).keys().isdisjoint(each[1])]
        self._log_limits[consumer] = 2 * len(log)
