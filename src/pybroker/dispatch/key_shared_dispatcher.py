"""Dispatcher of Key_Shared subscriptions: each key goes to one consumer at a time, in order, and no key delays another.

An entry goes to its hash's owner, unless the hash drains at another consumer, an earlier entry of the hash waits, or
the owner cannot take it now. Then the entry waits, and the dispatcher reads ahead for the other consumers.

*Look-ahead.* Waiting entries are listed by position and hash (`keyed_redelivery.py`), within `look_ahead_bytes`. An
entry may be listed while the entries that the same consumer delays cost less than the free memory. An entry that does
not fit is parked with all later entries of its hash (`parked_hashes.py`) until the hash's owner has received all listed
entries and can take more. Then a scan rereads from the parked position.

For every delivery, even if consumers join, leave, acknowledge or return entries:

* no other consumer has an unacknowledged entry of the hash, unless out-of-order delivery was requested;
* every earlier entry of the hash is acknowledged or was delivered before: redelivered entries precede new ones.

If a hash moves while a consumer has some chunks of a large message, it stays there until the message is complete
(`kept_hashes.py`). Keys that share a hash are delayed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from heapq import nlargest

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, ReadPlan, Redelivery
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.key_shared.hash_owners import HashOwners
from pybroker.dispatch.key_shared.kept_hashes import KeptHashes
from pybroker.dispatch.key_shared.keyed_redelivery import ENTRY_BYTES, HASH_BYTES, PART_BYTES, KeyedReplay
from pybroker.dispatch.key_shared.parked_hashes import ParkedHashes
from pybroker.dispatch.look_ahead import LookAhead, WaitingOfHash
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.views import KeyOrderView
from pybroker.model.position import Position

_NO_LIMIT = 1 << 62


class KeySharedSettings:
    """Settings of Key_Shared dispatchers, from the broker's configuration; 0 disables a look-ahead limit.

    At `look_ahead_bytes` entries are parked. At the entry limits, per consumer and per subscription, no new entries are
    read.
    """

    __slots__ = ("look_ahead_bytes", "look_ahead_per_consumer", "look_ahead_per_subscription", "ring_points")

    def __init__(
        self,
        ring_points: int,
        look_ahead_per_consumer: int,
        look_ahead_per_subscription: int,
        look_ahead_bytes: int = 0,
    ) -> None:
        """`ring_points` is per consumer; with 0, AUTO_SPLIT halves ranges instead of using a hash ring."""
        self.ring_points = ring_points
        self.look_ahead_per_consumer = look_ahead_per_consumer
        self.look_ahead_per_subscription = look_ahead_per_subscription
        self.look_ahead_bytes = look_ahead_bytes

    def look_ahead_entries(self, consumer_count: int) -> int:
        limits = (self.look_ahead_per_consumer * consumer_count, self.look_ahead_per_subscription)
        return min((limit for limit in limits if limit), default=_NO_LIMIT)


class _Either(Container[int]):
    """Union of two containers."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self._one = one
        self._other = other

    def __contains__(self, value: object) -> bool:
        return value in self._one or value in self._other


