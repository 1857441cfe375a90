"""Dispatch rate limits that apply to one subscription: of the broker, resource group, topic, and subscription.

When limits delay the dispatch, a timer resumes it as soon as all limits allow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit, is_limited
from pybroker.dispatch.dispatcher import Delivery, Dispatcher, ReadPlan
from pybroker.model.policies import DispatchRate

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.managed_ledger.managed_cursor import ManagedCursor

MIN_WAIT_MS = 10
"""Shortest wait for new tokens. After shorter waits, a fast stream would be sent message by message."""


def renew_topic_limit(topic: TopicContext) -> None:
    """Apply the topic's dispatch rate policy. A limit that has not changed keeps its remaining tokens."""
    topic.dispatch_rate_limit = _renewed_limit("Topic", topic.dispatch_rate_limit, topic.policies.dispatch_rate, topic)


def throttle_of(
    subscription: SubscriptionBase, cursor: ManagedCursor, before: DispatchThrottle | None
) -> DispatchThrottle | None:
    """Return the rate limits of the subscription, or None if none applies. `before`: the previous limits of the
    subscription; if the limit for this subscription alone is unchanged, it keeps its remaining tokens.
    """
    topic = subscription.topic
    policies = topic.policies
    own = _renewed_limit(
        "Subscription",
        None if before is None else before.own,
        policies.subscription_dispatch_rate_of(subscription.name),
        topic,
    )
    group = topic.broker_context.resource_group_rates.of(policies.resource_group)
    candidates = (topic.broker_context.dispatch_rate_limit, group.dispatch_rate_limit, topic.dispatch_rate_limit)
    shared = [limit for limit in candidates if limit is not None]
    return DispatchThrottle(subscription, cursor, shared, own) if shared or own is not None else None


def _renewed_limit(
    scope: str, limit: DispatchRateLimit | None, rate: DispatchRate, topic: TopicContext
) -> DispatchRateLimit | None:
    if not is_limited(rate):
        return None
    if limit is not None and limit.rate == rate:
        return limit
    counters = topic.counters
    return DispatchRateLimit(scope, rate, topic.runtime.clock.monotonic_ms(), counters.messages_in, counters.bytes_in)


class DispatchThrottle:
    """Combined dispatch rate limits of one subscription. `own` is the limit of this subscription alone."""

    def __init__(
        self,
        subscription: SubscriptionBase,
        cursor: ManagedCursor,
        shared: list[DispatchRateLimit],
        own: DispatchRateLimit | None,
    ) -> None:
        self.own = own
        self._limits = [*shared, *([] if own is None else [own])]
        self._subscription = subscription
        self._cursor = cursor
        self._is_waiting = False
        self._max_messages = self._max_bytes = 0.0

    def allows_read(self) -> bool:
        """Return whether the limits allow reading entries now. If not, start a timer that resumes dispatch."""
        subscription = self._subscription
        now_ms = subscription.runtime.clock.monotonic_ms()
        counters = subscription.topic.counters
        allowances = []
        for limit in self._limits:
            limit.published(counters.messages_in, counters.bytes_in)
            allowances.append(limit.allowance(now_ms))
        self._max_messages = min(messages for messages, _ in allowances)
        self._max_bytes = min(size_bytes for _, size_bytes in allowances)
        if (self._max_messages > 0 and self._max_bytes > 0) or self._is_exempt():
            return True
        if not self._is_waiting:
            self._is_waiting = True
            self._count(allowances)
            wait_ms = max(MIN_WAIT_MS, *(limit.wait_ms() for limit in self._limits))
            subscription.runtime.call_later(wait_ms / 1000, self._waited)
        return False

    def used_up(self) -> list[tuple[DispatchRateLimit, str, float]]:
        """Return the exhausted limits, each with its unit ("messages" or "bytes") and the milliseconds until it allows
        more.
        """
        now_ms = self._subscription.runtime.clock.monotonic_ms()
        found: list[tuple[DispatchRateLimit, str, float]] = []
        for limit in self._limits:
            messages, size_bytes = limit.allowance(now_ms)
            if messages <= 0:
                found.append((limit, "messages", limit.wait_ms()))
            if size_bytes <= 0:
                found.append((limit, "bytes", limit.wait_ms()))
        return found

    def _count(self, allowances: list[tuple[float, float]]) -> None:
        events = self._subscription.counters.throttled_events
        for limit, (messages, size_bytes) in zip(self._limits, allowances, strict=True):
            if messages <= 0:
                events["Msg", limit.scope] += 1
            if size_bytes <= 0:
                events["Bytes", limit.scope] += 1

    def _waited(self) -> None:
        self._is_waiting = False
        self._subscription.wake()

    def _is_exempt(self) -> bool:
        """Return whether the limits do not apply because no consumer has a backlog
        (`dispatchThrottlingOnNonBacklogConsumerEnabled`).
        """
        config = self._subscription.runtime.config
        if config.dispatch_throttling_on_non_backlog_consumer_enabled:
            return False
        cursor = self._cursor
        behind = cursor.ledger.ledgers.entries_after(cursor.ledger.ledgers.previous_position(cursor.read_position))
        return behind <= config.managed_ledger_cursor_backlogged_threshold

    def cut(self, plan: ReadPlan, dispatcher: Dispatcher) -> None:
        """Limit the read plan to the allowed number of entries and bytes. Entries to redeliver that exceed this
        number are returned to the dispatcher.
        """
        if self._is_exempt():
            return
        plan.max_bytes = int(max(1, min(plan.max_bytes, self._max_bytes)))
        plan.max_entries = int(max(1, min(plan.max_entries, self._max_messages)))
        if plan.replay is not None and len(plan.replay) > plan.max_entries:
            left = plan.replay[plan.max_entries :]
            plan.replay = plan.replay[: plan.max_entries]
            dispatcher.give_back(ReadPlan(len(left), plan.max_bytes, left, plan.epoch))

    def sent(self, deliveries: list[Delivery]) -> None:
        config = self._subscription.runtime.config
        if self._is_exempt():
            return
        counts_entries = config.dispatch_throttling_on_batch_message_enabled
        messages = sum(len(each.entry_ids) if counts_entries else each.message_count for each in deliveries)
        size_bytes = sum(sum(map(len, each.payloads)) for each in deliveries)
        for limit in self._limits:
            limit.spend(messages, size_bytes)
