"""Delivery times are recorded in bounded space."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.dispatch.support import consumer, exclusive, run_of

from pybroker.dispatch.delivery_log import MAX_NOTES, RESOLUTION_MS, DeliveryLog
from pybroker.dispatch.dispatcher import ReadPlan
from pybroker.model.position import Position


def test_an_entry_was_delivered_with_the_last_delivery_that_began_at_it_or_in_front_of_it() -> None:
    log = DeliveryLog()
    assert log.at(Position(1, 0)) is None
    log.delivered(1, 5, 1000)
    log.delivered(1, 9, 1000 + RESOLUTION_MS - 1)  # close enough to the previous one
    log.delivered(2, 0, 5000)
    assert [log.at(Position(*at)) for at in ((1, 4), (1, 5), (1, 99), (2, 0), (7, 7))] == [None, 1000, 1000, 5000, 5000]
    assert [log.first_after(time_ms) for time_ms in (0, 999, 1000, 5000)] == [
        Position(1, 5),
        Position(1, 5),
        Position(2, 0),
        None,
    ]
    log.forget_up_to(Position(1, 99))
    assert (len(log), log.at(Position(1, 99)), log.at(Position(2, 1))) == (2, 1000, 5000)
    log.forget_up_to(Position(2, 0))
    assert (len(log), log.at(Position(2, 1))) == (1, 5000)
    log.clear()
    log.delivered(1, 5, 1001)
    assert log.at(Position(1, 5)) == 1001


def test_what_is_delivered_again_has_its_later_time_also_after_the_clock_went_back() -> None:
    log = DeliveryLog()
    log.delivered(1, 0, 1000)
    log.delivered(1, 10, 2000)
    log.delivered(1, 5, 500)
    assert (log.at(Position(1, 4)), log.at(Position(1, 20))) == (1000, 500)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60_000)), min_size=1, max_size=400))
def test_times_of_many_deliveries_are_never_too_late_and_too_early_by_a_share_of_their_age(
    deliveries: list[tuple[int, int]],
) -> None:
    log, times, now_ms = DeliveryLog(), [], 10**12  # type: ignore[var-annotated]
    for entries, wait_ms in deliveries:
        now_ms += wait_ms
        log.delivered(1, len(times), now_ms)
        times += [now_ms] * entries
        log.check_invariants()
    if len(deliveries) <= MAX_NOTES:
        assert all(0 <= time_ms - (log.at(Position(1, at)) or 0) < RESOLUTION_MS for at, time_ms in enumerate(times))
    assert all((log.at(Position(1, at)) or 0) <= time_ms for at, time_ms in enumerate(times))


def test_steady_deliveries_are_known_within_a_share_of_their_age() -> None:
    log = DeliveryLog()
    for index in range(100_000):
        log.delivered(1, index, 10**12 + index * 1000)
    now_ms = 10**12 + 100_000 * 1000
    for index in range(0, 100_000, 7):
        time_ms = 10**12 + index * 1000
        known_ms = log.at(Position(1, index))
        assert known_ms is not None
        assert 0 <= time_ms - known_ms <= 0.7 * (now_ms - time_ms)


def test_a_new_active_consumer_has_what_it_got_itself() -> None:
    dispatcher = exclusive()
    first = consumer("first")
    dispatcher.add_consumer(first)
    dispatcher.flow(first, 10)
    dispatcher.now_ms = 1000
    plan = dispatcher.next_read()
    assert isinstance(plan, ReadPlan)
    dispatcher.assign(plan, run_of([0, 1]))
    assert dispatcher.delivered_ms(Position(5, 1)) == 1000
    dispatcher.remove_consumer(first)
    assert dispatcher.delivered_ms(Position(5, 1)) is None
