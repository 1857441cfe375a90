"""The Key_Shared model finds bugs: each one planted here makes the random walks fail."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tests.fuzz.dispatch_walks import walk_many
from tests.fuzz.test_key_shared_model import STEPS, begin
from tests.support.planting import Plant, found_by_walk

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.key_shared.hash_owners import HashOwners
from pybroker.dispatch.key_shared.keyed_redelivery import KeyedReplay
from pybroker.dispatch.key_shared_classic import ClassicKeySharedDispatcher
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.redelivery_queue import ReplaySet
from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.model.position import Position


def moved_hashes_do_not_drain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_drain", lambda self, loser: None)


def draining_blocks_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DrainingHashes, "blocks", lambda self, consumer, sticky_hash: False)
    patch.setattr(DrainingHashes, "is_held_by_other", lambda self, consumer, sticky_hash: False)


def a_hash_that_returned_drains_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DrainingHashes, "blocks", DrainingHashes.is_held_by_other)


def a_hash_that_moves_twice_counts_twice(patch: pytest.MonkeyPatch) -> None:
    def drain(
        self: DrainingHashes,
        consumer: ConsumerState,
        sticky_hash: int,
        unacked_entries: int,
        unacked_messages: int | None = None,
        now_ms: int = 0,
    ) -> None:
        _, present, _ = self._by_hash.get(sticky_hash, (consumer, 0, 0))
        self._set(sticky_hash, consumer, present + unacked_entries, now_ms)

    patch.setattr(DrainingHashes, "drain", drain)


def entries_given_back_drain_on(patch: pytest.MonkeyPatch) -> None:
    take_back = PendingAcks.take_back

    def unseen(self: PendingAcks, *args: Any) -> tuple[list[int], list[int]]:
        draining, self._draining = self._draining, None
        try:
            return take_back(self, *args)
        finally:
            self._draining = draining

    patch.setattr(PendingAcks, "take_back", unseen)


def freed_hashes_stay_parked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyedReplay, "unpark", lambda self, sticky_hash: False)


def freed_hashes_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    unpark = KeyedReplay.unpark

    def silent(self: KeyedReplay, sticky_hash: int) -> bool:
        unpark(self, sticky_hash)
        return False

    patch.setattr(KeyedReplay, "unpark", silent)


def new_entries_overtake_those_that_wait(patch: pytest.MonkeyPatch) -> None:
    choose = KeySharedDispatcher._choose

    def blind(self: KeySharedDispatcher, *args: Any) -> Any:
        return choose(self, *args[:3], ())  # type: ignore[call-arg]

    patch.setattr(KeySharedDispatcher, "_choose", blind)


def entries_of_a_plan_overtake_what_came_back(patch: pytest.MonkeyPatch) -> None:
    choose = KeySharedDispatcher._choose

    def forgetful(self: KeySharedDispatcher, *args: Any) -> Any:
        self._held_back.clear()
        return choose(self, *args)

    patch.setattr(KeySharedDispatcher, "_choose", forgetful)


def one_entry_that_finds_no_room_lets_the_next_one_pass(patch: pytest.MonkeyPatch) -> None:
    class Amnesia(set[int]):
        def add(self, element: int) -> None:
            pass

    init = KeySharedDispatcher.__init__

    def begin_forgetful(self: KeySharedDispatcher, *args: Any) -> None:
        init(self, *args)
        self._held_back = Amnesia()

    patch.setattr(KeySharedDispatcher, "__init__", begin_forgetful)


def waiting_entries_stay_with_the_former_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyedReplay, "replace_all", lambda self: None)


def the_last_entries_are_sent_again_first(patch: pytest.MonkeyPatch) -> None:
    def take(self: ReplaySet, max_entries: int, before: Position | None = None) -> list[Position]:
        positions = [Position(ledger_id, e) for ledger_id, entries in self.by_ledger.items() for e in entries]
        positions = sorted(p for p in positions if before is None or p < before)[-max_entries:]
        for ledger_id, entry_id in positions:
            self.discard(ledger_id, (entry_id,))
        return positions

    patch.setattr(ReplaySet, "take", take)


def leavers_keep_their_hashes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StickyRangesSelector, "remove", lambda self, consumer: None)


def refused_ranges_are_kept(patch: pytest.MonkeyPatch) -> None:
    add = StickyRangesSelector.add

    def keep(self: StickyRangesSelector, consumer: ConsumerState) -> list[ConsumerState]:
        before = list(zip(self._ranges, self._owners, strict=True))
        self._set(
            sorted([*before, *((each, consumer) for each in consumer.key_shared.ranges or ())], key=lambda o: o[0])
        )
        kept = list(zip(self._ranges, self._owners, strict=True))
        self._set(before)
        try:
            return add(self, consumer)
        except Exception:
            self._set(kept)
            raise

    patch.setattr(StickyRangesSelector, "add", keep)


def the_look_ahead_has_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "is_full", lambda self: False)


def nothing_is_read_while_anything_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "is_full", lambda self: bool(self._replay))


def a_look_ahead_that_shrinks_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "acked", MultiConsumerDispatcher.acked)
    patch.setattr(KeySharedDispatcher, "acked_up_to", MultiConsumerDispatcher.acked_up_to)


def plans_given_back_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "give_back", lambda self, plan: None)


def acknowledged_entries_stay_parked(patch: pytest.MonkeyPatch) -> None:
    discard = KeyedReplay.discard

    def careless(self: KeyedReplay, ledger_id: int, entry_ids: Collection[int]) -> None:
        hashes = {position.entry_id: h for position, h in self if position.ledger_id == ledger_id}
        discard(self, ledger_id, [e for e in entry_ids if e in hashes and self.waiting[hashes[e]].parked is None])

    patch.setattr(KeyedReplay, "discard", careless)


def limits_of_consumers_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_message_budget", lambda self, consumer: consumer.permits)


def deliveries_fall_out_of_the_log(patch: pytest.MonkeyPatch) -> None:
    add = PendingAcks.add

    def lossy(self: PendingAcks, consumer: ConsumerState, *args: Any) -> int:
        messages = add(self, consumer, *args)
        del self._logs[consumer][:-2]
        return messages

    patch.setattr(PendingAcks, "add", lossy)


def out_of_order_delivery_is_not_allowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HashOwners, "allows_out_of_order_delivery", False)


def classic_newcomers_get_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_is_beyond_limit", lambda self, consumer, ledger_id, entry_id: False)


def classic_newcomers_wait_for_their_own_position_only(patch: pytest.MonkeyPatch) -> None:
    def limit(self: ClassicKeySharedDispatcher) -> None:
        self._limits = dict(self.recently_joined())

    patch.setattr(ClassicKeySharedDispatcher, "_limit_newcomers", limit)


def classic_newcomers_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicKeySharedDispatcher, "mark_delete_moved", lambda self, first_unacked: False)


BUGS = [
    moved_hashes_do_not_drain,
    draining_blocks_nobody,
    a_hash_that_returned_drains_on,
    a_hash_that_moves_twice_counts_twice,
    entries_given_back_drain_on,
    freed_hashes_stay_parked,
    freed_hashes_wake_nobody,
    new_entries_overtake_those_that_wait,
    entries_of_a_plan_overtake_what_came_back,
    one_entry_that_finds_no_room_lets_the_next_one_pass,
    waiting_entries_stay_with_the_former_owner,
    the_last_entries_are_sent_again_first,
    leavers_keep_their_hashes,
    refused_ranges_are_kept,
    the_look_ahead_has_no_limit,
    nothing_is_read_while_anything_waits,
    a_look_ahead_that_shrinks_wakes_nobody,
    plans_given_back_are_forgotten,
    acknowledged_entries_stay_parked,
    limits_of_consumers_are_not_looked_at,
    deliveries_fall_out_of_the_log,
    out_of_order_delivery_is_not_allowed,
    classic_newcomers_get_everything,
    classic_newcomers_wait_for_their_own_position_only,
    classic_newcomers_wait_for_ever,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_walks_find_a_planted_bug(plant: Plant) -> None:
    with found_by_walk(plant, KeyError, StopIteration):
        walk_many(begin, STEPS, 1, 600, 200)
