"""Encryption of data keys with EC keys: the cipher `ECIES` of BouncyCastle, as Pulsar's Java client uses it.

sealed     V | C | T
V          the ephemeral public key, an uncompressed point
C          the data key XOR the rest of `derived`
T          HMAC-SHA1 of C and eight zero bytes (the length of the empty encoding parameter); its key is the first
           16 bytes of `derived`
derived    KDF2 (ISO/IEC 18033-2) with SHA-1 of V and the x coordinate of the Diffie-Hellman point
"""

from __future__ import annotations

import hmac
from hashlib import sha1

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MAC_KEY_BYTES = 16
MAC_BYTES = 20
MAX_DATA_BYTES = 64
"""Data keys have at most 32 bytes."""
_UNCOMPRESSED = 4
_EMPTY_PARAMETER = bytes(8)


def seal(public_key: ec.EllipticCurvePublicKey, data: bytes) -> bytes:
    """Encrypt `data`, for example a data key, so that only the private key can decrypt it."""
    ephemeral = ec.generate_private_key(public_key.curve)
    point = ephemeral.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    mac_key, mask = _derived(point, ephemeral.exchange(ec.ECDH(), public_key), len(data))
    content = _masked(data, mask)
    return point + content + _mac(mac_key, content)


def unseal(private_key: ec.EllipticCurvePrivateKey, sealed: bytes) -> bytes:
    """Decrypt the result of `seal`. Raises ValueError if it is damaged or of another key."""
    point_bytes = 1 + 2 * ((private_key.curve.key_size + 7) // 8)
    data_bytes = len(sealed) - point_bytes - MAC_BYTES
    if not 0 < data_bytes <= MAX_DATA_BYTES or sealed[0] != _UNCOMPRESSED:
        raise ValueError("the encrypted data has a wrong length, or does not begin with an uncompressed point")
    point, content, mac = sealed[:point_bytes], sealed[point_bytes:-MAC_BYTES], sealed[-MAC_BYTES:]
    # Raises ValueError for a point that is not on the curve.
    ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(private_key.curve, point)
    mac_key, mask = _derived(point, private_key.exchange(ec.ECDH(), ephemeral), data_bytes)
    if not hmac.compare_digest(mac, _mac(mac_key, content)):
        raise ValueError("the authentication code is wrong")
    return _masked(content, mask)


def _derived(point: bytes, shared: bytes, data_bytes: int) -> tuple[bytes, bytes]:
    """Return the key of the authentication code, and the mask of the data."""
    # KDF2 is the KDF of ANSI X9.63 without shared information.
    derived = X963KDF(hashes.SHA1(), MAC_KEY_BYTES + data_bytes, None).derive(point + shared)
    return derived[:MAC_KEY_BYTES], derived[MAC_KEY_BYTES:]


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content + _EMPTY_PARAMETER, sha1)


def _masked(data: bytes, mask: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(data, mask, strict=True))
