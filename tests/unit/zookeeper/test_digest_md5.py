"""The SASL login, with the example of RFC 2831 and with servers that send anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.zookeeper.digest_md5 import MAX_CHALLENGE_BYTES, DigestLogin, SaslCredentials
from pybroker.zookeeper.errors import AuthFailed

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
PROOF = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


def login() -> DigestLogin:
    return DigestLogin(SaslCredentials("chris", "secret"), "OA6MHXh6VqTrRk", "imap/elwood.innosoft.com")


def test_response_and_proof_are_those_of_the_rfc() -> None:
    client = login()
    response = client.step(CHALLENGE)
    assert response is not None
    assert b"response=d388dad90d4bbd760a152321f2143af7" in response.split(b",")
    assert b'username="chris"' in response.split(b",")
    assert client.step(PROOF) is None


@pytest.mark.parametrize("proof", [b"", b"rspauth=", PROOF[:-1] + b"e", PROOF + b"," + PROOF, CHALLENGE])
def test_server_without_the_password_is_refused(proof: bytes) -> None:
    client = login()
    client.step(CHALLENGE)
    with pytest.raises(AuthFailed):
        client.step(proof)


@pytest.mark.parametrize(
    ("challenge", "text"),
    [
        (b"", "offers no SASL login"),
        (b'realm="r",algorithm=md5-sess', "no nonce"),
        (CHALLENGE + b',nonce="again"', "several values of nonce"),
        (CHALLENGE.replace(b"md5-sess", b"md5"), "another algorithm"),
        (CHALLENGE.replace(b'"auth"', b'"auth-conf"'), "protected messages"),
        (CHALLENGE + b"x" * MAX_CHALLENGE_BYTES, "the limit is 2048"),
        (b"nonce=\xff", "not UTF-8"),
        (b'nonce="open', "cannot be decoded"),
    ],
)
def test_challenge_that_cannot_be_answered_is_refused(challenge: bytes, text: str) -> None:
    with pytest.raises(AuthFailed, match=text):
        login().step(challenge)


@given(st.lists(st.one_of(st.binary(max_size=60), st.just(CHALLENGE), st.just(PROOF), st.just(b'realm="')), max_size=4))
def test_any_token_is_answered_or_refused(tokens: list[bytes]) -> None:
    client = login()
    try:
        for token in tokens:
            client.step(token)
    except AuthFailed:
        return
    assert tokens in ([], [CHALLENGE], [CHALLENGE, PROOF]) or PROOF in tokens


def test_password_is_not_shown() -> None:
    assert repr(SaslCredentials("chris", "secret")) == "SaslCredentials(user='chris')"


def test_characters_outside_iso_8859_1_need_a_server_with_utf_8() -> None:
    client = DigestLogin(SaslCredentials("chris", "пароль"), "n")
    with pytest.raises(AuthFailed, match="only characters of ISO 8859-1"):
        client.step(CHALLENGE.replace(b",charset=utf-8", b""))
    assert DigestLogin(SaslCredentials("chris", "пароль"), "n").step(CHALLENGE) is not None
