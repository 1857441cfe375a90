"""Shared: round robin by priority and permits, limits of unacknowledged messages, redelivery."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import LEDGER, Feed, consumer, got, positions, run_of, shared

from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.model.position import Position


def test_a_batch_is_sent_whole_while_there_is_a_permit_and_takes_the_permits_below_zero() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    feed = Feed(dispatcher, 10, messages_each=10)
    assert dispatcher.flow(c, 5)
    assert feed.pump() == [("c", [0])]
    assert c.permits == -5
    assert dispatcher.flow(c, 6)
    assert feed.pump() == [("c", [1])]
    assert not dispatcher.flow(c, 1)
    assert feed.pump() == []
    assert dispatcher.flow(c, 20)
    assert [entry for _, entries in feed.pump() for entry in entries] == [2, 3]
    assert c.permits == -8


def test_consumers_of_a_level_take_turns_of_twenty_entries() -> None:
    dispatcher = shared()
    for name in ("a", "b"):
        c = consumer(name)
        dispatcher.add_consumer(c)
        dispatcher.flow(c, 1000)
    turns = Feed(dispatcher, 90).pump()
    assert [(name, len(entries)) for name, entries in turns] == [("a", 20), ("b", 20), ("a", 20), ("b", 20), ("a", 10)]
    assert [entry for _, entries in turns for entry in entries] == list(range(90))


def test_single_entries_go_round_and_a_leaver_does_not_change_whose_turn_it_is() -> None:
    dispatcher = shared()
    consumers = [consumer(name) for name in "abc"]
    for c in consumers:
        dispatcher.add_consumer(c)
        dispatcher.flow(c, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    assert [got(dispatcher.assign(plan, run_of([n])))[0][0] for n in range(4)] == ["a", "b", "c", "a"]
    dispatcher.remove_consumer(consumers[0])
    assert [got(dispatcher.assign(plan, run_of([n])))[0][0] for n in range(4, 7)] == ["b", "c", "b"]
    dispatcher.check_invariants()


def test_the_next_level_is_served_only_while_the_better_one_cannot_take_anything() -> None:
    dispatcher = shared()
    low = consumer("low", priority_level=1)
    high = consumer("high", priority_level=0, max_unacked_messages=4)
    dispatcher.add_consumer(low)
    dispatcher.add_consumer(high)
    for c in (low, high):
        dispatcher.flow(c, 3)
    feed = Feed(dispatcher, 100)
    assert feed.pump() == [("high", [0, 1, 2]), ("low", [3, 4, 5])]
    dispatcher.flow(low, 10)
    dispatcher.flow(high, 10)
    high.writable = False
    assert feed.pump()[0] == ("low", list(range(6, 16)))
    high.writable = True
    dispatcher.flow(low, 2)
    assert feed.pump() == [("high", [16]), ("low", [17, 18])]  # high is at its limit of 4
    assert high.blocked


def test_without_a_consumer_that_can_take_anything_nothing_is_read() -> None:
    dispatcher = shared()
    assert dispatcher.next_read() is None
    c = consumer()
    dispatcher.add_consumer(c)
    assert dispatcher.next_read() is None
    dispatcher.flow(c, 1)
    c.writable = False
    assert dispatcher.next_read() is None
    assert not dispatcher.flow(c, 1)
    c.writable = True
    assert dispatcher.next_read() is not None
    assert not dispatcher.flow(c, 0)


def test_a_read_is_as_large_as_the_permits_will_pay_for() -> None:
    dispatcher = shared(max_read_batch_entries=50)
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 30)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.max_entries == 30
    dispatcher.assign(plan, run_of(range(3), messages_each=10))
    assert c.messages_per_entry == 10
    dispatcher.flow(c, 25)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.max_entries == 3
    dispatcher.flow(c, 100_000)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.max_entries == 50


def test_what_found_no_taker_comes_before_new_reads_in_position_order() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 100)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay is None
    c.permits = 2  # batches took the other permits meanwhile
    assert got(dispatcher.assign(plan, run_of(range(5)))) == [("c", [0, 1])]
    assert dispatcher.replay_entry_count == 3
    dispatcher.flow(c, 2)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(2, 3)
    assert dispatcher.assign(plan, run_of([2, 3]))[0].redelivery_counts is None
    dispatcher.check_invariants()


def test_a_plan_given_back_is_asked_for_again_without_what_was_delivered() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 100)
    feed = Feed(dispatcher, 6)
    feed.pump()
    dispatcher.redeliver(c, positions(1, 2, 3))
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(1, 2, 3)
    dispatcher.assign(plan, run_of([1]))
    dispatcher.give_back(plan)
    dispatcher.check_invariants()
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(2, 3)


def test_an_entry_read_twice_is_not_sent_to_a_second_consumer() -> None:
    dispatcher = shared()
    a, b = consumer("a"), consumer("b")
    dispatcher.add_consumer(a)
    dispatcher.add_consumer(b)
    dispatcher.flow(a, 2)
    dispatcher.flow(b, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    assert got(dispatcher.assign(plan, run_of([0, 1]))) == [("a", [0, 1])]
    assert got(dispatcher.assign(plan, run_of([1, 2]))) == [("b", [2])]
    assert dispatcher.assign(plan, run_of([0, 1, 2])) == []
    dispatcher.check_invariants()


def test_nacked_entries_come_again_with_a_higher_count_and_only_from_their_holder() -> None:
    dispatcher = shared()
    a, b = consumer("a"), consumer("b")
    dispatcher.add_consumer(a)
    dispatcher.add_consumer(b)
    dispatcher.flow(a, 3)
    feed = Feed(dispatcher, 3)
    feed.pump()
    dispatcher.redeliver(b, positions(0, 1))
    dispatcher.redeliver(b, None)
    assert dispatcher.replay_entry_count == 0
    dispatcher.acked(LEDGER, [1])
    dispatcher.flow(b, 10)
    assert dispatcher.redeliver(a, positions(0, 1, 7, 1 << 63)).wake
    assert a.permits == 0
    assert a.redelivered_messages == 1
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(0)
    delivery = dispatcher.assign(plan, run_of([0]))[0]
    assert delivery.consumer is b
    assert delivery.redelivery_counts == [1]
    assert (a.unacked_messages, b.unacked_messages, dispatcher.unacked_messages) == (1, 1, 2)
    dispatcher.check_invariants()


def test_a_leavers_entries_go_to_the_others_at_once() -> None:
    dispatcher = shared()
    a, b = consumer("a"), consumer("b")
    for c in (a, b):
        dispatcher.add_consumer(c)
        dispatcher.flow(c, 2)
    feed = Feed(dispatcher, 4)
    assert feed.pump() == [("a", [0, 1]), ("b", [2, 3])]
    dispatcher.acked(LEDGER, [0])
    dispatcher.flow(b, 5)
    redelivery = dispatcher.remove_consumer(a)
    assert redelivery.wake
    assert not redelivery.rewind
    assert feed.pump() == [("b", [1])]
    assert dispatcher.redelivery_counts.column(LEDGER, [1]) == [1]
    dispatcher.check_invariants()


def test_when_the_last_consumer_leaves_the_cursor_rewinds_and_the_counts_stay() -> None:
    counts = RedeliveryCounts()
    dispatcher = shared(counts=counts)
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 3)
    Feed(dispatcher, 3).pump()
    plan = None
    dispatcher.flow(c, 1)
    plan = dispatcher.next_read()
    assert plan is not None
    assert not dispatcher.is_void(plan)
    redelivery = dispatcher.remove_consumer(c)
    assert redelivery.rewind
    assert not redelivery.wake
    assert dispatcher.is_void(plan)
    assert dispatcher.assign(plan, run_of([3])) == []
    dispatcher.give_back(plan)
    assert dispatcher.unacked_messages == 0
    assert dispatcher.replay_entry_count == 0
    other = shared(counts=counts)
    d = consumer("d")
    other.add_consumer(d)
    other.flow(d, 10)
    assert other.is_void(plan), "a read for the former dispatcher is none for the next one"
    plan = other.next_read()
    assert plan is not None
    assert other.assign(plan, run_of(range(4)))[0].redelivery_counts == [1, 1, 1, 0]


def test_an_entry_acknowledged_while_it_waits_to_be_sent_again_does_not_come() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 5)
    Feed(dispatcher, 5).pump()
    dispatcher.redeliver(c, None)
    dispatcher.acked(LEDGER, [0, 3, -1, 1 << 63])
    dispatcher.acked(LEDGER + 1, [1])
    dispatcher.acked_up_to(Position(LEDGER, 1))
    dispatcher.flow(c, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(2, 4)
    assert dispatcher.redelivery_counts.column(LEDGER, [0, 1, 2, 3, 4]) == [0, 0, 1, 0, 1]


def test_a_consumer_at_its_limit_gets_nothing_until_half_of_it_is_acknowledged() -> None:
    dispatcher = shared()
    c = consumer(max_unacked_messages=10)
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 1000)
    feed = Feed(dispatcher, 100)
    assert feed.pump() == [("c", list(range(10)))]
    assert c.blocked
    assert not dispatcher.acked(LEDGER, range(4))
    assert feed.pump() == []
    assert dispatcher.acked(LEDGER, [4])
    assert not c.blocked
    assert feed.pump() == [("c", list(range(10, 15)))]
    dispatcher.check_invariants()


def test_a_consumer_at_its_limit_gets_again_what_it_gave_back() -> None:
    dispatcher = shared()
    c = consumer(max_unacked_messages=10)
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 1000)
    feed = Feed(dispatcher, 100)
    feed.pump()
    assert not dispatcher.redeliver(c, positions(55)).wake
    assert c.blocked
    assert dispatcher.redeliver(c, positions(3)).wake
    assert feed.pump() == [("c", [3])]
    assert c.blocked


@pytest.mark.parametrize("limit", [1, 2, 7, 10])
def test_a_subscription_at_its_limit_goes_on_at_half(limit: int) -> None:
    dispatcher = shared(max_unacked_messages=limit)
    a, b = consumer("a"), consumer("b")
    for c in (a, b):
        dispatcher.add_consumer(c)
        dispatcher.flow(c, 1000)
    feed = Feed(dispatcher, 100)
    feed.pump()
    assert dispatcher.unacked_messages == limit
    assert dispatcher.blocked
    assert dispatcher.next_read() is None
    assert not dispatcher.flow(a, 1)
    entry_id = 0
    while not dispatcher.acked(LEDGER, [entry_id]):
        entry_id += 1
    assert dispatcher.unacked_messages == limit // 2
    assert not dispatcher.blocked
    assert feed.pump() != []
    dispatcher.check_invariants()


def test_a_limit_stops_behind_the_batch_that_reaches_it() -> None:
    dispatcher = shared()
    c = consumer(max_unacked_messages=15)
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 1000)
    assert Feed(dispatcher, 10, messages_each=10).pump() == [("c", [0, 1])]
    assert c.unacked_messages == 20
    assert dispatcher.acked_partly(LEDGER, 0, 3) is False
    assert dispatcher.acked_partly(LEDGER, 0, 8) is False  # the count is never raised
    assert c.unacked_messages == 13
    assert dispatcher.acked_partly(LEDGER, 1, 4)
    assert c.unacked_messages == 7
    assert not dispatcher.acked_partly(LEDGER, 99, 1)
    assert not dispatcher.acked_partly(LEDGER + 1, 0, 1)
    dispatcher.check_invariants()


def test_only_the_messages_left_of_a_batch_cost_permits_and_count_as_unacknowledged() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 20)
    plan = dispatcher.next_read()
    assert plan is not None
    (delivery,) = dispatcher.assign(plan, run_of([0, 1], messages_each=10, ack_sets=[[0b111], None]))
    assert delivery.message_count == 13
    assert delivery.message_counts == [10, 10]
    assert delivery.ack_sets == [[0b111], None]
    assert c.permits == 7
    assert c.unacked_messages == 13
    dispatcher.acked(LEDGER, [0])
    assert c.unacked_messages == 10


def test_columns_are_cut_with_the_entries() -> None:
    dispatcher = shared(max_round_robin_entries=2)
    a, b = consumer("a"), consumer("b")
    for c in (a, b):
        dispatcher.add_consumer(c)
        dispatcher.flow(c, 100)
    dispatcher.redelivery_counts.increase(LEDGER, [2])
    plan = dispatcher.next_read()
    assert plan is not None
    first, second = dispatcher.assign(plan, run_of([0, 1, 2], 3, [None, [1], [2]]))
    assert (first.payloads, first.ack_sets, first.redelivery_counts) == ([b"0", b"1"], [None, [1]], None)
    assert (second.payloads, second.ack_sets, second.redelivery_counts) == ([b"2"], [[2]], [1])
    assert second.message_counts == [3]


def test_a_run_for_one_consumer_is_passed_on_without_copies() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 100)
    plan = dispatcher.next_read()
    assert plan is not None
    run = run_of(range(20))
    (delivery,) = dispatcher.assign(plan, run)
    assert delivery.payloads is run.payloads
    assert delivery.entry_ids is run.entry_ids
    assert delivery.message_counts is run.message_counts


def test_everything_up_to_a_position_is_released() -> None:
    dispatcher = shared(max_unacked_messages=6)
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 100)
    Feed(dispatcher, 6).pump()
    assert dispatcher.blocked
    assert dispatcher.acked_up_to(Position(LEDGER, 3))
    assert c.unacked_messages == 2
    dispatcher.acked_up_to(Position(LEDGER + 1, -1))
    assert c.unacked_messages == 0
    dispatcher.check_invariants()


def test_a_reset_forgets_deliveries_and_counts_and_keeps_consumers() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 10)
    Feed(dispatcher, 4).pump()
    dispatcher.redeliver(c, positions(1))
    plan = dispatcher.next_read()
    assert plan is not None
    dispatcher.reset()
    assert dispatcher.is_void(plan)
    assert dispatcher.unacked_messages == 0
    assert not dispatcher.redelivery_counts
    assert c.permits == 6
    assert dispatcher.consumers == [c]
    dispatcher.check_invariants()


def test_what_consumers_hold_can_be_listed() -> None:
    dispatcher = shared()
    c = consumer()
    dispatcher.add_consumer(c)
    dispatcher.flow(c, 10)
    Feed(dispatcher, 2, messages_each=3).pump()
    assert list(dispatcher.pending) == [(LEDGER, 0, c, 3, 0), (LEDGER, 1, c, 3, 0)]
    assert len(dispatcher.pending) == 2
    assert dispatcher.kind == "Shared"
    assert dispatcher.active_consumer is None
