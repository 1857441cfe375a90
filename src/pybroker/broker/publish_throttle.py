"""What slows publishing down: the rates of broker, resource group and topic that are limited.

A message over a limit is not refused: who sent it is not read from until it may pass, nor is what else that client sends, since its
order counts. A topic without any limit has no throttle, and pays nothing.

A topic whose messages cannot be judged yet (`broker/topic_deduplication.py`) holds them back in the same way.

What must hold: whoever waits goes on as soon as the limit lets the next message pass, those of one limit by turns; when a limit is
changed or its topic closes, nobody waits for what was before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker.broker.rate_limit import RateLimit
from pybroker.model.events import SendRun
from pybroker.model.policies import PublishRate
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.topic_base import TopicBase
    from pybroker.surroundings import Surroundings

MAX_WAIT_MS = 1000
"""A long debt is waited for in steps, so that a limit nobody needs any more is not kept for its sake."""


class PublishWaiter(ABC):
    """A client that can be made to wait."""

    @abstractmethod
    def publish_again(self) -> None:
        """Publish what had to wait, or wait again."""


class WaitingRow:
    """Who waits, in the order in which they go on; by itself, until it is opened."""

    def __init__(self) -> None:
        self._waiting: dict[PublishWaiter, None] = {}

    def wait(self, waiter: PublishWaiter) -> None:
        """`waiter` is told as soon as something may pass."""
        self._waiting[waiter] = None

    def leave(self, waiter: PublishWaiter) -> None:
        """`waiter` is gone."""
        self._waiting.pop(waiter, None)

    def open(self) -> None:
        """Somebody need not wait here any more: all look again, in their order."""
        for waiter in list(self._waiting):
            self._let_go(waiter)

    def _let_go(self, waiter: PublishWaiter) -> None:
        if waiter in self._waiting:
            del self._waiting[waiter]
            waiter.publish_again()


class PublishGate(WaitingRow):
    """One limit, and who waits for it. Shared by all topics under the limit."""

    def __init__(self, surroundings: Surroundings, rate: PublishRate) -> None:
        assert is_limited(rate)
        super().__init__()
        self.rate = rate
        self.limit = RateLimit(
            rate.publishThrottlingRateInMsg, rate.publishThrottlingRateInByte, 1000, surroundings.clock.monotonic_ms()
        )
        self._surroundings = surroundings
        self._is_timed = False

    def wait(self, waiter: PublishWaiter) -> None:
        super().wait(waiter)
        if not self._is_timed:
            self._is_timed = True
            self._surroundings.call_later(min(MAX_WAIT_MS, max(1, self.limit.wait_ms())) / 1000, self._time_passed)

    def _time_passed(self) -> None:
        self._is_timed = False
        while self._waiting and min(self.limit.allowance(self._surroundings.clock.monotonic_ms())) > 0:
            self._let_go(next(iter(self._waiting)))  # It is last in the row if it has to wait again.
        if self._waiting:
            self.wait(next(iter(self._waiting)))


class PublishThrottle:
    """What holds for one topic. Owned by it; `own` is the limit that it shares with nobody, `held` the row in which everybody
    waits while the topic takes nothing."""

    def __init__(
        self, topic: TopicBase, own: PublishGate | None, shared: Sequence[PublishGate], held: WaitingRow | None = None
    ) -> None:
        self.own = own
        self.held = held
        self.gates = [*shared, *([] if own is None else [own])]
        self._topic = topic

    def admit(self, run: SendRun) -> int:
        """How many of these messages may be published now, which counts as done."""
        if self.held is not None:
            return 0
        now_ms = self._topic.surroundings.clock.monotonic_ms()
        counts, payloads = run.message_counts, run.payloads
        passing = min(gate.limit.passing(counts, payloads, run.size_bytes, now_ms) for gate in self.gates)
        if passing:
            messages, size_bytes = sum(counts[:passing]), sum(map(len, payloads[:passing]))
            for gate in self.gates:
                gate.limit.spend(messages, size_bytes)
        return passing

    def wait(self, waiter: PublishWaiter) -> WaitingRow:
        """Make `waiter` wait for the limit that lets something pass last; where it waits."""
        if self.held is not None:
            self.held.wait(waiter)
            return self.held
        self._topic.counters.publish_rate_limited += 1
        gate = max(self.gates, key=lambda each: each.limit.wait_ms())
        gate.wait(waiter)
        return gate


def is_limited(rate: PublishRate) -> bool:
    """Whether the rate limits anything."""
    return rate.publishThrottlingRateInMsg > 0 or rate.publishThrottlingRateInByte > 0


def renewed_gate(surroundings: Surroundings, gate: PublishGate | None, rate: PublishRate) -> PublishGate | None:
    """What limits to `rate`, None for no limit; the same gate while the rate is the same."""
    if not is_limited(rate):
        return None
    return gate if gate is not None and gate.rate == rate else PublishGate(surroundings, rate)


def renew(topic: TopicBase) -> None:
    """Apply the rates that are in force for `topic` now; who waits for one that does not hold any more goes on."""
    if is_system_topic(topic.name):
        return
    service, policies, before = topic.service, topic.policies, topic.publish_throttle
    own = renewed_gate(topic.surroundings, None if before is None else before.own, policies.publish_rate)
    group = service.group_limits.of(policies.resource_group)
    shared = [gate for gate in (service.publish_gate, group.publish_gate) if gate is not None]
    held = topic.held_publishers
    is_needed = shared or own is not None or held is not None
    topic.publish_throttle = after = PublishThrottle(topic, own, shared, held) if is_needed else None
    if before is not None:
        if before.held is not None and before.held is not held:
            before.held.open()
        for gate in before.gates:
            if after is None or gate not in after.gates:
                gate.open()


def release(topic: TopicBase) -> None:
    """`topic` closes, its producers are gone: who waits for it goes on."""
    if topic.publish_throttle is not None:
        for gate in topic.publish_throttle.gates:
            gate.open()
        if topic.publish_throttle.held is not None:
            topic.publish_throttle.held.open()
