"""The reasons that a dispatcher reports while it plans no read."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import HIGH, LOW, consumer, exclusive, key_shared, run_of, shared

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.dispatcher import Dispatcher
from pybroker.dispatch.failover import FailoverDispatcher
from pybroker.dispatch.redelivery_queue import RedeliveryCounts


@pytest.mark.parametrize("make", [shared, key_shared, exclusive])
def test_consumers_and_their_permits_and_connections_are_told_apart(make: type) -> None:
    dispatcher: Dispatcher = make()
    assert dispatcher.blocked_reason() is BlockedReason.NO_CONSUMER
    only = consumer()
    dispatcher.add_consumer(only)
    assert dispatcher.next_read() is None
    assert dispatcher.blocked_reason() is BlockedReason.NO_PERMITS
    only.writable = False
    dispatcher.flow(only, 1)
    assert dispatcher.next_read() is None
    assert dispatcher.blocked_reason() is BlockedReason.CONNECTION_FULL
    only.writable = True
    assert dispatcher.next_read() is not None


def test_among_many_consumers_it_is_said_of_the_one_that_is_nearest_to_an_entry() -> None:
    dispatcher = shared()
    blocked, full, poor = consumer("a", max_unacked_messages=1), consumer("b"), consumer("c")
    for each in (blocked, full, poor):
        dispatcher.add_consumer(each)
    dispatcher.flow(blocked, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    dispatcher.assign(plan, run_of([0]))
    assert dispatcher.blocked_reason() is BlockedReason.NO_PERMITS
    full.writable = False
    dispatcher.flow(full, 10)
    assert dispatcher.next_read() is None
    assert dispatcher.blocked_reason() is BlockedReason.CONNECTION_FULL
    dispatcher.remove_consumer(full)
    dispatcher.remove_consumer(poor)
    assert dispatcher.blocked_reason() is BlockedReason.UNACKED_CONSUMER


def test_the_limit_of_the_subscription_comes_before_those_of_its_consumers() -> None:
    dispatcher = shared(max_unacked_messages=1)
    only = consumer()
    dispatcher.add_consumer(only)
    dispatcher.flow(only, 10)
    plan = dispatcher.next_read()
    assert plan is not None
    dispatcher.assign(plan, run_of([0]))
    assert dispatcher.next_read() is None
    assert dispatcher.blocked_reason() is BlockedReason.UNACKED_SUBSCRIPTION


def test_entries_that_wait_for_a_consumer_without_permits_stop_the_others_by_the_look_ahead() -> None:
    dispatcher = key_shared(per_subscription=2)
    slow, fast = consumer("slow"), consumer("fast")
    dispatcher.add_consumer(slow)
    dispatcher.add_consumer(fast)
    dispatcher.flow(fast, 100)
    for first in range(0, 40, 4):
        plan = dispatcher.next_read()
        if plan is None:
            break
        dispatcher.assign(plan, run_of(range(first, first + 4), key_hashes=[LOW, HIGH, LOW, HIGH]))
    assert dispatcher.next_read() is None
    assert dispatcher.blocked_reason() is BlockedReason.LOOK_AHEAD


def test_a_new_active_consumer_is_starting_until_it_is_told_to() -> None:
    dispatcher = FailoverDispatcher(RedeliveryCounts(), 100, 1 << 20, "topic", None)
    first = consumer()
    dispatcher.add_consumer(first)
    dispatcher.flow(first, 10)
    assert dispatcher.next_read() is None
    assert dispatcher.blocked_reason() is BlockedReason.STARTING
    dispatcher.start()
    assert dispatcher.next_read() is not None
