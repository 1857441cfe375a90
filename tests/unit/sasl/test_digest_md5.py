"""SASL DIGEST-MD5: the example of RFC 2831, and a server that knows the password or does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.sasl.digest_md5 import DigestMd5, SaslError

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def client() -> DigestMd5:
    return DigestMd5("chris", "secret", "imap", "elwood.innosoft.com", "OA6MHXh6VqTrRk")


def test_response_is_that_of_the_example_in_rfc_2831() -> None:
    sasl = client()
    response = sasl.respond(CHALLENGE)
    assert b"response=d388dad90d4bbd760a152321f2143af7" in response
    assert b'digest-uri="imap/elwood.innosoft.com"' in response
    sasl.verify(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize("answer", [b"", b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b"rspauth=", b"\xff", b'="'])
def test_server_that_does_not_know_the_password_is_refused(answer: bytes) -> None:
    sasl = client()
    sasl.respond(CHALLENGE)
    with pytest.raises(SaslError):
        sasl.verify(answer)


def test_answer_before_the_challenge_is_refused() -> None:
    with pytest.raises(SaslError):
        client().verify(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"realm",
        b"\xff\xfe",
        CHALLENGE.replace(b"md5-sess", b"md5"),
        CHALLENGE.replace(b'nonce="OA6MG9tEQGm2hh"', b'nonce=""'),
        CHALLENGE.replace(b'qop="auth"', b'qop="auth-conf"'),
        CHALLENGE.replace(b'"OA6MG9tEQGm2hh"', b'"OA6MG9tEQGm2hh'),
    ],
)
def test_invalid_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(SaslError):
        client().respond(challenge)


def test_quoted_names_and_other_characters() -> None:
    sasl = DigestMd5('a"b\\c', "pässword€", "zookeeper", "host", "nonce")
    response = sasl.respond(CHALLENGE.replace(b"elwood.innosoft.com", b'r\\"x, y=z'))
    assert rb'username="a\"b\\c"' in response
    assert rb'realm="r\"x, y=z"' in response


@given(st.one_of(st.binary(max_size=80), st.text('",=\\ realmnonceqop', max_size=80).map(str.encode)))
def test_any_challenge_is_answered_or_refused(challenge: bytes) -> None:
    try:
        client().respond(challenge)
    except SaslError:
        return
