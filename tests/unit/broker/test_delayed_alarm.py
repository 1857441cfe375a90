"""The timer of delayed delivery, without a subscription."""

from __future__ import annotations

from tests.unit.broker.one_topic import MovedClock, OneTopicRuntime

from pybroker.broker.delivery.delayed_alarm import MAX_ALARM_S, DelayedAlarm
from pybroker.config import BrokerConfig
from pybroker.dispatch.delayed.delayed_entries import DelayedIndex, DeliveryTimes

STRICT = DeliveryTimes(10, is_strict=True)


class World:
    """An alarm, its index, and a record of the times at which the alarm woke the pump."""

    def __init__(self, times: DeliveryTimes | None = STRICT) -> None:
        self.runtime = OneTopicRuntime(BrokerConfig(), MovedClock())
        self.start_ms = self.runtime.moved.now_ms
        self.index = DelayedIndex()
        self.woken_at_ms: list[int] = []
        self.alarm = DelayedAlarm(
            self.runtime, self.index, times, lambda: self.woken_at_ms.append(self.runtime.moved.now_ms - self.start_ms)
        )

    def add(self, entry_id: int, in_ms: int) -> None:
        self.index.add(1, (entry_id,), (self.runtime.moved.now_ms + in_ms,))
        self.alarm.set()


def test_alarm_wakes_at_the_time_of_the_next_due_entry() -> None:
    world = World()
    world.add(0, 500)
    world.add(1, 100)
    assert len(world.runtime.timers) == 1, "one timer for all entries"
    world.runtime.move(99)
    assert world.woken_at_ms == []
    world.runtime.move(1)
    assert world.woken_at_ms == [100]
    assert not world.alarm.is_set, "the pump sets it again"


def test_strict_alarm_rings_at_most_once_a_tick() -> None:
    world = World()
    world.add(0, 100)
    world.runtime.move(100)
    world.index.discard(1, (0,))
    world.add(1, 3)
    world.runtime.move(9)
    assert world.woken_at_ms == [100]
    world.runtime.move(1)
    assert world.woken_at_ms == [100, 110]


def test_alarm_for_a_distant_time_is_renewed_without_a_wake() -> None:
    world = World()
    cap_ms = int(MAX_ALARM_S * 1000)
    world.add(0, cap_ms + 5)
    world.runtime.move(cap_ms)
    assert world.woken_at_ms == []
    assert world.alarm.is_set
    world.runtime.move(5)
    assert world.woken_at_ms == [cap_ms + 5]


def test_alarm_is_stopped_when_no_entry_waits() -> None:
    world = World()
    world.add(0, 100)
    world.index.discard(1, (0,))
    world.alarm.set()
    assert not world.alarm.is_set
    assert world.runtime.timers == []


def test_alarm_is_not_set_while_the_policies_delay_nothing() -> None:
    world = World(times=None)
    world.add(0, 100)
    assert not world.alarm.is_set
    world.alarm.times = STRICT
    world.alarm.set()
    assert world.alarm.is_set
