"""Encryption of payloads: keys, damaged content, and unusable keys."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from tests.support.credentials import private_pem, public_pem, rsa_key

from pybroker.encryption import payload_encryption
from pybroker.encryption.crypto_key_reader import PublicKey
from pybroker.encryption.encryption_errors import CannotDecrypt, CannotEncrypt
from pybroker.encryption.payload_encryption import Decryptor, PayloadEncryptor
from pybroker.wire import pulsar_api_pb2 as pb


def encrypted(public_keys: dict[str, PublicKey], payload: bytes = b"secret") -> tuple[pb.MessageMetadata, bytes]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    encryptor = PayloadEncryptor(public_keys)
    before_bytes = metadata.ByteSize() + len(payload)
    sealed = encryptor.encrypt(metadata, payload)
    assert metadata.ByteSize() + len(sealed) <= before_bytes + encryptor.overhead_bytes
    return metadata, sealed


def opened(metadata: pb.MessageMetadata, payload: bytes, private_keys: dict[str, bytes]) -> bytes:
    return Decryptor(lambda name, _: private_keys.get(name)).decrypt(metadata.SerializeToString(), payload)


def test_each_private_key_decrypts_a_payload_for_several_keys() -> None:
    metadata, payload = encrypted({str(number): PublicKey(public_pem(rsa_key(number))) for number in range(2)})
    assert b"secret" not in payload
    for number in range(2):
        assert opened(metadata, payload, {str(number): private_pem(rsa_key(number))}) == b"secret"


def test_each_payload_has_its_own_nonce() -> None:
    encryptor = PayloadEncryptor({"k": PublicKey(public_pem(rsa_key()))})
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    payloads = {encryptor.encrypt(metadata, b"same") for _ in range(10)}
    assert len(payloads) == 10
    assert len(metadata.encryption_keys) == 1


def test_metadata_of_the_public_key_reaches_the_reader_of_private_keys() -> None:
    metadata, payload = encrypted({"k": PublicKey(public_pem(rsa_key()), {"version": "7"})})
    seen = []

    def private_key(name: str, said: object) -> bytes:
        seen.append((name, said))
        return private_pem(rsa_key())

    assert Decryptor(private_key).decrypt(metadata.SerializeToString(), payload) == b"secret"
    assert seen == [("k", {"version": "7"})]


@pytest.mark.parametrize("private_keys", [{}, {"other": private_pem(rsa_key())}, {"k": private_pem(rsa_key(1))}])
def test_payload_without_matching_private_key_is_refused(private_keys: dict[str, bytes]) -> None:
    metadata, payload = encrypted({"k": PublicKey(public_pem(rsa_key()))})
    with pytest.raises(CannotDecrypt, match="no configured private key"):
        opened(metadata, payload, private_keys)


def test_changed_payload_or_nonce_is_refused() -> None:
    metadata, payload = encrypted({"k": PublicKey(public_pem(rsa_key()))})
    keys = {"k": private_pem(rsa_key())}
    with pytest.raises(CannotDecrypt):
        opened(metadata, payload[:-1] + bytes([payload[-1] ^ 1]), keys)
    with pytest.raises(CannotDecrypt):
        opened(metadata, b"", keys)
    for nonce in (b"", b"x" * 12, b"x" * 200):
        metadata.encryption_param = nonce
        with pytest.raises(CannotDecrypt):
            opened(metadata, payload, keys)


def test_message_with_many_keys_costs_a_limited_number_of_decryptions() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    for number in range(100):
        metadata.encryption_keys.add(key=str(number), value=b"x" * 256)
    tried: list[str] = []

    def private_key(name: str, _: object) -> bytes:
        tried.append(name)
        return private_pem(rsa_key())

    with pytest.raises(CannotDecrypt):
        Decryptor(private_key).decrypt(metadata.SerializeToString(), b"payload")
    assert len(tried) == payload_encryption.MAX_KEYS_TRIED


def certificate(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "k")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    builder = builder.public_key(key.public_key()).not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("key", [rsa_key(), ec.generate_private_key(ec.SECP256R1())], ids=["rsa", "ec"])
def test_public_key_may_be_a_certificate(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    metadata, payload = encrypted({"k": PublicKey(certificate(key))})
    assert opened(metadata, payload, {"k": private_pem(key)}) == b"secret"


OTHER_KIND = ed25519.Ed25519PrivateKey.generate()
"""A key that signs only."""
OTHER_PRIVATE = OTHER_KIND.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
OTHER_PUBLIC = OTHER_KIND.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


@pytest.mark.parametrize(
    "pem", [b"", b"no PEM", private_pem(rsa_key()), OTHER_PUBLIC, certificate(OTHER_KIND), b"\xff" * 100]
)
def test_unusable_public_key_is_refused_with_its_name(pem: bytes) -> None:
    with pytest.raises(CannotEncrypt, match="'k'"):
        PayloadEncryptor({"k": PublicKey(pem)})


@pytest.mark.parametrize("pem", [b"", b"no PEM", public_pem(rsa_key()), OTHER_PRIVATE])
def test_unusable_private_key_is_refused_with_its_name(pem: bytes) -> None:
    metadata, payload = encrypted({"k": PublicKey(public_pem(rsa_key()))})
    with pytest.raises(CannotDecrypt, match="'k'"):
        opened(metadata, payload, {"k": pem})
