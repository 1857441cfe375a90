"""Keys of an identity provider: which keys of a document are used, and with which algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from tests.support import credentials
from tests.support.identity_provider import new_key, public_jwk

from pybroker.auth.openid.key_set import MAX_KEYS, UnusableKeySet, read_key_set


def rsa_jwk(**changes: Any) -> dict[str, Any]:
    """Return a usable key with `changes`; None removes a member."""
    changed = public_jwk(new_key("RS256"), "rsa", "RS256") | changes
    return {name: value for name, value in changed.items() if value is not None}


def ec_jwk(**changes: Any) -> dict[str, Any]:
    return {**public_jwk(new_key("ES256"), "ec", "ES256"), **changes}


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES256", "ES384", "ES512", "EdDSA"])
def test_key_is_used_with_its_algorithm(algorithm: str) -> None:
    found = read_key_set({"keys": [public_jwk(new_key(algorithm), "k", algorithm)]})
    assert found["k"].algorithms == (algorithm,)


def test_rsa_key_without_algorithm_is_used_with_all_rsa_algorithms() -> None:
    (key,) = read_key_set({"keys": [rsa_jwk(alg=None, use=None)]}).values()
    assert key.algorithms == ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


UNUSABLE: dict[str, Callable[[], object]] = {
    "null": lambda: None,
    "empty": dict,
    "list": list,
    "no key id": lambda: rsa_jwk(kid=None),
    "key id is a number": lambda: rsa_jwk(kid=1),
    "long key id": lambda: rsa_jwk(kid="x" * 2000),
    "for encryption": lambda: rsa_jwk(use="enc"),
    "not for verification": lambda: rsa_jwk(key_ops=["encrypt"]),
    "operations are a text": lambda: rsa_jwk(key_ops="verify"),
    "shared secret algorithm": lambda: rsa_jwk(alg="HS256"),
    "algorithm of another type": lambda: rsa_jwk(alg="ES256"),
    "algorithm is a list": lambda: rsa_jwk(alg=["RS256"]),
    "modulus is a number": lambda: rsa_jwk(n=5),
    "modulus is not base64": lambda: rsa_jwk(n="*"),
    "empty modulus": lambda: rsa_jwk(n=""),
    "no exponent": lambda: rsa_jwk(e=None),
    "shared secret": lambda: {"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": "HS256"},
    "type is a list": lambda: {"kty": ["RSA"], "kid": "k"},
    "curve is a list": lambda: {"kty": "OKP", "crv": ["Ed25519"], "kid": "k", "x": "AAAA"},
    "unknown curve": lambda: ec_jwk(crv="secp256k1"),
    "not on the curve": lambda: ec_jwk(x="AAAA"),
    "key agreement": lambda: {"kty": "OKP", "crv": "X25519", "kid": "k", "x": "AAAA"},
    "small": lambda: public_jwk(rsa.generate_private_key(public_exponent=65537, key_size=1024), "small", "RS256"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_key_is_skipped(kind: str) -> None:
    unusable = UNUSABLE[kind]()
    assert list(read_key_set({"keys": [unusable, rsa_jwk()]})) == ["rsa"]
    with pytest.raises(UnusableKeySet, match="no usable key"):
        read_key_set({"keys": [unusable]})


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {"rsa": {}}}, {"keys": []}])
def test_document_without_keys_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UnusableKeySet):
        read_key_set(document)


def test_number_of_keys_is_limited() -> None:
    with pytest.raises(UnusableKeySet, match=f"more than {MAX_KEYS} keys"):
        read_key_set({"keys": [rsa_jwk()] * (MAX_KEYS + 1)})


def test_private_members_of_a_published_key_are_not_used() -> None:
    private = RSAAlgorithm.to_jwk(credentials.rsa_key(), as_dict=True)
    (key,) = read_key_set({"keys": [rsa_jwk(**{**private, "key_ops": None})]}).values()
    assert isinstance(key.key, rsa.RSAPublicKey)
