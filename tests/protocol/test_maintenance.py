"""Retention, expiry and backlog quotas on live topics, in a process with a wall clock that the tests move."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.topic.backlog_quota import require_within_quota
from pybroker.broker.topic.topic import Topic
from pybroker.errors import (
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    StoreError,
    TopicTerminatedError,
)
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.managed_ledger.shared_resources import LedgerLimits
from pybroker.model.position import EARLIEST

TOPIC = "persistent://public/default/t"
NAMESPACE_PATH = "/namespaces/public/default"
TOPIC_PATH = "/persistent/public/default/t"
MINUTE_MS = 60_000
HOLD, FAIL, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
FIVE_ENTRIES = LedgerLimits(max_entries_per_ledger=5, min_rollover_ms=0)


async def set_quota(broker: MemoryBroker, path: str, policy: str, **limits: int) -> None:
    kind = "message_age" if "limitTime" in limits else "destination_storage"
    answer = await broker.rest(
        "POST", f"{path}/backlogQuota?backlogQuotaType={kind}", {"policy": policy, "limitSize": -1, **limits}
    )
    assert answer.status == 204


async def publish_into_ledgers(broker: MemoryBroker, topic: Topic, count: int) -> None:
    """One message after the other, so that ledgers are closed in between."""
    for _ in range(count):
        await broker.publish(topic, 1)
    await broker.until(lambda: len(topic.ledger.ledgers.open_ledger_ids()) <= 2)


# --- policies ------------------------------------------------------------------------------------------------------------


async def test_retention_acts_on_a_loaded_topic_when_a_policy_is_set_at_any_level() -> None:
    async with memory_broker(default_retention_time_in_minutes=1, default_retention_size_in_mb=2) as broker:
        topic = await broker.topic(TOPIC)
        assert topic.ledger.retention == RetentionLimits(MINUTE_MS, 2 << 20)
        by_namespace = {"retentionTimeInMinutes": 3, "retentionSizeInMB": -1}
        await broker.rest("POST", f"{NAMESPACE_PATH}/retention", by_namespace)
        await broker.until(lambda: topic.ledger.retention == RetentionLimits(3 * MINUTE_MS, -1))
        by_topic = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 5}
        await broker.rest("POST", f"{TOPIC_PATH}/retention", by_topic)
        assert topic.ledger.retention == RetentionLimits(-1, 5 << 20)
        await broker.rest("DELETE", f"{TOPIC_PATH}/policies")
        assert topic.ledger.retention == RetentionLimits(3 * MINUTE_MS, -1)
        await broker.rest("DELETE", f"{NAMESPACE_PATH}/retention")
        await broker.until(lambda: topic.ledger.retention == RetentionLimits(MINUTE_MS, 2 << 20))


async def test_a_topic_that_is_loaded_again_has_its_own_policies(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await broker.rest("POST", f"{TOPIC_PATH}/messageTTL?messageTTL=60")
    await broker.service.topics.unload(topic)
    assert (await broker.topic(TOPIC)).policies.message_ttl_s == 60


async def test_a_topic_of_the_name_of_a_deleted_one_has_nothing_set(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await broker.rest("POST", f"{TOPIC_PATH}/messageTTL?messageTTL=60")
    await broker.service.topics.delete(topic.name)
    assert (await broker.topic(TOPIC)).policies.message_ttl_s == 0


async def test_without_topic_level_policies_those_that_are_stored_do_not_count() -> None:
    async with memory_broker(topic_level_policies_enabled=False, ttl_duration_default_in_seconds=9) as broker:
        topic = await broker.topic(TOPIC)

        def set_ttl(policies: object) -> None:
            policies.messageTTLInSeconds = 60  # type: ignore[attr-defined]

        await broker.service.resources.update_topic_policies(topic.name, set_ttl)
        assert topic.policies.message_ttl_s == 9
        assert (await broker.rest("GET", f"{TOPIC_PATH}/messageTTL")).status == 405


# --- retention -----------------------------------------------------------------------------------------------------------


async def test_what_is_acknowledged_goes_by_whole_ledgers_once_retention_lets_it() -> None:
    async with memory_broker(
        FIVE_ENTRIES, default_retention_time_in_minutes=10, default_retention_size_in_mb=-1
    ) as broker:
        topic = await broker.topic(TOPIC)
        peer = RecordingPeer()
        consumer = await broker.consumer(topic, "s", peer)
        await publish_into_ledgers(broker, topic, 12)
        await broker.until(lambda: len(peer.delivered) == 12)
        acknowledge(consumer, peer.delivered)
        await broker.service.maintenance.check_retention()
        assert topic.ledger.ledgers.entry_count == 12
        broker.clock.now_ms += 10 * MINUTE_MS
        await broker.service.maintenance.check_retention()
        assert topic.ledger.ledgers.entry_count == 2


# --- expiry --------------------------------------------------------------------------------------------------------------


async def test_what_is_older_than_its_time_to_live_expires_also_when_it_was_delivered(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await broker.rest("POST", f"{NAMESPACE_PATH}/messageTTL", 60)
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    await broker.publish(topic, 3)
    broker.clock.now_ms += 30_000
    await broker.publish(topic, 2)
    await broker.until(lambda: len(peer.delivered) == 5)
    broker.clock.now_ms += 30_001
    await broker.service.maintenance.check_expiry()
    subscription = topic.subscriptions["s"]
    assert subscription.cursor.backlog_entries == 2
    assert subscription.unacked_messages == consumer.state.unacked_messages == 2
    assert subscription.counters.expired_entries == 3
    assert subscription.counters.last_expired_ms == broker.clock.now_ms
    await broker.service.maintenance.check_expiry()
    assert subscription.counters.expired_entries == 3
    subscription.redeliver(consumer, None, 0)
    await broker.until(lambda: len(peer.delivered) == 7)
    await broker.quiet(topic)
    assert peer.delivered[5:] == peer.delivered[3:5]


async def test_a_topic_whose_own_time_to_live_is_0_keeps_everything(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    await topic.subscription("s", True, True, {})
    await broker.rest("POST", f"{NAMESPACE_PATH}/messageTTL", 60)
    await broker.rest("POST", f"{TOPIC_PATH}/messageTTL?messageTTL=0")
    await broker.publish(topic, 3)
    broker.clock.now_ms += 100 * MINUTE_MS
    await broker.service.maintenance.check_expiry()
    assert topic.subscriptions["s"].cursor.backlog_entries == 3


# --- backlog quotas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "error"), [(HOLD, ProducerBlockedQuotaExceededError), (FAIL, ProducerBlockedQuotaExceededException)]
)
async def test_producers_are_closed_and_refused_until_the_backlog_is_small_again(
    broker: MemoryBroker, policy: str, error: type[Exception]
) -> None:
    topic = await broker.topic(TOPIC)
    await topic.subscription("s", True, True, {})
    await broker.publish(topic, 5)
    peer = RecordingPeer()
    broker.producer(topic, peer)
    await set_quota(broker, NAMESPACE_PATH, policy, limitSize=300)
    assert not peer.closed_producers
    await broker.service.maintenance.check_backlog_quotas()
    assert peer.closed_producers == [1]
    assert not topic.producers
    with pytest.raises(error):
        await require_within_quota(topic)
    await cursor_moves.skip(topic.subscriptions["s"], 3)
    await require_within_quota(topic)


async def test_a_topic_without_durable_subscriptions_has_no_backlog(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    topic.registry.non_durable("reader", EARLIEST)
    await broker.publish(topic, 5)
    await set_quota(broker, NAMESPACE_PATH, FAIL, limitSize=1)
    await require_within_quota(topic)


async def test_every_subscription_that_is_too_far_behind_loses_its_oldest_messages(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    for name in ("a", "b"):
        await topic.subscription(name, True, True, {})
    last = (await broker.publish(topic, 20))[-1]
    await topic.subscription("caught-up", False, True, {})
    entry_bytes = topic.ledger.size_bytes // 20
    producer = RecordingPeer()
    broker.producer(topic, producer)
    await set_quota(broker, TOPIC_PATH, EVICT, limitSize=10 * entry_bytes)
    await broker.service.maintenance.check_backlog_quotas()
    for name in ("a", "b"):
        assert topic.subscriptions[name].cursor.backlog_entries == 9
    assert topic.subscriptions["caught-up"].cursor.mark_delete_position == last
    assert (topic.counters.size_evictions, topic.counters.age_evictions) == (1, 0)
    assert not producer.closed_producers
    await broker.service.maintenance.check_backlog_quotas()
    assert topic.counters.size_evictions == 1


async def test_an_age_is_that_of_the_oldest_message_when_it_is_read() -> None:
    async with memory_broker(precise_time_based_backlog_quota_check=True) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await broker.publish(topic, 2)
        await set_quota(broker, NAMESPACE_PATH, HOLD, limitTime=60)
        broker.clock.now_ms += 60_000
        await require_within_quota(topic)
        broker.clock.now_ms += 1
        with pytest.raises(ProducerBlockedQuotaExceededError):
            await require_within_quota(topic)
        await broker.service.maintenance.check_backlog_quotas()
        assert topic.backlog_age_s == 60
        await cursor_moves.skip_all(topic.subscriptions["s"])
        await broker.service.maintenance.check_backlog_quotas()
        assert topic.backlog_age_s == -1


async def test_what_is_too_old_is_evicted_message_by_message_when_it_is_read() -> None:
    async with memory_broker(precise_time_based_backlog_quota_check=True) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await set_quota(broker, NAMESPACE_PATH, EVICT, limitTime=100)
        await broker.publish(topic, 2)
        broker.clock.now_ms += 5_000
        await broker.publish(topic, 3)
        broker.clock.now_ms += 50_000
        await broker.publish(topic, 4)
        broker.clock.now_ms += 45_001
        await broker.service.maintenance.check_backlog_quotas()
        assert topic.subscriptions["s"].cursor.backlog_entries == 4
        assert topic.counters.age_evictions == 1


async def test_without_reading_the_age_counts_from_when_a_ledger_was_closed_and_whole_ledgers_go() -> None:
    async with memory_broker(FIVE_ENTRIES) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await set_quota(broker, NAMESPACE_PATH, EVICT, limitTime=60)
        await publish_into_ledgers(broker, topic, 12)
        broker.clock.now_ms += 60_001
        await broker.service.maintenance.check_backlog_quotas()
        assert topic.backlog_age_s == 60
        assert topic.subscriptions["s"].cursor.backlog_entries == 2
        await broker.service.maintenance.check_backlog_quotas()
        assert topic.backlog_age_s == -1
        assert topic.counters.age_evictions == 1


async def test_the_brokers_own_quota_is_in_bytes_or_else_in_gigabytes() -> None:
    async with memory_broker(backlog_quota_default_limit_gb=0.5, backlog_quota_default_limit_second=7) as broker:
        policies = (await broker.topic(TOPIC)).policies
        assert policies.size_quota.limitSize == 1 << 29
        assert policies.age_quota.limitTime == 7
    async with memory_broker(backlog_quota_default_limit_gb=0.5, backlog_quota_default_limit_bytes=9) as broker:
        assert (await broker.topic(TOPIC)).policies.size_quota.limitSize == 9


async def test_what_fails_in_one_topic_stops_neither_the_others_nor_the_check(broker: MemoryBroker) -> None:
    class Failing(Topic):
        @property
        def policies(self) -> object:  # type: ignore[override]
            raise self.failure

        failure: Exception

    topics = [await broker.topic(f"{TOPIC}-{index}") for index in range(3)]
    for topic in topics:
        await topic.subscription("s", True, True, {})
        await broker.publish(topic, 1)
    await broker.rest("POST", f"{NAMESPACE_PATH}/messageTTL", 1)
    await broker.until(lambda: not len(broker.service.broker_context.tasks))
    broker.clock.now_ms += 1001
    for topic, failure in zip(topics, (StoreError("a sick disk"), ValueError("a bug")), strict=False):
        topic.__class__ = Failing
        topic.failure = failure  # type: ignore[attr-defined]
    await broker.service.maintenance.check_expiry()
    assert topics[2].subscriptions["s"].cursor.backlog_entries == 0
    assert [topic.is_fenced for topic in topics] == [False, True, False]
    assert broker.service.runtime.stats.bugs == 1


# --- moving cursors and ending topics ------------------------------------------------------------------------------------


async def test_a_reset_disconnects_the_consumers_and_delivers_again_to_those_that_come(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    before = RecordingPeer()
    consumer = await broker.consumer(topic, "s", before)
    positions = await broker.publish(topic, 5)
    await broker.until(lambda: len(before.delivered) == 5)
    acknowledge(consumer, before.delivered)
    await cursor_moves.reset(topic.subscriptions["s"], positions[2])
    assert before.closed_consumers == [1]
    after = RecordingPeer()
    await broker.consumer(topic, "s", after)
    await broker.until(lambda: len(after.delivered) == 3)
    assert after.delivered == positions[2:]


async def test_nobody_gets_in_while_the_cursor_is_being_reset(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    subscription = await topic.subscription("s", True, True, {})
    [position] = await broker.publish(topic, 1)
    async with topic.subscription_lock("s", "being moved"):
        subscribing = asyncio.ensure_future(broker.consumer(topic, "s", RecordingPeer()))
        await broker.until(lambda: broker.service.broker_context.waiting.subscriptions.count == 1)
        await cursor_moves.reset(subscription, position)
        assert not subscription.consumers
    await subscribing
    assert len(subscription.consumers) == 1


async def test_a_readers_subscription_outlives_a_reset(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    [position] = await broker.publish(topic, 1)
    subscription = topic.registry.non_durable("s", position)
    broker.consumer_on(subscription, RecordingPeer(), "Exclusive")
    await cursor_moves.reset(subscription, EARLIEST)
    assert topic.subscriptions["s"] is subscription
    assert subscription.cursor.backlog_entries == 1


async def test_what_is_skipped_is_not_waited_for(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    await broker.publish(topic, 5)
    await broker.until(lambda: len(peer.delivered) == 5)
    assert await cursor_moves.skip(topic.subscriptions["s"], 2) == 2
    assert consumer.state.unacked_messages == 3
    await cursor_moves.skip_all(topic.subscriptions["s"])
    assert consumer.state.unacked_messages == 0


async def test_a_terminated_topic_refuses_messages_and_tells_its_consumers_once_at_the_end(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    peer, caught_up = RecordingPeer(), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    positions = await broker.publish(topic, 2)
    producing = RecordingPeer()
    broker.producer(topic, producing)
    await broker.until(lambda: len(peer.delivered) == 2)
    assert await topic.terminate() == await topic.terminate() == positions[-1]
    assert producing.closed_producers == [1]
    with pytest.raises(TopicTerminatedError):
        broker.producer(topic, producing)
    assert not peer.at_end
    acknowledge(consumer, positions)
    consumer.flow(1)
    assert peer.at_end == [1]
    topic.registry.non_durable("reader", positions[-1])
    broker.consumer_on(topic.subscriptions["reader"], caught_up, "Exclusive")
    assert caught_up.at_end == [1]


async def test_truncating_drops_the_closed_ledgers_and_skips_the_rest() -> None:
    async with memory_broker(
        FIVE_ENTRIES, default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1
    ) as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await publish_into_ledgers(broker, topic, 12)
        await topic.truncate()
        assert topic.ledger.ledgers.entry_count == 2
        assert topic.subscriptions["s"].cursor.backlog_entries == 0
