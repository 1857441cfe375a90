"""Application of configuration changes to objects that hold copies of settings, such as dispatchers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pybroker.broker.entry_filters import check_names
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.policies.policy_changes import PolicyChanges
    from pybroker.cluster.dynamic_configuration import DynamicConfiguration
    from pybroker.config import KeyInfo, Value

_MIB = 1024 * 1024


class LiveSettings:
    """Listener for changes of dynamic configuration keys."""

    def __init__(
        self, dynamic: DynamicConfiguration, broker_context: BrokerContext, policy_changes: PolicyChanges
    ) -> None:
        self._broker_context = broker_context
        self._policy_changes = policy_changes
        dynamic.check("entryFilterNames", _check_filters)
        dynamic.listen(self._changed)

    def _changed(self, key: KeyInfo) -> None:
        broker_context, config = self._broker_context, self._broker_context.runtime.config
        match key.key:
            case "logLevel":
                logs.set_level(config.log_level)
            case "slowOperationThresholdMs":
                broker_context.runtime.slow_operations.set_threshold(config.slow_operation_threshold_ms)
            case "defaultNumberOfNamespaceBundles":
                broker_context.resources.default_bundle_count = config.default_number_of_namespace_bundles
            case "managedLedgerCacheSizeMB":
                broker_context.ledgers.resources.resize_cache(config.managed_ledger_cache_size_mb * _MIB)
            case "maxMessagePublishBufferSizeInMB":
                bound_bytes = config.max_message_publish_buffer_size_in_mb * _MIB
                broker_context.runtime.memory.publishes.limit_to(bound_bytes)
            case "managedLedgerInactiveLedgerRolloverTimeSeconds":
                inactive_ms = config.managed_ledger_inactive_ledger_rollover_time_seconds * 1000
                resources = broker_context.ledgers.resources
                resources.limits = replace(resources.limits, inactive_rollover_ms=inactive_ms)
            case "entryFilterNames":
                broker_context.entry_filters.configure(config.entry_filter_names)
                self._policy_changes.defaults_changed()
            case _:
                self._policy_changes.defaults_changed()


def _check_filters(names: Value) -> None:
    check_names(cast("tuple[str, ...]", names))
