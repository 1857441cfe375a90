"""Keys in files of one directory: `NAME.public.pem` and `NAME.private.pem`. The files can be replaced at any time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.config import ConfigError
from pybroker.encryption.crypto_key_reader import CryptoKeyReader, PublicKey

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

PUBLIC_SUFFIX = ".public.pem"
PRIVATE_SUFFIX = ".private.pem"
MAX_NAME_BYTES = 200


class KeyDirectory(CryptoKeyReader):
    """The key reader `files`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def create(cls, config: BrokerConfig) -> KeyDirectory:
        if not config.crypto_key_directory:
            raise ConfigError(
                "cryptoKeyReaderFactoryClassName=files needs cryptoKeyDirectory, the directory with the keys"
            )
        directory = Path(config.crypto_key_directory)
        if not directory.is_dir():
            raise ConfigError(f"cryptoKeyDirectory: {str(directory)!r} is not a directory")
        return cls(directory)

    def public_key(self, name: str) -> PublicKey | None:
        pem = self._read(name, PUBLIC_SUFFIX)
        return None if pem is None else PublicKey(pem)

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes | None:
        return self._read(name, PRIVATE_SUFFIX)

    def _read(self, name: str, suffix: str) -> bytes | None:
        # A client chooses the name: it must not lead out of the directory.
        if not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME_BYTES or "/" in name or "\\" in name:
            return None
        try:
            return (self._directory / (name + suffix)).read_bytes()
        except FileNotFoundError:
            return None
