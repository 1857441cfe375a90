"""Encryption and decryption of payloads in the format of Pulsar's clients.

    metadata   encryption_keys: for each public key its name, and the data key encrypted by it: with an RSA key by OAEP
               with SHA-1, with an EC key by ECIES (`ecies.py`)
               encryption_param: the nonce, 12 bytes
    payload    the compressed payload encrypted by the data key (AES-GCM), followed by the tag, 16 bytes

Errors never contain key material.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from google.protobuf.message import DecodeError

from pybroker.encryption import ecies
from pybroker.encryption.crypto_key_reader import PublicKey
from pybroker.encryption.encryption_errors import CannotDecrypt, CannotEncrypt
from pybroker.wire import pulsar_api_pb2 as pb

PrivateKeys = Callable[[str, Mapping[str, str]], bytes | None]
"""Returns the private key (PEM) by name and the metadata of the producer's key reader; None if it is unknown."""

MAX_DATA_KEYS = 1000
"""Number of data keys in the cache. Producers change their data key every few hours."""
MAX_KEYS_TRIED = 16
"""Maximum keys tried for one entry, because each needs a decryption by a private key."""
MAX_PRIVATE_KEYS = 100
"""Number of loaded private keys in the cache."""
DATA_KEY_BITS = 256
NONCE_BYTES = 12
TAG_BYTES = 16
_OAEP = OAEP(mgf=MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)


@dataclass(frozen=True)
class PrivateKeyFiles:
    """Private keys in PEM files: one for each name, and a default for all other names ("" for none)."""

    default: str = ""
    by_name: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, name: str, metadata: Mapping[str, str]) -> bytes | None:
        path = self.by_name.get(name, self.default)
        return Path(path).read_bytes() if path else None


# --- encryption --------------------------------------------------------------------------------------------------------


class SealedKey(NamedTuple):
    """A data key, encrypted with the public key `name`."""

    name: str
    value: bytes
    metadata: Mapping[str, str]


class PayloadEncryptor:
    """Encrypts payloads with one data key. Each payload has its own random nonce, so a data key must be replaced after
    at most 2**32 payloads.
    """

    def __init__(self, public_keys: Mapping[str, PublicKey]) -> None:
        """Create a data key, and encrypt it by each public key. Raises CannotEncrypt."""
        data_key = AESGCM.generate_key(DATA_KEY_BITS)
        self._data_key = AESGCM(data_key)
        self._sealed = [
            SealedKey(name, _sealed(_public_key(name, key.pem), data_key), key.metadata)
            for name, key in public_keys.items()
        ]

    @property
    def overhead_bytes(self) -> int:
        """The approximate number of bytes that encryption adds to an entry."""
        keys_bytes = sum(
            len(key.name.encode())
            + len(key.value)
            + sum(len(name) + len(text) + 8 for name, text in key.metadata.items())
            for key in self._sealed
        )
        return keys_bytes + 16 * len(self._sealed) + NONCE_BYTES + TAG_BYTES + 8

    def encrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        """Return the encrypted payload, and describe its encryption in `metadata`."""
        del metadata.encryption_keys[:]
        for sealed in self._sealed:
            described = metadata.encryption_keys.add(key=sealed.name, value=sealed.value)
            for name, text in sealed.metadata.items():
                described.metadata.add(key=name, value=text)
        nonce = metadata.encryption_param = os.urandom(NONCE_BYTES)
        return self._data_key.encrypt(nonce, payload, None)


def _sealed(key: RSAPublicKey | EllipticCurvePublicKey, data_key: bytes) -> bytes:
    return key.encrypt(data_key, _OAEP) if isinstance(key, RSAPublicKey) else ecies.seal(key, data_key)


def _public_key(name: str, pem: bytes) -> RSAPublicKey | EllipticCurvePublicKey:
    try:
        is_certificate = b"BEGIN CERTIFICATE" in pem
        key = load_pem_x509_certificate(pem).public_key() if is_certificate else load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CannotEncrypt(
            f"the public key {name!r} is neither a public key nor a certificate in PEM format"
        ) from error
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey):
        raise CannotEncrypt(f"the public key {name!r} is neither an RSA key nor an EC key")
    return key


# --- decryption --------------------------------------------------------------------------------------------------------


