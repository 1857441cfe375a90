"""Key_Shared: assignment, draining, and look-ahead."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import (
    HIGH,
    HIGH_2,
    LEDGER,
    LOW,
    LOW_2,
    Feed,
    consumer,
    got,
    key_shared,
    positions,
    run_of,
    sticky_consumer,
)

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.key_shared.hash_owners import new_selector
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.dispatch.selectors.auto_split import AutoSplitSelector
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.errors import ConsumerAssignError, ConsumerBusy
from pybroker.model.position import Position


def join(dispatcher: KeySharedDispatcher, name: str, permits: int = 1000) -> ConsumerState:
    joining = consumer(name)
    dispatcher.add_consumer(joining)
    dispatcher.flow(joining, permits)
    return joining


def draining(dispatcher: KeySharedDispatcher) -> list[tuple[int, str, int, int]]:
    return [(h, each.consumer.name, each.unacked_entries, each.blocked_attempts) for h, each in dispatcher.draining]


def test_every_key_goes_to_the_owner_of_its_hash() -> None:
    dispatcher = key_shared()
    join(dispatcher, "high")
    join(dispatcher, "low")
    feed = Feed(dispatcher, 6, key_hashes=(LOW, HIGH, HIGH_2))
    assert feed.pump() == [("low", [0, 3]), ("high", [1, 2, 4, 5])]
    assert [h for *_, h in dispatcher.pending] == [LOW, LOW, HIGH, HIGH_2, HIGH, HIGH_2]


def test_all_columns_are_those_of_the_entries() -> None:
    dispatcher = key_shared()
    join(dispatcher, "high")
    join(dispatcher, "low")
    dispatcher.redelivery_counts.increase(LEDGER, [2])
    plan = dispatcher.next_read()
    assert plan is not None
    low, high = dispatcher.assign(plan, run_of([0, 1, 2], 3, [None, [1], [3]], [LOW, HIGH, LOW]))
    assert (low.entry_ids, low.payloads, low.message_counts) == ([0, 2], [b"0", b"2"], [3, 3])
    assert (low.ack_sets, low.redelivery_counts, low.message_count) == ([None, [3]], [0, 1], 5)
    assert (high.entry_ids, high.ack_sets, high.redelivery_counts, high.message_count) == ([1], [[1]], None, 1)


def test_a_run_for_one_consumer_is_passed_on_without_copies() -> None:
    dispatcher = key_shared()
    join(dispatcher, "only")
    plan = dispatcher.next_read()
    assert plan is not None
    run = run_of(range(20), key_hashes=[LOW] * 20)
    (delivery,) = dispatcher.assign(plan, run)
    assert delivery.payloads is run.payloads
    assert delivery.entry_ids is run.entry_ids


def test_a_moved_key_waits_for_its_former_consumer_and_the_other_keys_go_on() -> None:
    dispatcher = key_shared()
    old = join(dispatcher, "old")
    feed = Feed(dispatcher, 2, key_hashes=(LOW,))
    assert feed.pump() == [("old", [0, 1])]
    join(dispatcher, "new")
    assert draining(dispatcher) == [(LOW, "old", 2, 0)]
    feed.entry_count, feed.key_hashes = 6, (LOW, LOW_2)
    assert feed.pump() == [("new", [3, 5])]
    assert draining(dispatcher) == [(LOW, "old", 2, 2)]
    assert not dispatcher.acked(LEDGER, [0])
    assert not dispatcher.has_unblocked
    assert feed.pump() == []
    assert not dispatcher.acked(LEDGER, [1]), "not at once: the caller waits for more to be released"
    assert dispatcher.has_unblocked
    assert feed.pump() == [("new", [2, 4])]
    assert not dispatcher.has_unblocked
    assert (dispatcher.draining.cleared_total, old.draining_hashes_cleared_total) == (1, 1)
    dispatcher.check_invariants()


def test_a_drained_hash_that_nobody_waits_for_wakes_nobody() -> None:
    dispatcher = key_shared()
    join(dispatcher, "old")
    Feed(dispatcher, 1, key_hashes=(LOW,)).pump()
    join(dispatcher, "new")
    dispatcher.acked(LEDGER, [0])
    assert not dispatcher.has_unblocked
    assert dispatcher.draining.cleared_total == 1


def test_a_hash_that_returns_to_its_consumer_goes_on_there() -> None:
    dispatcher = key_shared()
    join(dispatcher, "old")
    feed = Feed(dispatcher, 1, key_hashes=(LOW,))
    feed.pump()
    new = join(dispatcher, "new")
    feed.entry_count = 2
    assert feed.pump() == []
    assert dispatcher.remove_consumer(new).wake
    assert draining(dispatcher) == [(LOW, "old", 1, 1)], "forgotten with the next attempt only"
    assert feed.pump() == [("old", [1])]
    assert draining(dispatcher) == []
    dispatcher.check_invariants()


def test_a_hash_that_moves_on_while_it_drains_still_waits_for_its_first_consumer() -> None:
    dispatcher = key_shared()
    a = join(dispatcher, "a")
    feed = Feed(dispatcher, 1, key_hashes=(LOW,))
    feed.pump()
    join(dispatcher, "b")
    feed.entry_count = 2
    feed.pump()
    join(dispatcher, "c")  # takes the lower half of b's
    assert feed.pump() == []
    dispatcher.remove_consumer(a)
    assert feed.pump() == [("c", [0, 1])]
    assert dispatcher.redelivery_counts.column(LEDGER, [0, 1]) == [1, 0]
    dispatcher.check_invariants()


def test_a_leavers_entries_go_to_the_new_owners_in_order() -> None:
    dispatcher = key_shared()
    join(dispatcher, "high")
    low = join(dispatcher, "low")
    feed = Feed(dispatcher, 4, key_hashes=(LOW, HIGH))
    feed.pump()
    redelivery = dispatcher.remove_consumer(low)
    assert redelivery.wake
    assert not redelivery.rewind
    feed.entry_count = 6
    assert feed.pump() == [("high", [0, 2]), ("high", [4, 5])]


def test_when_the_last_consumer_leaves_the_cursor_rewinds_and_nothing_drains() -> None:
    dispatcher = key_shared()
    a, b = join(dispatcher, "a"), join(dispatcher, "b")
    Feed(dispatcher, 4, key_hashes=(LOW, HIGH)).pump()
    dispatcher.remove_consumer(a)
    redelivery = dispatcher.remove_consumer(b)
    assert redelivery.rewind
    assert dispatcher.replay_entry_count == dispatcher.unacked_messages == len(dispatcher.draining) == 0
    assert dispatcher.owners.selector.ranges() == {}
    dispatcher.check_invariants()


def test_given_back_entries_go_to_the_same_consumer_before_anything_new_of_their_key() -> None:
    dispatcher = key_shared()
    join(dispatcher, "high")
    low = join(dispatcher, "low", permits=3)
    feed = Feed(dispatcher, 6, key_hashes=(LOW,))
    assert feed.pump() == [("low", [0, 1, 2])]
    dispatcher.redeliver(low, positions(1))
    dispatcher.flow(low, 2)
    assert feed.pump() == [("low", [1, 3])]
    dispatcher.flow(low, 2)
    assert feed.pump() == [("low", [4, 5])]


def test_what_comes_back_while_a_read_is_under_way_is_not_overtaken_by_it() -> None:
    dispatcher = key_shared()
    c = join(dispatcher, "c")
    Feed(dispatcher, 4, key_hashes=(LOW,)).pump()
    dispatcher.redeliver(c, positions(2))
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(2)
    dispatcher.redeliver(c, positions(1))
    assert dispatcher.assign(plan, run_of([2], key_hashes=[LOW])) == []
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(1, 2)
    assert got(dispatcher.assign(plan, run_of([1, 2], key_hashes=[LOW, LOW]))) == [("c", [1, 2])]


def test_a_plan_given_back_is_asked_for_again_without_what_was_delivered() -> None:
    dispatcher = key_shared()
    c = join(dispatcher, "c")
    Feed(dispatcher, 4, key_hashes=(LOW, HIGH)).pump()
    dispatcher.redeliver(c, None)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(0, 1, 2, 3)
    assert got(dispatcher.assign(plan, run_of([0, 1], key_hashes=[LOW, HIGH]))) == [("c", [0, 1])]
    dispatcher.give_back(plan)
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay == positions(2, 3)
    dispatcher.reset()
    dispatcher.give_back(plan)
    assert dispatcher.replay_entry_count == 0
    assert dispatcher.is_void(plan)
    assert dispatcher.assign(plan, run_of([2], key_hashes=[LOW])) == []


def test_a_slow_consumer_stops_the_others_at_the_look_ahead_limit_and_no_earlier() -> None:
    dispatcher = key_shared(per_consumer=50, per_subscription=60, max_read_batch_entries=10)
    join(dispatcher, "high")
    low = join(dispatcher, "low", permits=0)
    feed = Feed(dispatcher, 1000, key_hashes=(LOW, HIGH))
    delivered = feed.pump()
    assert {name for name, _ in delivered} == {"high"}
    assert dispatcher.replay_entry_count == 60
    assert feed.read_position == 120
    dispatcher.flow(low, 1)
    assert feed.pump()[0] == ("low", [0])
    assert feed.read_position == 130, "there was room for one more read"


@pytest.mark.parametrize(
    ("per_consumer", "per_subscription", "expected"), [(50, 0, 100), (0, 60, 60), (0, 0, 500), (400, 300, 300)]
)
def test_a_look_ahead_limit_of_0_does_not_limit(per_consumer: int, per_subscription: int, expected: int) -> None:
    dispatcher = key_shared(per_consumer=per_consumer, per_subscription=per_subscription, max_read_batch_entries=10)
    join(dispatcher, "high")
    join(dispatcher, "low", permits=0)
    Feed(dispatcher, 1000, key_hashes=(LOW, HIGH)).pump()
    assert dispatcher.replay_entry_count == expected


def test_the_pump_is_woken_when_waiting_entries_are_deleted_below_the_limit() -> None:
    dispatcher = key_shared(per_subscription=4)
    join(dispatcher, "high")
    join(dispatcher, "low", permits=0)
    Feed(dispatcher, 4, key_hashes=(LOW,)).pump()
    assert dispatcher.next_read() is None
    assert dispatcher.acked(LEDGER, [0])
    assert not dispatcher.acked(LEDGER, [1])
    Feed(dispatcher, 6, key_hashes=(LOW,)).pump()
    assert dispatcher.next_read() is None
    assert dispatcher.acked_up_to(Position(LEDGER, 4))
    assert dispatcher.next_read() is not None


def test_one_stuck_key_holds_up_none_of_many_others() -> None:
    dispatcher = key_shared(per_consumer=2000, per_subscription=20000)
    join(dispatcher, "old")
    keys = tuple(range(1, 30_000, 30))
    feed = Feed(dispatcher, 1, key_hashes=keys)
    feed.pump()
    join(dispatcher, "new", permits=100_000)
    feed.entry_count = 3 * len(keys)
    sent = [entry for _, entries in feed.pump() for entry in entries]
    assert sorted(sent) == [e for e in range(1, 3 * len(keys)) if e % len(keys) or not e]
    assert dispatcher.replay_entry_count == 2


def test_plans_for_replay_serve_all_who_can_take_something() -> None:
    dispatcher = key_shared(max_read_batch_entries=4)
    consumers = [join(dispatcher, name) for name in ("high", "low")]
    feed = Feed(dispatcher, 40, key_hashes=(LOW, HIGH))
    feed.pump()
    for each in consumers:
        dispatcher.redeliver(each, None)
    names = [{name for name, _ in (feed_once(dispatcher))} for _ in range(2)]
    assert names == [{"low"}, {"high"}]


def feed_once(dispatcher: KeySharedDispatcher) -> list[tuple[str, list[int]]]:
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay is not None
    entry_ids = [position.entry_id for position in plan.replay]
    return got(dispatcher.assign(plan, run_of(entry_ids, key_hashes=[(LOW, HIGH)[e % 2] for e in entry_ids])))


def test_limits_of_consumer_and_subscription_hold_in_one_run() -> None:
    dispatcher = key_shared(max_unacked_messages=5)
    join(dispatcher, "high")
    low = consumer("low", max_unacked_messages=2)
    dispatcher.add_consumer(low)
    dispatcher.flow(low, 100)
    feed = Feed(dispatcher, 20, key_hashes=(LOW, HIGH))
    assert feed.pump() == [("low", [0, 2]), ("high", [1, 3, 5])]
    assert low.blocked
    assert dispatcher.blocked
    assert dispatcher.next_read() is None
    assert not dispatcher.acked(LEDGER, [1, 3])
    assert dispatcher.acked(LEDGER, [0])
    assert feed.pump() == [("low", [4]), ("high", [7, 9])]
    dispatcher.check_invariants()


def test_batches_are_sent_whole_and_permits_go_below_zero() -> None:
    dispatcher = key_shared()
    c = join(dispatcher, "c", permits=5)
    feed = Feed(dispatcher, 3, messages_each=10, key_hashes=(LOW,))
    assert feed.pump() == [("c", [0])]
    assert c.permits == -5
    assert not dispatcher.flow(c, 5)
    assert dispatcher.flow(c, 1)
    assert feed.pump() == [("c", [1])]


def test_an_entry_read_twice_is_sent_once() -> None:
    dispatcher = key_shared()
    join(dispatcher, "c")
    plan = dispatcher.next_read()
    assert plan is not None
    assert got(dispatcher.assign(plan, run_of([0, 1], key_hashes=[LOW, LOW]))) == [("c", [0, 1])]
    assert got(dispatcher.assign(plan, run_of([1, 2], key_hashes=[LOW, LOW]))) == [("c", [2])]


def test_out_of_order_delivery_does_not_wait_for_the_former_consumer() -> None:
    dispatcher = key_shared()
    for name in ("old", "new"):
        joining = ConsumerState(name, 0, 0, None, KeySharedOptions(None, True))
        dispatcher.add_consumer(joining)
        dispatcher.flow(joining, 100)
        feed = Feed(dispatcher, 1 + len(dispatcher.consumers), key_hashes=(LOW,))
        feed.read_position = dispatcher.unacked_messages
        assert {got_by for got_by, _ in feed.pump()} == {name}
    assert dispatcher.owners.allows_out_of_order_delivery
    assert len(dispatcher.draining) == 0
    dispatcher.check_invariants()


def test_entries_that_no_sticky_range_covers_wait_until_somebody_does() -> None:
    dispatcher = key_shared()
    c1 = sticky_consumer("c1", (0, 150))
    dispatcher.add_consumer(c1)
    dispatcher.flow(c1, 100)
    feed = Feed(dispatcher, 4, key_hashes=(LOW, LOW_2))
    assert feed.pump() == [("c1", [0, 2])]
    assert dispatcher.replay_entry_count == 2
    c2 = sticky_consumer("c2", (151, 65535))
    assert dispatcher.add_consumer(c2).wake
    assert dispatcher.flow(c2, 100)
    assert feed.pump() == [("c2", [1, 3])]
    assert dispatcher.owners.mode == "STICKY"
    assert len(dispatcher.waiting) == 0


def test_a_refused_consumer_leaves_nothing_behind() -> None:
    dispatcher = key_shared()
    with pytest.raises(ConsumerAssignError):
        dispatcher.add_consumer(sticky_consumer("none"))
    assert dispatcher.consumers == []
    c1 = sticky_consumer("c1", (0, 150))
    dispatcher.add_consumer(c1)
    with pytest.raises(ConsumerAssignError):
        dispatcher.add_consumer(sticky_consumer("c2", (100, 200)))
    with pytest.raises(ConsumerBusy, match="STICKY"):
        dispatcher.add_consumer(consumer("c3"))
    with pytest.raises(ConsumerBusy, match="not allowed"):
        dispatcher.add_consumer(ConsumerState("c4", 0, 0, None, KeySharedOptions([(500, 600)], True)))
    assert dispatcher.consumers == [c1]
    assert dispatcher.owners.selector.ranges() == {c1: [(0, 150)]}
    dispatcher.check_invariants()


def test_mode_and_flag_are_those_of_the_connected_consumers() -> None:
    dispatcher = key_shared()
    first = sticky_consumer("first", (0, 65535))
    dispatcher.add_consumer(first)
    dispatcher.remove_consumer(first)
    dispatcher.add_consumer(consumer("second"))
    assert dispatcher.owners.mode == "AUTO_SPLIT"


def test_the_settings_choose_the_selector() -> None:
    auto_split, sticky = KeySharedOptions(None, False), KeySharedOptions([(0, 1)], False)
    assert isinstance(new_selector(100, auto_split), ConsistentHashSelector)
    assert isinstance(new_selector(0, auto_split), AutoSplitSelector)
    assert isinstance(new_selector(100, sticky), StickyRangesSelector)


def test_a_draining_hash_shows_its_unacknowledged_messages_not_its_entries() -> None:
    dispatcher = key_shared()
    join(dispatcher, "old")
    Feed(dispatcher, 4, messages_each=5, key_hashes=(LOW,)).pump()
    dispatcher.acked_partly(LEDGER, 1, 3)
    join(dispatcher, "new")
    assert dispatcher.draining.unacked_messages() == 18
    dispatcher.acked_partly(LEDGER, 0, 1)
    assert dispatcher.draining.unacked_messages() == 14
    dispatcher.acked(LEDGER, [2])
    ((_, shown),) = dispatcher.draining
    assert (shown.unacked_entries, shown.unacked_messages) == (3, 9)
    dispatcher.check_invariants()
