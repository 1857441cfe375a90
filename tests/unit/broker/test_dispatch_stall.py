"""Since when dispatch of a subscription is stalled."""

from __future__ import annotations

from tests.unit.broker.one_topic import MovedClock

from pybroker.broker.delivery.dispatch_stall import DispatchStall
from pybroker.dispatch.blocked_reasons import BlockedReason


def test_repeated_stops_without_delivery_keep_the_start_of_the_stall() -> None:
    clock = MovedClock()
    stall = DispatchStall(clock.now_ms)
    stall.stopped_at(BlockedReason.CONSUMERS, clock.now_ms)
    since_ms = stall.since_ms
    clock.now_ms += 1000
    stall.stopped_at(BlockedReason.CONSUMERS, clock.now_ms)
    assert (stall.reason, stall.since_ms) == (BlockedReason.CONSUMERS, since_ms)


def test_a_delivery_or_another_reason_begins_a_new_stall() -> None:
    clock = MovedClock()
    stall = DispatchStall(clock.now_ms)
    stall.stopped_at(BlockedReason.CONSUMERS, clock.now_ms)
    clock.now_ms += 1000
    stall.has_moved = True
    stall.stopped_at(BlockedReason.CONSUMERS, clock.now_ms)
    assert stall.since_ms == clock.now_ms
    assert not stall.has_moved
    clock.now_ms += 1000
    stall.stopped_at(BlockedReason.RATE, clock.now_ms)
    assert (stall.reason, stall.since_ms) == (BlockedReason.RATE, clock.now_ms)