class Decryptor:
    """Decrypts payloads and caches the decrypted data keys. Not thread-safe, but `open` may run in one other thread,
    because it does not use the cache of data keys.
    """

    def __init__(self, private_keys: PrivateKeys) -> None:
        self._private_keys = private_keys
        self._data_keys: OrderedDict[bytes, AESGCM] = OrderedDict()
        self._loaded: OrderedDict[bytes, RSAPrivateKey | EllipticCurvePrivateKey] = OrderedDict()

    def decrypt(self, metadata_bytes: bytes, payload: bytes) -> bytes:
        """Decrypt a payload. Raises CannotDecrypt; its text contains the names of the keys that were tried."""
        try:
            metadata = pb.MessageMetadata.FromString(metadata_bytes)
        except DecodeError as error:
            raise CannotDecrypt(
                "the message cannot be decrypted: its metadata, which name its encryption keys, cannot be decoded"
            ) from error
        names = []
        for key in metadata.encryption_keys[:MAX_KEYS_TRIED]:
            names.append(key.key)
            data_key = self._cached(key)
            if data_key is None:
                data_key = self.open(key)
                if data_key is None:
                    continue
                self.keep(key, data_key)
            opened = decrypted([data_key], metadata, payload)
            if opened is not None:
                return opened
        raise CannotDecrypt(
            f"the message is encrypted with the keys {', '.join(names)!r}, and no configured private key matches them: add the "
            "private key of one of them"
        )

    def cached(self, keys: Sequence[pb.EncryptionKeys]) -> list[AESGCM]:
        """Return the data keys of a message that are in the cache. `keys`: the encrypted data keys in its metadata."""
        found = (self._cached(key) for key in keys[:MAX_KEYS_TRIED])
        return [data_key for data_key in found if data_key is not None]

    def _cached(self, key: pb.EncryptionKeys) -> AESGCM | None:
        digest = _digest(key)
        known = self._data_keys.get(digest)
        if known is not None:
            self._data_keys.move_to_end(digest)
        return known

    def keep(self, key: pb.EncryptionKeys, data_key: AESGCM) -> None:
        """Add a data key to the cache. `key` is its encrypted form, `data_key` the result of `open`."""
        self._data_keys[_digest(key)] = data_key
        if len(self._data_keys) > MAX_DATA_KEYS:
            self._data_keys.popitem(last=False)

    def open(self, key: pb.EncryptionKeys) -> AESGCM | None:
        """Decrypt a data key; None if no private key matches. Raises CannotDecrypt if the private key cannot be used.

        Slow: takes about a millisecond, and calls the key reader. One thread at a time may call this method.
        """
        pem = self._private_pem(key)
        private = None if pem is None else self._private_key(key.key, pem)
        if private is None:
            return None
        try:
            return AESGCM(
                private.decrypt(key.value, _OAEP)
                if isinstance(private, RSAPrivateKey)
                else ecies.unseal(private, key.value)
            )
        except ValueError:
            return None

    def _private_pem(self, key: pb.EncryptionKeys) -> bytes | None:
        try:
            return self._private_keys(key.key, {each.key: each.value for each in key.metadata})
        except OSError as error:
            raise CannotDecrypt(f"the private key for {key.key!r} cannot be read: {error.strerror}") from error

    def _private_key(self, name: str, pem: bytes) -> RSAPrivateKey | EllipticCurvePrivateKey:
        digest = sha256(pem).digest()
        if digest in self._loaded:
            return self._loaded[digest]
        try:
            private = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise CannotDecrypt(f"the private key for {name!r} is not in PEM format without a password") from error
        if not isinstance(private, RSAPrivateKey | EllipticCurvePrivateKey):
            raise CannotDecrypt(f"the private key for {name!r} is neither an RSA key nor an EC key")
        self._loaded[digest] = private
        if len(self._loaded) > MAX_PRIVATE_KEYS:
            self._loaded.popitem(last=False)
        return private


def decrypted(data_keys: Sequence[AESGCM], metadata: pb.MessageMetadata, payload: bytes) -> bytes | None:
    """Return the decrypted payload; None if none of the data keys is the right one."""
    for data_key in data_keys:
        try:
            return data_key.decrypt(metadata.encryption_param, payload, None)
        except (InvalidTag, ValueError, OverflowError):
            continue  # another key of the same name
    return None


def _digest(key: pb.EncryptionKeys) -> bytes:
    return sha256(key.key.encode("utf-8", "surrogateescape") + b"\0" + key.value).digest()
