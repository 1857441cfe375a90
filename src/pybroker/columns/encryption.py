"""Decryption of payloads in the format of Pulsar's clients.

    metadata   encryption_keys: for each public key its name, and the data key encrypted by it (RSA, OAEP with SHA-1)
               encryption_param: the nonce, 12 bytes
    payload    the compressed payload encrypted by the data key (AES-GCM), followed by the tag, 16 bytes

Errors never contain key material.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from google.protobuf.message import DecodeError

from pybroker.columns.bad_records import CannotDecrypt
from pybroker.wire import pulsar_api_pb2 as pb

PrivateKeys = Callable[[str, Mapping[str, str]], bytes | None]
"""Returns the private key (PEM) by name and the metadata of the producer's key reader; None if it is unknown."""

MAX_DATA_KEYS = 1000
"""Number of data keys in the cache. Producers change their data key every few hours."""
MAX_KEYS_TRIED = 16
"""Maximum keys tried for one entry, because each needs an RSA decryption."""
_OAEP = OAEP(mgf=MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)


@dataclass(frozen=True)
class PrivateKeyFiles:
    """Private keys in PEM files: one for each name, and a default for all other names ("" for none)."""

    default: str = ""
    by_name: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, name: str, metadata: Mapping[str, str]) -> bytes | None:
        path = self.by_name.get(name, self.default)
        return Path(path).read_bytes() if path else None


class Decryptor:
    """Decrypts payloads and caches the decrypted data keys."""

    def __init__(self, private_keys: PrivateKeys) -> None:
        self._private_keys = private_keys
        self._data_keys: OrderedDict[bytes, AESGCM] = OrderedDict()

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
            data_key = self._data_key(key)
            if data_key is None:
                continue
            try:
                return data_key.decrypt(metadata.encryption_param, payload, None)
            except (InvalidTag, ValueError, OverflowError):
                continue  # another key of the same name
        raise CannotDecrypt(
            f"the message is encrypted with the keys {', '.join(names)!r}, and no configured private key matches them: add the "
            "private key of one of them"
        )

    def _data_key(self, key: pb.EncryptionKeys) -> AESGCM | None:
        digest = sha256(key.key.encode("utf-8", "surrogateescape") + b"\0" + key.value).digest()
        known = self._data_keys.get(digest)
        if known is not None:
            self._data_keys.move_to_end(digest)
            return known
        pem = self._private_pem(key)
        if pem is None:
            return None
        try:
            private = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise CannotDecrypt(f"the private key for {key.key!r} is not in PEM format without a password") from error
        if not isinstance(private, RSAPrivateKey):
            raise CannotDecrypt(f"the private key for {key.key!r} is not an RSA key: only RSA keys are supported")
        try:
            opened = AESGCM(private.decrypt(key.value, _OAEP))
        except ValueError:
            return None
        self._data_keys[digest] = opened
        if len(self._data_keys) > MAX_DATA_KEYS:
            self._data_keys.popitem(last=False)
        return opened

    def _private_pem(self, key: pb.EncryptionKeys) -> bytes | None:
        try:
            return self._private_keys(key.key, {each.key: each.value for each in key.metadata})
        except OSError as error:
            raise CannotDecrypt(f"the private key for {key.key!r} cannot be read: {error.strerror}") from error
