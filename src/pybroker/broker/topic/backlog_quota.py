"""Measurement and enforcement of a topic's backlog quotas. The rules are in `backlog_rules.py`.

Only durable subscriptions count. A new producer is rejected if a quota is exceeded when it connects; connected
producers are disconnected by the periodic check.

With `preciseTimeBasedBacklogQuotaCheck`, the age of a backlog is the age of its oldest message, which is read.
Otherwise it is measured from the closing time of the ledger with the oldest message; messages in the open ledger have
no age, and whole ledgers are evicted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.topic import backlog_rules
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.errors import (
    BrokerError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    StoreError,
)
from pybroker.model.policies import BacklogQuota, BacklogQuotaPolicy
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase


MEASURED_WITHIN_S = 5.0
"""Maximum duration of a backlog measurement for a query."""
EVICTION = "the backlog quota was exceeded (consumer_backlog_eviction)"


def slowest_subscription(topic: Topic) -> Subscription | None:
    """Return the durable subscription with the lowest mark-delete position, or None."""
    return min(_durable(topic), key=lambda subscription: subscription.cursor.mark_delete_position, default=None)


def estimated_backlog_bytes(topic: TopicBase) -> int:
    """Return the approximate backlog of the slowest durable subscription in bytes, without reading entries."""
    slowest = slowest_subscription(cast("Topic", topic)) if topic.name.is_persistent else None
    if slowest is None:
        return 0
    cursor = slowest.cursor
    return backlog_rules.estimated_bytes_behind(cursor.ledger.ledgers, cursor.mark_delete_position)


def _durable(topic: Topic) -> list[Subscription]:
    return [each for each in topic.subscriptions.values() if each.is_durable and each.name != COMPACTION_SUBSCRIPTION]


async def require_within_quota(topic: Topic) -> None:
    """If an exceeded quota rejects new producers, raise the error that its policy defines."""
    found = await exceeded(topic)
    if found is not None:
        raise _refusal(topic, found.quota)


class Exceeded(NamedTuple):
    """An exceeded quota that rejects new producers. `subscription`: the slowest subscription; empty without one.
    `size_bytes`, `age_s`: size or age of the backlog; -1 if not measured.
    """

    quota: BacklogQuota
    is_of_size: bool
    subscription: str
    size_bytes: int
    age_s: int


async def exceeded(topic: Topic) -> Exceeded | None:
    """Return the exceeded quota that rejects new producers, or None. Raises StoreError."""
    if not topic.runtime.config.backlog_quota_check_enabled:
        return None
    policies, slowest = topic.policies, slowest_subscription(topic)
    name = "" if slowest is None else slowest.name
    quota = policies.size_quota
    if backlog_rules.blocks_producers(quota) and quota.limitSize >= 0:
        size_bytes = await _size_bytes(slowest)
        if backlog_rules.is_size_exceeded(quota, size_bytes):
            return Exceeded(quota, True, name, size_bytes, -1)
    quota = policies.age_quota
    if backlog_rules.blocks_producers(quota) and quota.limitTime > 0:
        oldest_ms, now_ms = await _oldest_ms(topic), topic.runtime.clock.wall_ms()
        if oldest_ms is not None and backlog_rules.is_age_exceeded(quota, oldest_ms, now_ms):
            return Exceeded(quota, False, name, -1, max(0, now_ms - oldest_ms) // 1000)
    return None


async def exceeded_if_known(topic: Topic) -> Exceeded | None:
    """Return the exceeded quota that rejects new producers, or None. Also None if the measurement fails or takes longer
    than `MEASURED_WITHIN_S` seconds.
    """
    try:
        async with asyncio.timeout(MEASURED_WITHIN_S):
            return await exceeded(topic)
    except (StoreError, TimeoutError):
        return None


def may_be_exceeded(topic: Topic) -> bool:
    size, age = topic.policies.size_quota, topic.policies.age_quota
    is_of_size = backlog_rules.blocks_producers(size) and size.limitSize >= 0
    return is_of_size or (backlog_rules.blocks_producers(age) and age.limitTime > 0)


def _refusal(topic: Topic, quota: BacklogQuota) -> BrokerError:
    text = f"Cannot create producer on topic with backlog quota exceeded: {topic.name}"
    if quota.policy == BacklogQuotaPolicy.FAIL:
        return ProducerBlockedQuotaExceededException(text)
    return ProducerBlockedQuotaExceededError(text)


async def enforce(topic: Topic) -> None:
    """Measure the backlog and apply the policies of exceeded quotas, size before age. Raises StoreError."""
    policies = topic.policies
    for subscription in list(topic.subscriptions.values()):
        with suppress(StoreError):  # The age stays unknown. Delivery from the subscription reports the error.
            await subscription.cursor.oldest.look()
    oldest_ms = await _oldest_ms(topic)
    now_ms = topic.runtime.clock.wall_ms()
    slowest = slowest_subscription(topic)
    if oldest_ms is None or slowest is None:
        topic.backlog_age_s, topic.backlog_age_subscription = backlog_rules.UNKNOWN_AGE_S, ""
    else:
        topic.backlog_age_s = max(0, now_ms - oldest_ms) // 1000
        topic.backlog_age_subscription = slowest.name
    size_quota = policies.size_quota
    if size_quota.limitSize >= 0 and backlog_rules.is_size_exceeded(size_quota, await _size_bytes(slowest)):
        if size_quota.policy == BacklogQuotaPolicy.EVICT:
            topic.counters.size_evictions += await _evict_by_size(topic, size_quota)
        elif backlog_rules.blocks_producers(size_quota):
            _disconnect_producers(topic, size_quota)
    elif backlog_rules.is_age_exceeded(policies.age_quota, oldest_ms, now_ms):
        if policies.age_quota.policy == BacklogQuotaPolicy.EVICT:
            topic.counters.age_evictions += await _evict_by_age(topic, policies.age_quota, now_ms)
        elif backlog_rules.blocks_producers(policies.age_quota):
            _disconnect_producers(topic, policies.age_quota)


async def _size_bytes(slowest: Subscription | None) -> int:
    return 0 if slowest is None else (await slowest.cursor.backlog()).size_bytes


async def _oldest_ms(topic: Topic) -> int | None:
    slowest = slowest_subscription(topic)
    if slowest is None:
        return None
    if topic.runtime.config.precise_time_based_backlog_quota_check:
        return await slowest.cursor.oldest_publish_time()
    return backlog_rules.closed_ms_of_oldest(topic.ledger.ledgers, slowest.cursor.mark_delete_position)


def _disconnect_producers(topic: Topic, quota: BacklogQuota) -> None:
    """Disconnect all producers. Their clients reconnect, and are rejected while the backlog is too large."""
    if topic.producers:
        logs.warning("producers.blocked", topic=topic.name, producers=len(topic.producers), policy=quota.policy)
    topic.disconnect_producers(_refusal(topic, quota))


async def _evict_by_size(topic: Topic, quota: BacklogQuota) -> int:
    evicted = 0
    while (slowest := slowest_subscription(topic)) is not None:
        behind = await slowest.cursor.backlog()
        count = backlog_rules.entries_to_evict(behind.size_bytes, quota.limitSize, behind.entries)
        skipped = await cursor_moves.skip(slowest, count, EVICTION) if count else 0
        if not skipped:
            break
        evicted += skipped
    return _evicted(topic, quota, evicted)


async def _evict_by_age(topic: Topic, quota: BacklogQuota, now_ms: int) -> int:
    evicted = 0
    for subscription in _durable(topic):
        if topic.runtime.config.precise_time_based_backlog_quota_check:
            evicted += await cursor_moves.expire(
                subscription, backlog_rules.eviction_deadline_ms(quota, now_ms), EVICTION
            )
            continue
        end = backlog_rules.end_of_ledgers_closed_before(
            topic.ledger.ledgers, subscription.cursor.mark_delete_position, now_ms - quota.limitTime * 1000
        )
        if end is not None:
            evicted += await cursor_moves.expire_to(subscription, end, EVICTION)
    return _evicted(topic, quota, evicted)


def _evicted(topic: Topic, quota: BacklogQuota, entries: int) -> int:
    if not entries:
        return 0
    logs.warning(
        "backlog.evicted", topic=topic.name, entries=entries, limit_bytes=quota.limitSize, limit_s=quota.limitTime
    )
    return 1
