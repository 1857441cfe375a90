"""Encryption and decryption of messages by the client, with the keys of a key reader.

The key reader and its keys are used in a thread of the caller's executor, and AES on the event loop. Data keys of received
messages are cached, so only the first message of each data key waits for the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker.encryption.encryption_errors import CannotDecrypt, CannotEncrypt
from pybroker.encryption.payload_encryption import MAX_KEYS_TRIED, Decryptor, PayloadEncryptor
from pybroker.runtime import logs

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from pybroker.encryption.crypto_key_reader import CryptoKeyReader, PublicKey
    from pybroker.wire import pulsar_api_pb2 as pb

KEY_TIMEOUT_S = 6.0
"""How long a new producer waits for its public keys."""
LOG_PERIOD_S = 60.0
"""Failures of the key reader are logged at most once in this time."""


class MessageCrypto:
    """The keys of the producers and consumers of one or more clients."""

    def __init__(self, keys: CryptoKeyReader, thread: Executor) -> None:
        """`thread`: an executor of one thread."""
        self._keys = keys
        self._decryptor = Decryptor(keys.private_key)
        self._thread = thread
        self._logged_s: float | None = None

    # --- producers

    async def encryptor(self, names: Sequence[str]) -> PayloadEncryptor:
        """Return an encryptor with a new data key for the public keys with these names. Raises CannotEncrypt."""
        try:
            async with asyncio.timeout(KEY_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._new_encryptor, names)
        except TimeoutError:
            raise CannotEncrypt(
                f"the key reader did not return the public keys {', '.join(names)} within {KEY_TIMEOUT_S:g} s"
            ) from None

    def _new_encryptor(self, names: Sequence[str]) -> PayloadEncryptor:
        return PayloadEncryptor({name: self._public_key(name) for name in names})

    def _public_key(self, name: str) -> PublicKey:
        try:
            key = self._keys.public_key(name)
        except Exception as error:
            raise CannotEncrypt(f"the key reader failed for the public key {name!r}: {type(error).__name__}") from error
        if key is None:
            raise CannotEncrypt(f"the key reader has no public key {name!r}")
        return key

    # --- consumers

    def cached(self, metadata: pb.MessageMetadata) -> list[AESGCM]:
        """Return the cached data keys of a message, which `opened` has decrypted earlier; an empty list if there are
        none.
        """
        return self._decryptor.cached(metadata.encryption_keys)

    async def opened(self, metadata: pb.MessageMetadata) -> list[AESGCM]:
        """Return the data keys that may decrypt a message: the cached ones that its metadata names, or else one that a
        private key of the reader decrypts. Empty if there is none.
        """
        if found := self.cached(metadata):
            return found
        loop = asyncio.get_running_loop()
        for key in metadata.encryption_keys[:MAX_KEYS_TRIED]:
            try:
                data_key = await loop.run_in_executor(self._thread, self._decryptor.open, key)
            except CannotDecrypt as error:
                self._log(str(error))
                continue
            except Exception as error:  # noqa: BLE001 - the key reader is code of the user
                self._log(f"the key reader failed for the private key {key.key!r}: {type(error).__name__}")
                continue
            if data_key is not None:
                self._decryptor.keep(key, data_key)
                return [data_key]
        return []

    def _log(self, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._logged_s is None or now_s - self._logged_s >= LOG_PERIOD_S:
            self._logged_s = now_s
            logs.warning("client.private_key_unusable", reason=reason)
