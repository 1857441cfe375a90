"""Keys and tokens in the formats of `pulsar tokens`: secrets as bytes, key pairs as DER, tokens as compact JWS."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pybroker.auth.token_provider import HMAC_ALGORITHMS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey

HMAC = tuple(name for name, _ in HMAC_ALGORITHMS)
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ASYMMETRIC = (*_RSA, *_CURVES)
ALL = (*HMAC, *ASYMMETRIC)
RSA_BITS = {"256": 2048, "384": 3072, "512": 4096}
"""RSA key sizes of `pulsar tokens`, by algorithm number."""


class KeyRefused(ValueError):
    """The key cannot sign with the requested algorithm. The text contains no part of the key."""


def new_secret(algorithm: str, *, is_base64: bool) -> bytes:
    """Return a random secret key with the size of the algorithm's hash."""
    secret = secrets.token_bytes(dict(HMAC_ALGORITHMS)[algorithm])
    return base64.b64encode(secret) if is_base64 else secret


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Return a private key (PKCS #8) and a public key (SubjectPublicKeyInfo), both as DER."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  (slow: only who asks waits for it)
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415

    key: PrivateKey
    if algorithm in _RSA:
        key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS[algorithm[2:]])
    else:
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        key = ec.generate_private_key(curves[algorithm])
    encoding = serialization.Encoding.DER
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)


def signed(
    claims: Mapping[str, Any], key: bytes, algorithm: str | None, *, is_secret: bool, headers: Mapping[str, str]
) -> str:
    """Return a signed token. Without `algorithm`, use HS256 or the private key's algorithm. Raises KeyRefused."""
    import jwt  # noqa: PLC0415

    signing, algorithm = _secret(key, algorithm) if is_secret else _private(key, algorithm)
    if {"alg", "b64"} & set(headers):
        raise KeyRefused("--headers: alg and b64 cannot be set, because the signature determines them. Remove them.")
    try:
        # Like Pulsar's tool, omit `typ`.
        return jwt.encode(dict(claims), signing, algorithm, headers={"typ": None, **headers})
    except jwt.PyJWTError:
        raise KeyRefused(
            f"the key cannot sign with {algorithm}: use another key or another --signature-algorithm"
        ) from None


def _secret(content: bytes, algorithm: str | None) -> tuple[bytes, str]:
    algorithm = algorithm or HMAC[0]
    if algorithm not in HMAC:
        raise KeyRefused(f"{algorithm} needs --private-key, because a secret key can sign only with {', '.join(HMAC)}")
    shortest = dict(HMAC_ALGORITHMS)[algorithm]
    if len(content) < shortest:
        raise KeyRefused(
            f"the secret key has {len(content)} bytes, but {algorithm} needs at least {shortest} bytes: create "
            "a key with `tokens create-secret-key`"
        )
    return content, algorithm


def _private(content: bytes, algorithm: str | None) -> tuple[PrivateKey, str]:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415

    try:
        if content.lstrip().startswith(b"-----BEGIN"):
            key = serialization.load_pem_private_key(content.lstrip(), None)
        else:
            key = serialization.load_der_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyRefused("--private-key is not a private key in DER or PEM format without a password") from None
    if isinstance(key, rsa.RSAPrivateKey):
        if algorithm is None or algorithm in _RSA:
            return key, algorithm or "RS256"
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        own = next((name for name, curve in _CURVES.items() if curve == key.curve.name), None)
        if own is not None and algorithm in {None, own}:
            return key, own
    raise KeyRefused(f"the private key does not match {algorithm or 'any algorithm that brokers accept'}")


def parts_of(token: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the unverified header and claims of the token. Raises ValueError, whose text contains no part of
    the token."""
    pieces = token.split(b".")
    if len(pieces) != 3:
        raise ValueError("the token does not consist of three parts separated by dots")
    documents: list[dict[str, Any]] = []
    for piece in pieces[:2]:
        try:
            document = json.loads(base64.urlsafe_b64decode(piece + b"=" * (-len(piece) % 4)))
        except (ValueError, RecursionError):
            raise ValueError("the parts of the token are not JSON in Base64") from None
        if not isinstance(document, dict):
            raise ValueError("the parts of the token are not JSON objects")
        documents.append(document)
    return documents[0], documents[1]
