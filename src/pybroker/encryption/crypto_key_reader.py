"""The interface of key readers, which return public and private keys by name, and the selection of the configured one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

NO_METADATA: Mapping[str, str] = MappingProxyType({})


class PublicKey(NamedTuple):
    """A public key for encryption."""

    pem: bytes
    """An RSA or EC public key, or an X.509 certificate with one, in PEM format."""
    metadata: Mapping[str, str] = NO_METADATA
    """Stored with each message, and given to the key reader that decrypts the message, for example a version of the
    key.
    """


class CryptoKeyReader(ABC):
    """Base class of key readers. The broker uses the subclass that `cryptoKeyReaderFactoryClassName` names. It calls
    the methods in a thread, one call at a time, so they may block for a moment.
    """

    @classmethod
    def create(cls, config: BrokerConfig) -> CryptoKeyReader:  # noqa: ARG003
        """Return the key reader of a broker. Raises ConfigError if its configuration is invalid."""
        return cls()

    @abstractmethod
    def public_key(self, name: str) -> PublicKey | None:
        """Return the current public key with this name; None if it is unknown. `name` is text from a client."""

    @abstractmethod
    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes | None:
        """Return the RSA or EC private key with this name in PEM format; None if it is unknown. `name` and `metadata` are from
        a message, so they may be any text.
        """
