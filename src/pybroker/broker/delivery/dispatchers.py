"""Creation of the dispatcher for a subscription type."""

from __future__ import annotations

from pybroker.config import BrokerConfig
from pybroker.dispatch.dispatcher import Dispatcher
from pybroker.dispatch.failover import FailoverDispatcher
from pybroker.dispatch.key_shared_classic import ClassicKeySharedDispatcher
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher, KeySharedSettings
from pybroker.dispatch.non_persistent_dispatcher import (
    ExclusiveNonPersistentDispatcher,
    FailoverNonPersistentDispatcher,
    KeySharedNonPersistentDispatcher,
    NonPersistentDispatcher,
    SharedNonPersistentDispatcher,
)
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher
from pybroker.model.names import TopicName


def new_dispatcher(
    config: BrokerConfig, kind: str, redelivery_counts: RedeliveryCounts, topic: TopicName, max_unacked_messages: int
) -> Dispatcher:
    """Create the dispatcher of a persistent subscription of the type `kind`. `max_unacked_messages`: 0 for no limit."""
    max_entries, max_bytes = config.dispatcher_max_read_batch_size, config.dispatcher_max_read_size_bytes
    if kind == ExclusiveDispatcher.kind:
        return ExclusiveDispatcher(redelivery_counts, max_entries, max_bytes, config.precise_dispatcher_flow_control)
    if kind == FailoverDispatcher.kind:
        return FailoverDispatcher(
            redelivery_counts,
            max_entries,
            max_bytes,
            str(topic),
            _failover_partition(config, topic),
            config.precise_dispatcher_flow_control,
        )
    if kind == SharedDispatcher.kind:
        return SharedDispatcher(
            redelivery_counts,
            max_entries,
            max_bytes,
            config.dispatcher_max_round_robin_batch_size,
            max_unacked_messages,
            config.key_shared_look_ahead_max_bytes_per_subscription,
        )
    assert kind == KeySharedDispatcher.kind, kind
    is_classic = config.subscription_key_shared_use_classic_persistent_implementation
    dispatcher_class = ClassicKeySharedDispatcher if is_classic else KeySharedDispatcher
    return dispatcher_class(
        redelivery_counts, max_entries, max_bytes, max_unacked_messages, _key_shared_settings(config)
    )


def new_non_persistent_dispatcher(config: BrokerConfig, kind: str, topic: TopicName) -> NonPersistentDispatcher:
    if kind == ExclusiveNonPersistentDispatcher.kind:
        return ExclusiveNonPersistentDispatcher()
    if kind == FailoverNonPersistentDispatcher.kind:
        return FailoverNonPersistentDispatcher(str(topic), _failover_partition(config, topic))
    if kind == SharedNonPersistentDispatcher.kind:
        return SharedNonPersistentDispatcher()
    assert kind == KeySharedNonPersistentDispatcher.kind, kind
    return KeySharedNonPersistentDispatcher(_key_shared_settings(config))


def _failover_partition(config: BrokerConfig, topic: TopicName) -> int | None:
    """Return the partition index that determines the active consumer; None if a consistent hash ring determines it."""
    index = -1 if config.active_consumer_failover_consistent_hashing else topic.partition_index
    return index if index >= 0 else None


def _key_shared_settings(config: BrokerConfig) -> KeySharedSettings:
    use_ring = config.subscription_key_shared_use_consistent_hashing
    return KeySharedSettings(
        config.subscription_key_shared_consistent_hashing_replica_points if use_ring else 0,
        config.key_shared_look_ahead_msg_in_replay_threshold_per_consumer,
        config.key_shared_look_ahead_msg_in_replay_threshold_per_subscription,
        config.key_shared_look_ahead_max_bytes_per_subscription,
    )
