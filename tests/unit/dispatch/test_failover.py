"""Failover: which consumer is active, and when it starts."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import Feed, consumer, got, run_of

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.failover import FailoverDispatcher
from pybroker.dispatch.redelivery_queue import RedeliveryCounts


def failover(partition: int | None = 0, topic_name: str = "persistent://public/default/t") -> FailoverDispatcher:
    return FailoverDispatcher(RedeliveryCounts(), 100, 1 << 20, topic_name, partition)


def joined(dispatcher: FailoverDispatcher, *names: str) -> list[ConsumerState]:
    consumers = [consumer(name) for name in names]
    for each in consumers:
        dispatcher.add_consumer(each)
        dispatcher.flow(each, 10)
    dispatcher.start()
    return consumers


def active_name(dispatcher: FailoverDispatcher) -> str | None:
    return None if dispatcher.active_consumer is None else dispatcher.active_consumer.name


@pytest.mark.parametrize(
    ("partitions", "names", "expected"),
    [(9, "ABC", "ABCABCABC"), (2, "ABCD", "AB"), (9, "CBA", "ABCABCABC"), (3, "A", "AAA")],
)
def test_partitions_spread_over_the_consumers_in_the_order_of_their_names(
    partitions: int, names: str, expected: str
) -> None:
    for partition in range(partitions):
        dispatcher = failover(partition)
        joined(dispatcher, *names)
        assert active_name(dispatcher) == expected[partition]
        dispatcher.check_invariants()


def test_when_the_active_ones_leave_those_that_stood_by_take_over() -> None:
    for partition, expected in ((0, "C"), (1, "D")):
        dispatcher = failover(partition)
        a, b, _, _ = joined(dispatcher, *"ABCD")
        dispatcher.remove_consumer(a)
        dispatcher.remove_consumer(b)
        assert active_name(dispatcher) == expected


def test_only_the_best_priority_level_is_chosen_from() -> None:
    dispatcher = failover(partition=1)
    for name, level in (("a", 1), ("b", 1), ("y", 0), ("z", 0)):
        dispatcher.add_consumer(consumer(name, priority_level=level))
    assert active_name(dispatcher) == "z"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "beta"),
        (1, "gamma"),
        (2, "beta"),
        (3, "alpha"),
        (4, "gamma"),
        (5, "gamma"),
        (6, "gamma"),
        (7, "gamma"),
    ],
)
def test_without_a_partition_the_ring_chooses_as_the_real_broker_does(number: int, expected: str) -> None:
    dispatcher = failover(None, f"persistent://public/default/r{number}")
    joined(dispatcher, "gamma", "alpha", "beta")
    assert active_name(dispatcher) == expected


def test_the_ring_moves_on_through_the_consumers_as_the_real_broker_does() -> None:
    dispatcher = failover(None, "persistent://public/default/f1")
    a, zz, *_ = joined(dispatcher, "a", "zz", "b", "c", "d")
    assert dispatcher.active_consumer is zz
    dispatcher.remove_consumer(zz)
    assert dispatcher.active_consumer is a


def test_the_first_consumer_starts_after_the_delay_and_is_told_so() -> None:
    dispatcher = failover()
    a = consumer("a")
    redelivery = dispatcher.add_consumer(a)
    assert redelivery.start_later
    assert not redelivery.rewind
    assert not redelivery.notices
    assert not dispatcher.flow(a, 10)
    assert dispatcher.next_read() is None
    redelivery = dispatcher.start()
    assert redelivery.rewind
    assert redelivery.wake
    assert list(redelivery.notices) == [(a, True)]
    assert Feed(dispatcher, 3).pump() == [("a", [0, 1, 2])]
    assert not dispatcher.start().rewind, "asked for once"


def test_a_change_stops_dispatch_at_once_and_tells_all_when_it_starts() -> None:
    dispatcher = failover()
    (b,) = joined(dispatcher, "b")
    plan = dispatcher.next_read()
    assert plan is not None
    a = consumer("a")
    assert dispatcher.add_consumer(a).start_later
    dispatcher.flow(a, 5)
    assert dispatcher.is_void(plan)
    assert dispatcher.assign(plan, run_of([0])) == []
    assert not dispatcher.flow(b, 5)
    assert dispatcher.next_read() is None
    redelivery = dispatcher.start()
    assert list(redelivery.notices) == [(b, False), (a, True)]
    plan = dispatcher.next_read()
    assert plan is not None
    assert got(dispatcher.assign(plan, run_of([0]))) == [("a", [0])]


def test_one_that_stands_by_is_told_so_and_changes_nothing() -> None:
    dispatcher = failover()
    joined(dispatcher, "a")
    b = consumer("b")
    came, left = dispatcher.add_consumer(b), dispatcher.remove_consumer(b)
    assert (list(came.notices), list(left.notices)) == ([(b, False)], [])
    for redelivery in (came, left):
        assert not redelivery.start_later
        assert not redelivery.rewind
    assert dispatcher.next_read() is not None


def test_changes_during_the_delay_do_not_make_it_longer() -> None:
    dispatcher = failover()
    (c,) = joined(dispatcher, "c")
    b, a = consumer("b"), consumer("a")
    assert dispatcher.add_consumer(b).start_later
    assert not dispatcher.add_consumer(a).start_later
    assert list(dispatcher.start().notices) == [(c, False), (b, False), (a, True)]


def test_when_all_are_gone_there_is_nothing_to_start() -> None:
    dispatcher = failover()
    a = consumer("a")
    dispatcher.add_consumer(a)
    redelivery = dispatcher.remove_consumer(a)
    assert redelivery.rewind
    assert not redelivery.start_later
    assert not dispatcher.start().rewind
    dispatcher.check_invariants()


def test_only_the_active_consumer_may_have_everything_again() -> None:
    dispatcher = failover()
    a, b = joined(dispatcher, "a", "b")
    assert not dispatcher.redeliver(b, None).rewind
    assert dispatcher.redeliver(a, None).rewind
