"""Periodic maintenance of all topics, such as retention and message expiry.

Further checks are unused subscriptions, inactive topics, backlog quotas, and compaction. A failure in one topic is
logged and affects neither other topics nor later checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.topic import backlog_quota
from pybroker.broker.topic.subscription_registry import BEING_DELETED
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.errors import StoreError, SubscriptionNotFound, TooManyRequests, TopicFenced
from pybroker.model.counters import Buckets
from pybroker.runtime import logs
from pybroker.runtime.time_slices import in_slices

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.broker.maintenance.inactive_topics import InactiveTopics
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.managed_ledger.factory import ManagedLedgerFactory
    from pybroker.runtime.runtime import Runtime

SLICE_MS = 1.0
FULL_DISK_CHECK_S = 1.0
"""Interval between searches for deletable ledgers while the disk is full."""
LEAST_CACHE_AGE_S = 1.0
_MS_PER_MINUTE = 60_000
CHECK_DURATION_BOUNDS_S = (5.0, 10.0, 30.0, 60.0, 300.0)

_TopicCheck = Callable[["Topic"], Awaitable[None]]
_Topic = TypeVar("_Topic", bound="TopicBase")


class Maintenance:
    """Scheduler of the periodic checks."""

    def __init__(
        self,
        runtime: Runtime,
        ledgers: ManagedLedgerFactory,
        loaded: LoadedTopics,
        inactive_topics: InactiveTopics,
    ) -> None:
        self._runtime = runtime
        self._ledgers = ledgers
        self._store = ledgers.store
        self._loaded = loaded
        self._inactive_topics = inactive_topics
        self.quota_check_duration_s = Buckets(CHECK_DURATION_BOUNDS_S)

    async def run(self) -> None:
        config = self._runtime.config
        async with asyncio.TaskGroup() as group:
            retention_s = config.retention_check_interval_in_seconds
            group.create_task(self._every(retention_s, self.check_retention), name="retention")
            group.create_task(self._every(FULL_DISK_CHECK_S, self.check_full_disk), name="full disk")
            expiry_s = config.message_expiry_check_interval_in_minutes * 60
            group.create_task(self._every(expiry_s, self.check_expiry), name="expiry")
            unused_s = config.subscription_expiry_check_interval_in_minutes * 60
            group.create_task(self._every(unused_s, self.check_unused_subscriptions), name="unused subscriptions")
            group.create_task(self._check_inactive_topics(), name="inactive topics")
            group.create_task(self._evict_old_entries(), name="entry cache")
            compaction_s = config.broker_service_compaction_monitor_interval_in_seconds
            group.create_task(self._every(compaction_s, self.check_compaction), name="compaction")
            snapshots_s = config.broker_deduplication_snapshot_frequency_in_seconds
            if snapshots_s > 0:
                group.create_task(self._every(snapshots_s, self.check_deduplication), name="deduplication")
            if config.backlog_quota_check_enabled:
                quota_s = config.backlog_quota_check_interval_in_seconds
                group.create_task(self._every(quota_s, self.check_backlog_quotas), name="backlog quotas")

    async def _every(self, interval_s: float, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._runtime.sleep(interval_s)
            await check()

    async def _evict_old_entries(self) -> None:
        while True:
            age_ms = self._runtime.config.managed_ledger_cache_eviction_time_threshold_millis
            await self._runtime.sleep(max(LEAST_CACHE_AGE_S, age_ms / 1000))
            await in_slices(self._ledgers.resources.evict_old_cached(), self._runtime.clock)

    async def check_retention(self) -> None:
        await self._for_each_topic("retention", _trim)

    async def check_full_disk(self) -> None:
        """If the disk is full, run the retention check now, which deletes acknowledged ledgers. Called every
        FULL_DISK_CHECK_S seconds.
        """
        if self._store.refusal() is not None:
            await self.check_retention()

    async def check_expiry(self) -> None:
        await self._for_each_topic("expiry", _expire)

    async def check_unused_subscriptions(self) -> None:
        await self._for_each_topic("subscription_expiry", _delete_unused)

    async def _check_inactive_topics(self) -> None:
        while True:
            await self._runtime.sleep(self._runtime.config.broker_delete_inactive_topics_frequency_seconds)
            await self.check_inactive_topics()

    async def check_inactive_topics(self) -> None:
        await self._for_each(self._loaded.all(), "inactive_topic_deletion", self._inactive_topics.check)

    async def check_compaction(self) -> None:
        await self._for_each_topic("compaction", _compact_if_due)

    async def check_deduplication(self) -> None:
        await self._for_each_topic("deduplication", _check_deduplication)

    async def check_backlog_quotas(self) -> None:
        clock = self._runtime.clock
        started_ms = clock.monotonic_ms()
        await self._for_each_topic("backlog_quota", backlog_quota.enforce)
        self.quota_check_duration_s.add((clock.monotonic_ms() - started_ms) / 1000)

    async def _for_each_topic(self, what: str, check: _TopicCheck) -> None:
        await self._for_each(list(self._loaded.persistent.values()), what, check)

    async def _for_each(self, topics: Sequence[_Topic], what: str, check: Callable[[_Topic], Awaitable[None]]) -> None:
        clock = self._runtime.clock
        slice_ends_ms = clock.monotonic_ms() + SLICE_MS
        for topic in topics:
            if clock.monotonic_ms() >= slice_ends_ms:
                await asyncio.sleep(0)
                slice_ends_ms = clock.monotonic_ms() + SLICE_MS
            if topic.is_fenced:
                continue
            try:
                await check(topic)
            except (SubscriptionNotFound, TooManyRequests, TopicFenced) as error:
                # The next check repeats it.
                logs.info("maintenance.deferred", check=what, topic=topic.name, reason=str(error))
            except StoreError as error:
                logs.error("maintenance.failed", check=what, topic=topic.name, error=str(error))
            except Exception as bug:  # noqa: BLE001  (a fault boundary)
                # The bug concerns one topic. The check continues with the next topic.
                logs.error("maintenance.failed", check=what, topic=topic.name, exc_info=bug)
                topic.fail(bug)


async def _trim(topic: Topic) -> None:
    await topic.ledger.trim()


async def _compact_if_due(topic: Topic) -> None:
    await topic.compaction.start_if_due()


async def _check_deduplication(topic: Topic) -> None:
    await topic.deduplication.check()


async def _expire(topic: Topic) -> None:
    ttl_s = topic.policies.message_ttl_s
    if ttl_s > 0:
        before_ms = topic.runtime.clock.wall_ms() - ttl_s * 1000
        for subscription in list(topic.subscriptions.values()):
            if subscription.name != COMPACTION_SUBSCRIPTION:  # Its position is the end of the last compaction.
                with suppress(SubscriptionNotFound):  # The other subscriptions are still checked.
                    await cursor_moves.expire(
                        subscription, before_ms, "their time to live was over (policy messageTTL)"
                    )


async def _delete_unused(topic: Topic) -> None:
    """Delete subscriptions that have been unused for the configured time, counted from the topic's load."""
    limit_minutes = topic.policies.subscription_expiration_minutes
    if limit_minutes <= 0:
        return
    deadline_ms = topic.runtime.clock.wall_ms() - limit_minutes * _MS_PER_MINUTE
    for subscription in list(topic.subscriptions.values()):
        if not _is_unused(subscription, deadline_ms):
            continue
        async with topic.subscription_lock(subscription.name, BEING_DELETED):
            # No consumer connected during the wait for the lock.
            if topic.subscriptions.get(subscription.name) is subscription and _is_unused(subscription, deadline_ms):
                logs.info(
                    "subscription.expired", topic=topic.name, subscription=subscription.name, minutes=limit_minutes
                )
                await topic.delete_subscription(subscription)


def _is_unused(subscription: Subscription, deadline_ms: int) -> bool:
    is_in_use = subscription.consumers or subscription.is_resetting or not subscription.is_durable
    is_compactors = subscription.name == COMPACTION_SUBSCRIPTION
    return not is_in_use and not is_compactors and subscription.last_active_ms < deadline_ms
