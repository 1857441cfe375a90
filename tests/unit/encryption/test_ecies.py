"""ECIES: what Pulsar's Java client encrypted, round trips on all curves, and damaged input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from tests.support.credentials import PrivateKey, private_pem, public_pem, rsa_key

from pybroker.encryption import ecies
from pybroker.encryption.crypto_key_reader import PublicKey
from pybroker.encryption.payload_encryption import Decryptor, PayloadEncryptor
from pybroker.wire import pulsar_api_pb2 as pb

CURVES = {each.name: each for each in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1(), ec.SECP256K1())}
DATA_KEY = bytes(range(32))
VECTORS = json.loads((Path(__file__).parents[2] / "vectors/java_encryption.json").read_text())
"""Made by `JavaEncryption.java` with the argument `vectors`; the private key is a number."""


def key_of(curve: str, number: str = "1234567890abcdef" * 3) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int(number, 16), CURVES[curve])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["curve"])
def test_message_of_the_java_client_is_decrypted(vector: dict[str, str]) -> None:
    metadata = pb.MessageMetadata(producer_name="java", sequence_id=1, publish_time=1)
    metadata.encryption_keys.add(key="k", value=bytes.fromhex(vector["data_key"]))
    metadata.encryption_param = bytes.fromhex(vector["nonce"])
    pem = private_pem(key_of(vector["curve"], vector["private_number"]))
    decryptor = Decryptor(lambda name, _: pem if name == "k" else None)
    assert decryptor.decrypt(metadata.SerializeToString(), bytes.fromhex(vector["payload"])) == b"secret"


@pytest.mark.parametrize("curve", CURVES)
def test_sealed_data_key_is_read_with_the_private_key_only(curve: str) -> None:
    key, other = key_of(curve), key_of(curve, "77")
    sealed = ecies.seal(key.public_key(), DATA_KEY)
    assert ecies.unseal(key, sealed) == DATA_KEY
    assert ecies.seal(key.public_key(), DATA_KEY) != sealed, "the ephemeral key is new"
    with pytest.raises(ValueError, match="authentication code"):
        ecies.unseal(other, sealed)


@pytest.mark.parametrize("curve", CURVES)
def test_damaged_sealed_key_is_refused(curve: str) -> None:
    key = key_of(curve)
    sealed = ecies.seal(key.public_key(), DATA_KEY)
    for at in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        with pytest.raises(ValueError):  # noqa: PT011  (of the library, for a point beside the curve)
            ecies.unseal(key, bytes(damaged))
    for size in range(len(sealed)):
        with pytest.raises(ValueError):  # noqa: PT011
            ecies.unseal(key, sealed[:size])
    point_bytes = len(sealed) - len(DATA_KEY) - ecies.MAC_BYTES
    for wrong in (
        *(b"", b"\0", sealed + b"x", sealed * 2, b"\0" * len(sealed), b"\x04" * len(sealed), sealed * 1000),
        b"\x04" + bytes(point_bytes - 1) + sealed[point_bytes:],
        bytes((2 + (sealed[point_bytes - 1] & 1),)) + sealed[1 : 1 + point_bytes // 2] + sealed[point_bytes:],
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            ecies.unseal(key, wrong)


def test_sealed_key_of_another_curve_is_refused() -> None:
    for curve in CURVES:
        sealed = ecies.seal(key_of(curve).public_key(), DATA_KEY)
        for other in CURVES.keys() - {curve}:
            with pytest.raises(ValueError):  # noqa: PT011
                ecies.unseal(key_of(other), sealed)


def test_data_key_of_a_wrong_length_is_another_key() -> None:
    key = key_of("secp256r1")
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    for data_key in (b"x", b"x" * 33, b"x" * 64):
        metadata.encryption_keys.add(key="k", value=ecies.seal(key.public_key(), data_key))
    decryptor = Decryptor(lambda _name, _metadata: private_pem(key))
    assert [decryptor.open(each) for each in metadata.encryption_keys] == [None, None, None]


def test_keys_of_both_kinds_decrypt_the_same_message() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    keys: dict[str, PrivateKey] = {"rsa": rsa_key(), "ec": key_of("secp384r1")}
    encryptor = PayloadEncryptor({name: PublicKey(public_pem(key)) for name, key in keys.items()})
    payload = encryptor.encrypt(metadata, b"secret")
    for name, key in keys.items():
        pem = private_pem(key)
        decryptor = Decryptor(lambda asked, _, name=name, pem=pem: pem if asked == name else None)  # type: ignore[misc]
        assert decryptor.decrypt(metadata.SerializeToString(), payload) == b"secret"


def test_key_with_explicit_parameters_of_its_curve_can_be_used() -> None:
    """`openssl ecparam -param_enc explicit`, as Pulsar's documentation recommends."""
    key = load_pem_public_key(EXPLICIT_PARAMETERS)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    payload = PayloadEncryptor({"k": PublicKey(EXPLICIT_PARAMETERS)}).encrypt(metadata, b"secret")
    decryptor = Decryptor(lambda _name, _metadata: private_pem(key_of("secp256r1")))
    assert decryptor.decrypt(metadata.SerializeToString(), payload) == b"secret"


EXPLICIT_PARAMETERS = b"""\
-----BEGIN PUBLIC KEY-----
MIIBSzCCAQMGByqGSM49AgEwgfcCAQEwLAYHKoZIzj0BAQIhAP////8AAAABAAAA
AAAAAAAAAAAA////////////////MFsEIP////8AAAABAAAAAAAAAAAAAAAA////
///////////8BCBaxjXYqjqT57PrvVV2mIa8ZR0GsMxTsPY7zjw+J9JgSwMVAMSd
NgiG5wSTamZ44ROdJreBn36QBEEEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5
RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9QIhAP////8AAAAA
//////////+85vqtpxeehPO5ysL8YyVRAgEBA0IABHDaAs8jiTOPPG4ygVR7eZf2
S3iVXNDM5wkE8CZZM12tr8PeoJDruknfmuGCQLn/UjS1Xk078kVZAfT0K3Res0Q=
-----END PUBLIC KEY-----
"""
