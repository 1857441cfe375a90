"""Exclusive, and the common behaviour of all types with one active consumer."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import LEDGER, Feed, consumer, exclusive, positions, run_of, sticky_consumer

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.single_active import ExclusiveDispatcher, SingleActiveDispatcher
from pybroker.errors import ConsumerAssignError, ConsumerBusy
from pybroker.model.position import Position


class LatestWins(SingleActiveDispatcher):
    """The newest consumer is active: the simplest type with a change of the active consumer."""

    kind = "LatestWins"

    def _elect(self) -> ConsumerState | None:
        return self.consumers[-1] if self.consumers else None


def test_a_second_consumer_is_refused_and_leaves_nothing_behind() -> None:
    dispatcher = exclusive()
    first = consumer("first")
    dispatcher.add_consumer(first)
    with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected"):
        dispatcher.add_consumer(consumer("second"))
    assert dispatcher.consumers == [first]
    assert dispatcher.active_consumer is first
    dispatcher.check_invariants()


def test_up_to_permits_entries_are_read_and_all_that_was_read_is_sent() -> None:
    dispatcher = exclusive()
    c = consumer()
    dispatcher.add_consumer(c)
    assert dispatcher.flow(c, 5)
    plan = dispatcher.next_read()
    assert plan is not None
    assert (plan.max_entries, plan.replay) == (5, None)
    (delivery,) = dispatcher.assign(plan, run_of(range(4), messages_each=10))
    assert delivery.message_count == 40
    assert c.permits == -35
    assert c.unacked_messages == dispatcher.unacked_messages == 0
    assert dispatcher.next_read() is None
    assert not dispatcher.flow(c, 0)


def test_precise_flow_control_reads_what_the_permits_pay_for_at_the_usual_batch_size() -> None:
    dispatcher = ExclusiveDispatcher(RedeliveryCounts(), 100, 1 << 20, is_flow_precise=True)
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 1)
    plan = dispatcher.next_read()
    assert plan is not None
    dispatcher.assign(plan, run_of(range(1), messages_each=10))
    dispatcher.flow(c, 34)
    plan = dispatcher.next_read()
    assert plan is not None
    assert (c.permits, plan.max_entries) == (25, 3)


def test_a_run_is_passed_on_as_it_was_read() -> None:
    dispatcher = exclusive()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 1000)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.max_entries == 100
    run = run_of(range(100))
    (delivery,) = dispatcher.assign(plan, run)
    assert delivery.payloads is run.payloads
    assert delivery.entry_ids is run.entry_ids
    assert delivery.message_counts is run.message_counts
    assert delivery.redelivery_counts is None
    assert delivery.ack_sets is None


def test_messages_of_a_batch_that_are_acknowledged_cost_no_permits() -> None:
    dispatcher = exclusive()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 100)
    plan = dispatcher.next_read()
    assert plan is not None
    (delivery,) = dispatcher.assign(plan, run_of([0, 1], messages_each=10, ack_sets=[None, [0b11]]))
    assert delivery.message_count == 12
    assert c.permits == 88


def test_nothing_is_read_for_a_full_connection_or_without_permits() -> None:
    dispatcher = exclusive()
    assert dispatcher.next_read() is None
    c = consumer()
    dispatcher.add_consumer(c)
    assert dispatcher.next_read() is None
    dispatcher.flow(c, 1)
    c.writable = False
    assert dispatcher.next_read() is None


@pytest.mark.parametrize("wanted", [None, positions(1)])
def test_redelivery_rewinds_the_cursor_and_counts_nothing(wanted: list[Position] | None) -> None:
    dispatcher = exclusive(max_read_batch_entries=10)
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 3)
    Feed(dispatcher, 10).pump()
    redelivery = dispatcher.redeliver(c, wanted)
    assert redelivery.rewind
    assert not redelivery.wake
    assert c.permits == 0
    dispatcher.flow(c, 5)
    plan = dispatcher.next_read()
    assert plan is not None
    (delivery,) = dispatcher.assign(plan, run_of(range(5)))
    assert delivery.redelivery_counts is None
    assert not dispatcher.redelivery_counts


def test_counts_of_another_type_are_kept_but_not_shown() -> None:
    counts = RedeliveryCounts()
    counts.increase(LEDGER, [0, 1, 2])
    dispatcher = exclusive(counts=counts)
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 5)
    plan = dispatcher.next_read()
    assert plan is not None
    (delivery,) = dispatcher.assign(plan, run_of(range(3)))
    assert delivery.redelivery_counts is None
    dispatcher.acked(LEDGER, [0])
    assert counts.column(LEDGER, range(3)) == [0, 1, 1]
    dispatcher.acked_up_to(Position(LEDGER, 2))
    assert not counts


def test_a_read_under_way_while_the_cursor_rewinds_is_void() -> None:
    dispatcher = exclusive()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    dispatcher.redeliver(c, None)
    assert dispatcher.is_void(plan)
    assert dispatcher.assign(plan, run_of(range(3))) == []
    dispatcher.give_back(plan)
    assert c.permits == 10


def test_when_the_consumer_leaves_everything_unacknowledged_comes_again() -> None:
    dispatcher = exclusive()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 10)
    Feed(dispatcher, 5).pump()
    redelivery = dispatcher.remove_consumer(c)
    assert redelivery.rewind
    assert not redelivery.wake
    assert dispatcher.active_consumer is None
    assert dispatcher.next_read() is None
    d = consumer("d")
    dispatcher.add_consumer(d)
    dispatcher.flow(d, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    assert dispatcher.assign(plan, run_of(range(5)))[0].redelivery_counts is None


def test_a_new_active_consumer_begins_at_the_first_unacknowledged_entry() -> None:
    dispatcher = LatestWins(RedeliveryCounts(), 100, 1 << 20)
    old, new = consumer("old"), consumer("new")
    dispatcher.add_consumer(old)
    dispatcher.flow(old, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    assert dispatcher.add_consumer(new).rewind
    assert dispatcher.is_void(plan)
    assert not dispatcher.flow(old, 10)
    assert not dispatcher.redeliver(old, None).rewind
    assert dispatcher.next_read() is None
    redelivery = dispatcher.remove_consumer(new)
    assert redelivery.rewind
    assert redelivery.wake
    dispatcher.check_invariants()


def test_a_standby_consumer_leaves_without_a_rewind() -> None:
    dispatcher = LatestWins(RedeliveryCounts(), 100, 1 << 20)
    standby, active = consumer("standby"), consumer("active")
    dispatcher.add_consumer(standby)
    dispatcher.add_consumer(active)
    redelivery = dispatcher.remove_consumer(standby)
    assert not redelivery.rewind
    assert dispatcher.active_consumer is active


def test_acknowledgements_and_resets_change_nothing_that_is_not_tracked() -> None:
    dispatcher = exclusive()
    c = consumer()
    dispatcher.add_consumer(c)
    assert not dispatcher.acked(LEDGER, [1])
    assert not dispatcher.acked_partly(LEDGER, 1, 3)
    assert not dispatcher.acked_up_to(Position(LEDGER, 1))
    dispatcher.redelivery_counts.increase(LEDGER, [4])
    dispatcher.reset()
    assert not dispatcher.redelivery_counts
    assert dispatcher.replay_entry_count == 0
    assert dispatcher.kind == "Exclusive"


def test_a_consumer_of_some_hashes_gets_those_and_spends_permits_on_nothing_else() -> None:
    dispatcher = exclusive()
    c = sticky_consumer("c", (0, 99), (200, 299))
    dispatcher.add_consumer(c)
    assert dispatcher.needs_key_hashes
    dispatcher.flow(c, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    run = run_of(range(6))
    run.key_hashes = [0, 99, 100, 250, 300, 65536 + 200]
    (delivery,) = dispatcher.assign(plan, run)
    assert list(delivery.entry_ids) == [0, 1, 3, 5]
    assert c.permits == 6
    run.key_hashes = [150] * 6
    assert dispatcher.assign(plan, run) == []


def test_a_consumer_of_hashes_that_overlap_is_refused_and_leaves_nothing_behind() -> None:
    dispatcher = exclusive()
    with pytest.raises(ConsumerAssignError):
        dispatcher.add_consumer(sticky_consumer("c", (0, 10), (10, 20)))
    assert not dispatcher.consumers
    dispatcher.check_invariants()