class KeySharedDispatcher(MultiConsumerDispatcher):
    """Dispatcher of one Key_Shared subscription.

    Invariants: see the module; each waiting entry is in the set to which its hash currently belongs.
    """

    kind = "Key_Shared"
    needs_key_hashes = True
    _replay: KeyedReplay

    def __init__(
        self,
        redelivery_counts: RedeliveryCounts,
        max_read_batch_entries: int,
        max_read_size_bytes: int,
        max_unacked_messages: int,
        settings: KeySharedSettings,
    ) -> None:
        self.draining = DrainingHashes()
        super().__init__(
            redelivery_counts,
            max_read_batch_entries,
            max_read_size_bytes,
            max_unacked_messages,
            KeyedReplay(self._place, self.draining.holder),
            self.draining,
        )
        self.looks_ahead = True
        self.owners = HashOwners(settings.ring_points)
        self._settings = settings
        self._look_ahead_bytes = settings.look_ahead_bytes
        # Consumers that receive only entries before a position; empty except in classic mode.
        self._limits: dict[ConsumerState, Position] = {}
        # Hashes that began to wait since the last plan. The plan's entries of these hashes must follow the waiting
        # ones.
        self._held_back: set[int] = set()
        self._hashes_in_plan: dict[Position, int] = {}  # hashes of entries taken out for redelivery
        self._kept = KeptHashes(self.owners, self._chunked)
        self._turn = 0  # index of the consumer that is served first in the next replay
        self._parked = ParkedHashes(self._place)
        self._is_scans_turn = False  # whether the next plan may be a scan

    # --- snapshots ---------------------------------------------------------------------------------------------------

    @property
    def key_order(self) -> KeyOrderView:
        return self

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def recently_joined(self) -> list[tuple[ConsumerState, Position]]:
        return []

    @property
    def waiting(self) -> KeyedReplay:
        return self._replay

    @property
    def parked(self) -> ParkedHashes:
        return self._parked

    @property
    def look_ahead_size_bytes(self) -> int:
        return self._replay.size_bytes + self._parked.size_bytes

    @property
    def newcomers_wait_at(self) -> dict[ConsumerState, Position]:
        return self._limits

    def place(self, sticky_hash: int) -> ConsumerState | None:
        return self._place(sticky_hash)

    @property
    def look_ahead_entry_limit(self) -> int | None:
        limit = self._settings.look_ahead_entries(len(self.consumers))
        return None if limit == _NO_LIMIT else limit

    def limit_look_ahead(self, size_bytes: int) -> None:
        """Set the size limit of the look-ahead buffer, at most to the configured limit. Entries in the buffer stay
        until they can be delivered.
        """
        own_bytes = self._settings.look_ahead_bytes
        self._look_ahead_bytes = min(own_bytes, size_bytes) if own_bytes else size_bytes

    # --- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Add the consumer and assign key hashes to it. Return the actions that the subscription must carry out. Raises
        ConsumerBusy if the consumer requests another mode or out-of-order flag than the connected consumers,
        ConsumerAssignError for invalid hash ranges.
        """
        assert consumer not in self.consumers, "consumer attached twice"
        losers = self.owners.add(consumer, is_first=not self.consumers)
        self.consumers.append(consumer)
        for loser in losers:
            if not self.owners.allows_out_of_order_delivery:
                self._drain(loser)
            self._kept.keep_unfinished(loser)
        self._replace_all()
        return Redelivery(rewind=False, wake=self._can_move())

    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Remove the consumer. Return the actions that the subscription must carry out. The consumer's unacknowledged
        entries go to the new owners of its hashes; the unacknowledged entries of other consumers stay with these
        consumers. When the last consumer leaves, only the redelivery counts are kept.
        """
        self.owners.remove(consumer)
        self.consumers.remove(consumer)
        released = self._kept.release(consumer)
        self._replace_all()
        self._take_back_all(consumer)
        self._forget_consumer(consumer)
        if released and self._kept.keep_at_holders(released):
            self._replace_all()
        if not self.consumers:
            self._forget_deliveries()
            return Redelivery(rewind=True, wake=False)
        return Redelivery(rewind=False, wake=self._can_move())

    # --- reading -----------------------------------------------------------------------------------------------------

    def next_read(self) -> ReadPlan | None:
        """Plan a read of waiting entries for consumers that can receive them, else of new entries. Return None if
        nothing can be delivered, or if the look-ahead buffer is full.
        """
        self._held_back.clear()
        self._hashes_in_plan.clear()
        if self.blocked:
            return None
        able = [consumer for consumer in self.consumers if consumer.can_take()]
        if not able:
            return None
        self.has_unblocked = False
        if self._parked:
            self._is_scans_turn = not self._is_scans_turn
            scan = self._scan_for(able) if self._is_scans_turn else None
            if scan is not None:
                return scan
        if self._replay:
            replay = self._next_replay(able)
            if replay:
                return self._plan(len(replay), replay)
            if self.is_full():
                return self._scan_for(able) if self._parked else None
        # Only the share of the consumers that can take entries is delivered from the entries read.
        wanted = sum(map(ConsumerState.affordable_entries, able)) * len(self.consumers) // len(able)
        return self._plan(min(wanted, self._max_read_batch_entries), None)

    def next_scan(self) -> ReadPlan | None:
        if self.blocked or not self._parked:
            return None
        self._is_scans_turn = True
        return self._scan_for([consumer for consumer in self.consumers if consumer.can_take()])

    def _scan_for(self, able: list[ConsumerState]) -> ReadPlan | None:
        """Plan a scan if one of `able` wants it; an active scan is finished first."""
        wanting = [consumer for consumer in able if self._wants_scan(consumer)]
        if not wanting:
            return None
        position = self._parked.position
        if position is None:
            position = self._parked.begin_scan(wanting)
        return self._plan(self._max_read_batch_entries, None, position)

    def _wants_scan(self, consumer: ConsumerState) -> bool:
        """Return whether a parked hash of `consumer` starts before all entries listed for it."""
        first = self._parked.first_for(consumer)
        if first is None or self._is_beyond_limit(consumer, *first):
            return False
        ready = self._replay.first_ready(consumer)
        return ready is None or first < ready

    def scanned(self, plan: ReadPlan, up_to: Position, *, is_at_end: bool) -> None:
        parked = self._parked
        if self.is_void(plan) or parked.position is None:
            return  # The scan was discarded.
        parked.advance_scan(max(up_to, parked.position))
        if is_at_end:
            parked.finish_scan()

    def give_back(self, plan: ReadPlan) -> None:
        if self.is_void(plan) or plan.replay is None:
            return
        for position in plan.replay:
            if not self._pending.holds(*position):
                sticky_hash = self._hashes_in_plan[position]
                if not self._parked.covers(sticky_hash, position):
                    self._replay.add(position.ledger_id, (position.entry_id,), (sticky_hash,))

    def put_back(self, plan: ReadPlan, key_hashes: Sequence[int]) -> None:
        if plan.replay is not None and not self.is_void(plan):
            sticky_hashes = self.owners.selector.sticky_hashes(key_hashes)
            self._hashes_in_plan.update(zip(plan.replay, sticky_hashes, strict=True))
            self._held_back.update(sticky_hashes)
            self.give_back(plan)

    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        if self.is_void(plan):
            return []
        last_entry_id = run.entry_ids[-1]
        if self._pending.overlaps(run.ledger_id, run.entry_ids):
            run = self._without_pending(run)
        if self._replay and plan.scan is None:
            self._replay.discard(run.ledger_id, run.entry_ids)
        assert run.key_hashes is not None, "entries of a Key_Shared subscription without the hashes of their keys"
        sticky_hashes = self.owners.selector.sticky_hashes(run.key_hashes)
        if plan.scan is not None:
            run, sticky_hashes = self._scanned_rows(run, sticky_hashes)
        unacked_counts = run.unacked_counts()
        # Entries of a replay plan are the first of their hashes; entries from the cursor follow all waiting ones.
        waiting: Container[int] = self._replay.waiting if plan.replay is None else ()
        if self._parked and plan.replay is None and plan.scan is None:
            waiting = _Either(waiting, self._parked.hashes)
        chosen, kept = self._choose(run, sticky_hashes, unacked_counts, waiting)
        deliveries = []
        kept_hashes = self._kept.by_hash
        for consumer, indexes in chosen.items():
            if len(indexes) == len(sticky_hashes):
                part, counts, hashes = run, unacked_counts, sticky_hashes
            else:
                part = run.rows(indexes)
                counts = [unacked_counts[index] for index in indexes]
                hashes = [sticky_hashes[index] for index in indexes]
            deliveries.append(self._deliver(consumer, part, counts, hashes))
            if kept_hashes:
                for sticky_hash, unacked_count in zip(hashes, counts, strict=True):
                    if sticky_hash in kept_hashes:
                        self.draining.delivered(consumer, sticky_hash, unacked_count)
        if kept:
            self._keep(plan, run.ledger_id, [(run.entry_ids[index], sticky_hashes[index]) for index in kept])
        if plan.scan is not None and self._parked.position is not None:
            self._parked.advance_scan(Position(run.ledger_id, last_entry_id + 1))
        if kept_hashes:
            self._release_finished()
        return deliveries

    def _scanned_rows(self, run: AssignInput, sticky_hashes: list[int]) -> tuple[AssignInput, list[int]]:
        """Return the entries for which the scan was made, with their hashes. Other entries already wait or are already
        planned.
        """
        found = [
            index
            for index, sticky_hash in enumerate(sticky_hashes)
            if self._parked.is_scanned(sticky_hash)
            and self._parked.covers(sticky_hash, Position(run.ledger_id, run.entry_ids[index]))
        ]
        if len(found) == len(sticky_hashes):
            return run, sticky_hashes
        return run.rows(found), [sticky_hashes[index] for index in found]

    def look_ahead(self, max_hashes: int) -> LookAhead:
        replay, parked = self._replay, self._parked
        most = nlargest(max_hashes, replay.waiting.items(), key=lambda each: each[1].count)
        return LookAhead(
            len(replay),
            len(parked),
            self.look_ahead_size_bytes,
            self._look_ahead_bytes,
            parked.position,
            self.is_full(),
            [
                WaitingOfHash(
                    sticky_hash,
                    waiting.filler,
                    waiting.consumer is None,
                    waiting.count,
                    waiting.since_ms,
                    parked.from_position(sticky_hash) if sticky_hash in parked else None,
                )
                for sticky_hash, waiting in most
            ],
        )

    def _keep(self, plan: ReadPlan, ledger_id: int, entries: Sequence[tuple[int, int]]) -> None:
        """Keep these (entry id, sticky hash) pairs as waiting entries. Park the hashes for which the memory limit
        leaves no capacity.
        """
        self._replay.now_ms = self.now_ms
        bound = self._look_ahead_bytes
        free = bound - self.look_ahead_size_bytes
        most = len(entries) * (ENTRY_BYTES + HASH_BYTES + 2 * PART_BYTES)
        if not bound or plan.replay is not None or (free > bound // 2 + most and not self._parked):
            self._replay.add(ledger_id, [each[0] for each in entries], [each[1] for each in entries])
            return
        parked = self._parked
        unlisted: dict[int, Position] = {}
        for entry_id, sticky_hash in entries:
            position = Position(ledger_id, entry_id)
            if plan.scan is not None:
                if not parked.is_scanned(sticky_hash):
                    continue  # The scan of this hash ended at an earlier entry.
            elif parked.covers(sticky_hash, position):
                continue
            if self._has_room(sticky_hash):
                self._replay.add(ledger_id, (entry_id,), (sticky_hash,))
            elif plan.scan is not None:
                parked.leave_scan(sticky_hash, position)
            else:
                parked.add(sticky_hash, position)
                unlisted[sticky_hash] = position
        # A delayed entry can precede listed entries of its hash, and is delivered after them nevertheless.
        self._replay.unlist(unlisted)

    def _has_room(self, sticky_hash: int) -> bool:
        free = self._look_ahead_bytes - self.look_ahead_size_bytes
        return self._replay.bytes_of(self._replay.filler_of(sticky_hash)) < free

    def _choose(
        self,
        run: AssignInput,
        sticky_hashes: list[int],
        unacked_counts: list[int],
        waiting: Container[int],
    ) -> tuple[dict[ConsumerState, list[int]], list[int]]:
        """Return the indexes of the entries for each consumer, and of the entries that must wait.

        All entries of hashes in `waiting` wait.
        """
        owner = self.owners.selector.owner
        draining = self.draining or None
        held_back = self._held_back
        if draining is None and not (
            held_back or self._replay or self._parked or self._kept.by_hash or self._limits or run.chunks
        ):
            usual = self._all_to_owners(sticky_hashes, unacked_counts)
            if usual is not None:
                return usual, []
        chosen: dict[ConsumerState, list[int]] = {}
        budgets: dict[ConsumerState, int] = {}
        kept: list[int] = []
        chunks = run.chunks if self.owners.allows_out_of_order_delivery else None
        chosen_before: dict[bytes, ConsumerState] = {}  # by message uuid, for messages with chunks in this run
        kept_hashes = self._kept.by_hash
        left = _NO_LIMIT
        if self._max_unacked_messages:
            left = 0 if self.blocked else self._max_unacked_messages - self.unacked_messages
        for index, sticky_hash in enumerate(sticky_hashes):
            keeper = kept_hashes.get(sticky_hash) if kept_hashes else None
            consumer = keeper or owner(sticky_hash)
            chunk = None if chunks is None else chunks[index]
            if chunk is not None:
                holder = chosen_before.get(chunk.uuid) or self._chunked.holder(chunk.uuid)
                if holder is not None and holder is not consumer:
                    self._kept.keep(holder, sticky_hash)
                    self._replace_all()
                    keeper = consumer = holder
            if consumer is not None and (
                keeper is not None or draining is None or not draining.blocks(consumer, sticky_hash)
            ):
                budget = budgets.get(consumer)
                if budget is None:
                    budget = self._message_budget(consumer) if consumer.can_take() else 0
                    chosen[consumer] = []
                if self._limits and self._is_beyond_limit(consumer, run.ledger_id, run.entry_ids[index]):
                    budget = 0  # Also for all later rows, which have higher positions.
                budgets[consumer] = budget
                if budget > 0 and left > 0 and sticky_hash not in held_back and sticky_hash not in waiting:
                    budgets[consumer] = budget - unacked_counts[index]
                    left -= unacked_counts[index]
                    chosen[consumer].append(index)
                    if chunk is not None:
                        chosen_before[chunk.uuid] = consumer
                    continue
            kept.append(index)
            held_back.add(sticky_hash)
        return {consumer: indexes for consumer, indexes in chosen.items() if indexes}, kept

    def _all_to_owners(
        self, sticky_hashes: list[int], unacked_counts: list[int]
    ) -> dict[ConsumerState, list[int]] | None:
        """Return the indexes of the entries by the owner of their hashes; None if an owner cannot take all its entries."""
        if self.blocked or 0 < self._max_unacked_messages <= self.unacked_messages + sum(unacked_counts):
            return None
        chosen: defaultdict[ConsumerState, list[int]] = defaultdict(list)
        for index, consumer in enumerate(map(self.owners.selector.owner, sticky_hashes)):
            if consumer is None:
                return None
            chosen[consumer].append(index)
        for consumer, indexes in chosen.items():
            message_count = sum([unacked_counts[index] for index in indexes])
            if not consumer.can_take() or message_count > self._message_budget(consumer):
                return None
        return chosen

    def _next_replay(self, able: list[ConsumerState]) -> list[Position]:
        """Return the first ready entries, ascending. Each call starts with a different consumer."""
        self._turn = (self._turn + 1) % len(able)
        left = self._max_read_batch_entries
        for consumer in able[self._turn :] + able[: self._turn]:
            if not left:
                break
            wanted = min(left, consumer.affordable_entries())
            taken = self._replay.take(consumer, wanted, self._limits.get(consumer))
            left -= len(taken)
            self._hashes_in_plan.update(taken)
        return sorted(self._hashes_in_plan)

    def redeliver(self, consumer: ConsumerState, positions: Sequence[Position] | None) -> Redelivery:
        if positions is not None and self._chunked and self.owners.allows_out_of_order_delivery:
            # Chunks that cannot return to this consumer go to another one, together with all other chunks of their
            # message.
            others = self._chunked.other_chunks(
                consumer, positions, lambda each: self._kept.is_elsewhere(consumer, each)
            )
            positions = [*positions, *others]
        redelivery = super().redeliver(consumer, positions)
        if self._chunked and self._kept.keep_unfinished(consumer):
            self._replace_all()
        return redelivery

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def acked(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        was_full = self.is_full()
        can_move = super().acked(ledger_id, entry_ids)
        return can_move or (was_full and not self.is_full() and self._can_move())

    def acked_up_to(self, position: Position) -> bool:
        was_full = self.is_full()
        can_move = super().acked_up_to(position)
        return can_move or (was_full and not self.is_full() and self._can_move())

    def check_invariants(self) -> None:
        super().check_invariants()
        self._replay.check_invariants()
        self._parked.check_invariants()
        for position, sticky_hash in self._replay:
            assert not self._parked.covers(sticky_hash, position), "an entry is both in the replay set and parked"
        holders: dict[int, dict[ConsumerState, int]] = {}
        messages: dict[int, int] = {}
        for _, _, consumer, message_count, sticky_hash in self._pending:
            messages[sticky_hash] = messages.get(sticky_hash, 0) + max(1, message_count)
            counts = holders.setdefault(sticky_hash, {})
            counts[consumer] = counts.get(consumer, 0) + 1
        assert not self.draining.freed
        for sticky_hash, draining in self.draining:
            held = holders[sticky_hash][draining.consumer]
            assert held == draining.unacked_entries, "a draining hash has a wrong count of entries"
            assert len(holders[sticky_hash]) > 1 or messages[sticky_hash] == draining.unacked_messages
        if self.owners.allows_out_of_order_delivery:
            return
        listed = {sticky_hash for sticky_hash, _ in self.draining}
        for sticky_hash, counts in holders.items():
            assert len(counts) == 1, "a hash is unacknowledged at two consumers"
            (holder,) = counts
            assert holder is self.owners.selector.owner(sticky_hash) or sticky_hash in listed, (
                "a hash with another owner is not in the draining hashes"
            )

    # --- consumers of entries ----------------------------------------------------------------------------------------

    def _place(self, sticky_hash: int) -> ConsumerState | None:
        keeper = self._kept.by_hash.get(sticky_hash)
        if keeper is not None:
            return keeper
        owner = self.owners.selector.owner(sticky_hash)
        return None if owner is None or self.draining.is_held_by_other(owner, sticky_hash) else owner

    def _drain(self, loser: ConsumerState) -> None:
        unacked_messages = self._pending.hash_messages(loser)
        for sticky_hash, unacked_entries in self._pending.hash_counts(loser).items():
            if self.owners.selector.owner(sticky_hash) is not loser:
                self.draining.drain(loser, sticky_hash, unacked_entries, unacked_messages[sticky_hash], self.now_ms)

    def _replace_all(self) -> None:
        self._replay.replace_all()
        self._parked.replace_all()

    def _add_to_replay(self, ledger_id: int, entry_ids: Sequence[int], sticky_hashes: Sequence[int]) -> None:
        self._held_back.update(sticky_hashes)
        if self._parked:  # The scan finds the entries that it covers.
            rows = [
                (entry_id, sticky_hash)
                for entry_id, sticky_hash in zip(entry_ids, sticky_hashes, strict=True)
                if not self._parked.covers(sticky_hash, Position(ledger_id, entry_id))
            ]
            entry_ids, sticky_hashes = [each[0] for each in rows], [each[1] for each in rows]
        self._replay.add(ledger_id, entry_ids, sticky_hashes)

    def _release_finished(self) -> None:
        if self._kept.release_finished() and (self._replay or self._parked):
            self._replace_all()
            self.has_unblocked = True

    def _released(self, unblocked: bool) -> bool:
        """Return False, because the caller dispatches a little later, once for many hashes."""
        if self._kept.by_hash:
            self._release_finished()
        if self.draining.freed:
            for sticky_hash in self.draining.take_freed():
                is_unparked = self._replay.unpark(sticky_hash)
                if self._parked.place_again(sticky_hash) or is_unparked:
                    self.has_unblocked = True
        return super()._released(unblocked)

    def is_full(self) -> bool:
        return bool(self._replay) and len(self._replay) >= self._settings.look_ahead_entries(len(self.consumers))

    def _is_beyond_limit(self, consumer: ConsumerState, ledger_id: int, entry_id: int) -> bool:
        limit = self._limits.get(consumer)
        return limit is not None and (ledger_id, entry_id) >= limit

    def _forget_deliveries(self) -> None:
        self.draining.clear()
        self.has_unblocked = False
        self._limits.clear()
        self._kept.clear()
        self._parked.clear()
        self._is_scans_turn = False
        super()._forget_deliveries()
