"""The dispatcher model finds bugs: each one planted here makes the random walks fail."""

from __future__ import annotations

import pytest
from tests.fuzz.dispatch_model import TURN
from tests.fuzz.dispatch_walks import walk_many
from tests.fuzz.test_dispatch_model import STEPS, begin
from tests.support.planting import Plant, found_by_walk

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, ReadPlan, Redelivery
from pybroker.dispatch.failover import FailoverDispatcher
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.priority_levels import PriorityLevels
from pybroker.dispatch.redelivery_queue import RedeliveryCounts, ReplaySet
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import SingleActiveDispatcher


def no_leftovers(patch: pytest.MonkeyPatch) -> None:
    assign = SharedDispatcher.assign

    def drop_the_rest(self: SharedDispatcher, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        deliveries = assign(self, plan, run)
        self._replay.discard(run.ledger_id, run.entry_ids)
        return deliveries

    patch.setattr(SharedDispatcher, "assign", drop_the_rest)


def leavers_keep_their_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "_take_back_all", lambda self, consumer: None)


def nacks_take_from_anybody(patch: pytest.MonkeyPatch) -> None:
    take_back = PendingAcks.take_back

    def take_from_holder(
        self: PendingAcks, consumer: ConsumerState, ledger_id: int, entry_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        for holder in {state.name: state for _, _, state, _, _ in self}.values():
            consumer = holder
        return take_back(self, consumer, ledger_id, entry_ids)

    patch.setattr(PendingAcks, "take_back", take_from_holder)


def acknowledged_entries_stay_in_replay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplaySet, "discard", lambda self, ledger_id, entry_ids: None)


def a_cumulative_ack_leaves_the_replay_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplaySet, "discard_up_to", lambda self, position: None)


def entries_cost_one_permit_each(patch: pytest.MonkeyPatch) -> None:
    spend = ConsumerState.spend
    patch.setattr(ConsumerState, "spend", lambda self, messages, entries: spend(self, entries, entries))


def the_limit_is_never_lifted(patch: pytest.MonkeyPatch) -> None:
    def release(self: ConsumerState, message_count: int) -> bool:
        self.unacked_messages -= message_count
        return False

    patch.setattr(ConsumerState, "release", release)


def the_limit_is_lifted_at_once(patch: pytest.MonkeyPatch) -> None:
    def release(self: ConsumerState, message_count: int) -> bool:
        self.unacked_messages -= message_count
        was_blocked, self.blocked = self.blocked, False
        return was_blocked

    patch.setattr(ConsumerState, "release", release)


def limits_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "_end_of_turn", lambda self, consumer, counts, start, end: min(end, start + TURN))


def full_connections_are_written_to(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerState, "can_take", lambda self: self.permits > 0 and not self.blocked)


def the_worst_level_comes_first(patch: pytest.MonkeyPatch) -> None:
    take_turn = PriorityLevels.take_turn

    def reversed_turn(self: PriorityLevels) -> ConsumerState | None:
        self._levels.reverse()
        consumer = take_turn(self)
        self._levels.reverse()
        return consumer

    patch.setattr(PriorityLevels, "take_turn", reversed_turn)


def redeliveries_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedeliveryCounts, "increase", lambda self, ledger_id, entry_ids: None)


def a_read_under_way_survives_a_rewind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SingleActiveDispatcher, "_void_reads", lambda self: None)


def acknowledgements_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    released = SharedDispatcher._released

    def silent(self: SharedDispatcher, unblocked: bool) -> bool:
        released(self, unblocked)
        return False

    patch.setattr(SharedDispatcher, "_released", silent)


def failed_reads_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "give_back", lambda self, plan: None)


def a_new_active_consumer_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FailoverDispatcher, "next_read", SingleActiveDispatcher.next_read)


def a_new_active_consumer_goes_on_where_the_old_one_stopped(patch: pytest.MonkeyPatch) -> None:
    start = FailoverDispatcher.start

    def go_on(self: FailoverDispatcher) -> Redelivery:
        redelivery = start(self)
        redelivery.rewind = False
        return redelivery

    patch.setattr(FailoverDispatcher, "start", go_on)


def consumers_that_stand_by_are_told_nothing(patch: pytest.MonkeyPatch) -> None:
    start = FailoverDispatcher.start

    def tell_one(self: FailoverDispatcher) -> Redelivery:
        redelivery = start(self)
        redelivery.notices = [notice for notice in redelivery.notices if notice[1]]
        return redelivery

    patch.setattr(FailoverDispatcher, "start", tell_one)


def the_first_that_came_is_active(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FailoverDispatcher, "_elect", lambda self: self.consumers[0] if self.consumers else None)


def every_change_starts_the_delay_again(patch: pytest.MonkeyPatch) -> None:
    elect_again = FailoverDispatcher._elect_again

    def begin_again(self: FailoverDispatcher) -> Redelivery:
        redelivery = elect_again(self)
        redelivery.start_later = self._is_starting
        return redelivery

    patch.setattr(FailoverDispatcher, "_elect_again", begin_again)


BUGS = [
    a_new_active_consumer_does_not_wait,
    a_new_active_consumer_goes_on_where_the_old_one_stopped,
    consumers_that_stand_by_are_told_nothing,
    the_first_that_came_is_active,
    every_change_starts_the_delay_again,
    no_leftovers,
    leavers_keep_their_entries,
    nacks_take_from_anybody,
    acknowledged_entries_stay_in_replay,
    a_cumulative_ack_leaves_the_replay_alone,
    entries_cost_one_permit_each,
    the_limit_is_never_lifted,
    the_limit_is_lifted_at_once,
    limits_are_not_looked_at,
    full_connections_are_written_to,
    the_worst_level_comes_first,
    redeliveries_are_not_counted,
    a_read_under_way_survives_a_rewind,
    acknowledgements_wake_nobody,
    failed_reads_are_forgotten,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_walks_find_a_planted_bug(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many(begin, STEPS, 1, 300, 100)
