"""Limits of unacknowledged messages that change while consumers hold some."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import LEDGER, consumer, exclusive, key_shared, run_of, shared

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher

KINDS = pytest.mark.parametrize("make", [shared, key_shared])


def deliver(dispatcher: MultiConsumerDispatcher, first: int, count: int) -> int:
    """Return how many of `count` entries were delivered."""
    plan = dispatcher.next_read()
    if plan is None:
        return 0
    hashes = [100] * count if dispatcher.needs_key_hashes else None
    deliveries = dispatcher.assign(plan, run_of(range(first, first + count), key_hashes=hashes))
    dispatcher.check_invariants()
    return sum(each.message_count for each in deliveries)


def with_consumer(dispatcher: MultiConsumerDispatcher, max_unacked_messages: int) -> ConsumerState:
    state = consumer(max_unacked_messages=max_unacked_messages)
    dispatcher.add_consumer(state)
    dispatcher.flow(state, 1000)
    return state


@KINDS
def test_a_consumer_that_is_stopped_goes_on_when_its_limit_is_raised_or_removed(make: type) -> None:
    for raised in (4, 0):
        dispatcher = make()
        state = with_consumer(dispatcher, 3)
        assert deliver(dispatcher, 0, 3) == 3
        assert state.blocked
        assert dispatcher.next_read() is None
        assert dispatcher.limit_unacked(raised, 0)
        assert dispatcher.next_read() is not None
        dispatcher.check_invariants()


@KINDS
def test_a_lower_limit_stops_a_consumer_that_is_over_it_until_half_is_acknowledged(make: type) -> None:
    dispatcher = make()
    state = with_consumer(dispatcher, 0)
    assert deliver(dispatcher, 0, 6) == 6
    assert not dispatcher.limit_unacked(4, 0)
    assert state.blocked
    assert not dispatcher.acked(LEDGER, [0, 1, 2])
    assert dispatcher.acked(LEDGER, [3])
    dispatcher.check_invariants()


@KINDS
def test_a_subscription_that_is_stopped_goes_on_when_its_limit_is_raised(make: type) -> None:
    dispatcher = make(max_unacked_messages=3)
    with_consumer(dispatcher, 0)
    assert deliver(dispatcher, 0, 3) == 3
    assert dispatcher.blocked
    assert dispatcher.limit_unacked(0, 5)
    assert not dispatcher.blocked
    assert deliver(dispatcher, 3, 2) == 2
    assert dispatcher.blocked
    assert dispatcher.limit_unacked(0, 0)
    dispatcher.check_invariants()


@KINDS
def test_nobody_is_woken_while_the_other_limit_still_holds(make: type) -> None:
    dispatcher = make(max_unacked_messages=3)
    with_consumer(dispatcher, 3)
    assert deliver(dispatcher, 0, 3) == 3
    assert not dispatcher.limit_unacked(10, 3)
    assert dispatcher.limit_unacked(10, 10)


def test_types_that_do_not_count_unacknowledged_messages_have_no_limit() -> None:
    dispatcher = exclusive()
    dispatcher.add_consumer(consumer())
    assert not dispatcher.limit_unacked(1, 1)
