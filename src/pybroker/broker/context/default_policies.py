"""Policies from the broker configuration, which apply where neither topic nor namespace policies are set. Pure.

Policies that this broker accepts without implementing them have Pulsar's default values.
"""

from __future__ import annotations

from pybroker.config.broker_config import BrokerConfig
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicDeleteMode,
    InactiveTopicPolicies,
    PersistencePolicies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
)

_BYTES_PER_GB = 1024**3


def default_policies(config: BrokerConfig) -> EffectivePolicies:
    quota = _backlog_quota(config)
    return EffectivePolicies(
        retention=RetentionPolicies(config.default_retention_time_in_minutes, config.default_retention_size_in_mb),
        message_ttl_s=config.ttl_duration_default_in_seconds,
        size_quota=quota,
        age_quota=quota,
        dispatch_rate=DispatchRate(
            config.dispatch_throttling_rate_per_topic_in_msg,
            config.dispatch_throttling_rate_per_topic_in_byte,
            config.dispatch_throttling_rate_relative_to_publish_rate,
            1,
        ),
        subscription_dispatch_rate=DispatchRate(
            config.dispatch_throttling_rate_per_subscription_in_msg,
            config.dispatch_throttling_rate_per_subscription_in_byte,
            config.dispatch_throttling_rate_relative_to_publish_rate,
            1,
        ),
        replicator_dispatch_rate=DispatchRate(ratePeriodInSecond=1),
        publish_rate=PublishRate(
            config.max_publish_rate_per_topic_in_messages, config.max_publish_rate_per_topic_in_bytes
        ),
        subscribe_rate=SubscribeRate(
            config.subscribe_throttling_rate_per_consumer, config.subscribe_rate_period_per_consumer_in_second
        ),
        subscription_expiration_minutes=config.subscription_expiration_time_minutes,
        delayed_delivery=DelayedDeliveryPolicies(
            config.delayed_delivery_enabled,
            config.delayed_delivery_tick_time_millis,
            config.delayed_delivery_max_delay_in_millis,
        ),
        auto_subscription_creation=AutoSubscriptionCreationOverride(config.allow_auto_subscription_creation),
        max_producers=config.max_producers_per_topic,
        max_consumers=config.max_consumers_per_topic,
        max_consumers_per_subscription=config.max_consumers_per_subscription,
        max_subscriptions=config.max_subscriptions_per_topic,
        max_unacked_per_consumer=config.max_unacked_messages_per_consumer,
        max_unacked_per_subscription=config.max_unacked_messages_per_subscription,
        subscription_types_enabled=frozenset(config.subscription_types_enabled),
        encryption_required=config.encryption_require_on_producer,
        dispatcher_pause_on_ack_state=config.dispatcher_pause_on_ack_state_persistent_enabled,
        inactive_topics=InactiveTopicPolicies(
            InactiveTopicDeleteMode(config.broker_delete_inactive_topics_mode),
            _inactive_s(config),
            config.broker_delete_inactive_topics_enabled,
        ),
        schema_strategy=config.schema_compatibility_strategy.replace("UNDEFINED", "FULL"),
        schema_validation_enforced=config.is_schema_validation_enforced,
        is_allow_auto_update_schema=config.is_allow_auto_update_schema_enabled,
        compaction_threshold=config.broker_service_compaction_threshold_in_bytes,
        deduplication=config.broker_deduplication_enabled,
        deduplication_snapshot_interval_s=config.broker_deduplication_snapshot_interval_seconds,
        entry_filter_names=tuple(config.entry_filter_names),
        persistence=PersistencePolicies(1, 1, 1, 1000 / max(1, config.cursor_flush_interval_ms)),
    )


def _inactive_s(config: BrokerConfig) -> int:
    limit_s = config.broker_delete_inactive_topics_max_inactive_duration_seconds
    return config.broker_delete_inactive_topics_frequency_seconds if limit_s is None else limit_s


def _backlog_quota(config: BrokerConfig) -> BacklogQuota:
    limit_bytes = config.backlog_quota_default_limit_bytes
    if limit_bytes < 0 and config.backlog_quota_default_limit_gb > 0:
        limit_bytes = int(config.backlog_quota_default_limit_gb * _BYTES_PER_GB)
    return BacklogQuota(
        policy=config.backlog_quota_default_retention_policy,
        limitSize=limit_bytes,
        limitTime=config.backlog_quota_default_limit_second,
    )
