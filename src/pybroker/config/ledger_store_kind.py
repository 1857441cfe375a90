"""Rule that selects the ledger store from the configuration. Pure."""

from __future__ import annotations

from enum import Enum

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError

PULSAR_STORAGE_CLASS = "org.apache.pulsar.broker.ManagedLedgerClientFactory"
"""The value of `managedLedgerStorageClassName` in Pulsar's broker.conf."""


class LedgerStoreKind(Enum):
    """The kind of store in which a broker stores messages."""

    LOCAL = "local"
    BOOKKEEPER = "bookkeeper"
    MEMORY = "memory"


def ledger_store_kind(config: BrokerConfig) -> LedgerStoreKind:
    """Return the kind in `ledgerStore`; if that is empty, the kind that other keys imply. Raises ConfigError for an
    unsupported `managedLedgerStorageClassName`, and for BookKeeper without `metadataStoreUrl`.
    """
    is_shared = bool(config.metadata_store_url.strip())
    if config.ledger_store:
        kind = LedgerStoreKind(config.ledger_store)
    elif config.managed_ledger_storage_class_name not in {"", PULSAR_STORAGE_CLASS}:
        raise ConfigError(
            f"managedLedgerStorageClassName={config.managed_ledger_storage_class_name} is not supported: "
            "remove this key, or set ledgerStore"
        )
    else:
        kind = LedgerStoreKind.BOOKKEEPER if is_shared else LedgerStoreKind.LOCAL
    if kind is LedgerStoreKind.BOOKKEEPER and not is_shared:
        raise ConfigError(
            "ledgerStore=bookkeeper needs metadataStoreUrl, because the metadata of ledgers is in ZooKeeper"
        )
    return kind
