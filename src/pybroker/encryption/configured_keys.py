"""The key reader that `cryptoKeyReaderFactoryClassName` selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.auth.plugins import created, plugin
from pybroker.encryption.crypto_key_reader import CryptoKeyReader
from pybroker.encryption.key_directory import KeyDirectory

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

ENTRY_POINTS = "pybroker.crypto_key_readers"
KEY = "cryptoKeyReaderFactoryClassName"
FILES = "files"


def configured_key_reader(config: BrokerConfig) -> CryptoKeyReader | None:
    """Return the configured key reader; None if no class is configured. Raises ConfigError."""
    name = config.crypto_key_reader_factory_class_name
    if not name:
        return None
    if name == FILES:
        return KeyDirectory.create(config)
    kind = plugin(ENTRY_POINTS, name, KEY, CryptoKeyReader, FILES)  # type: ignore[type-abstract]
    return created(KEY, name, lambda: kind.create(config))
