"""Public keys of an identity provider, read from a JSON Web Key Set (RFC 7517).

Only asymmetric signature keys are used, each only with the algorithms of its own type. So an attacker who knows a
public key cannot use it as a shared secret, and unsigned tokens fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa

MAX_KEYS = 200
"""Maximum number of keys in a document."""
MAX_KEY_ID_CHARACTERS = 1024
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Larger keys would make each verification slow."""
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_EDWARDS_CURVES = frozenset({"Ed25519", "Ed448"})
_EDDSA = "EdDSA"
ALGORITHMS = frozenset({*_RSA, *_CURVES.values(), _EDDSA})
_PUBLIC_MEMBERS = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y"), "OKP": ("kty", "crv", "x")}


class UnusableKeySet(Exception):
    """The document is not a key set, or contains no usable key."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, and the algorithms of tokens that it may verify."""

    key: Any
    algorithms: tuple[str, ...]


def read_key_set(document: Mapping[str, object]) -> dict[str, IssuerKey]:
    """Return the usable keys by key id. Skip keys of other types and purposes, as RFC 7517 demands, and keys without a
    key id. Raises UnusableKeySet.
    """
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise UnusableKeySet("the document at the jwks_uri of the identity provider has no list 'keys'")
    if len(listed) > MAX_KEYS:
        raise UnusableKeySet(f"the key set of the identity provider contains more than {MAX_KEYS} keys")
    found: dict[str, IssuerKey] = {}
    for each in listed:
        key_id = each.get("kid") if isinstance(each, dict) else None
        if not isinstance(key_id, str) or not 0 < len(key_id) <= MAX_KEY_ID_CHARACTERS or key_id in found:
            continue
        key = _read_key(each)
        if key is not None:
            found[key_id] = key
    if not found:
        raise UnusableKeySet("the key set of the identity provider contains no usable key with a key id (kid)")
    return found


def _read_key(document: Mapping[str, object]) -> IssuerKey | None:
    if document.get("use", "sig") != "sig":
        return None
    operations = document.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    key_type, curve = document.get("kty"), document.get("crv", "")
    if not isinstance(key_type, str) or not isinstance(curve, str):
        return None
    algorithms = _algorithms(key_type, curve)
    named = document.get("alg")
    if named is not None:
        algorithms = tuple(each for each in algorithms if each == named)
    members = _PUBLIC_MEMBERS.get(key_type, ())
    public = {name: document[name] for name in members if name in document}
    if not algorithms or len(public) < len(members) or not all(isinstance(value, str) for value in public.values()):
        return None
    try:
        key = jwt.get_algorithm_by_name(algorithms[0]).from_jwk(public)
    except (jwt.PyJWTError, ValueError, OverflowError, UnsupportedAlgorithm):
        return None
    if isinstance(key, rsa.RSAPublicKey) and not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        return None
    return IssuerKey(key, algorithms)


def _algorithms(key_type: str, curve: str) -> tuple[str, ...]:
    match key_type:
        case "RSA":
            return _RSA
        case "EC":
            algorithm = _CURVES.get(curve)
            return (algorithm,) if algorithm is not None else ()
        case "OKP" if curve in _EDWARDS_CURVES:
            return (_EDDSA,)
        case _:
            return ()
