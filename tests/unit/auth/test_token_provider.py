"""Tokens: accepted signatures, validity periods, and roles."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support import credentials

from pybroker.auth.token_provider import TokenProvider, TokenSettings
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError

NOW_S = 1_700_000_000.0
SECRET = bytes(range(32))


def provider(**settings: Any) -> TokenProvider:
    defaults: dict[str, object] = {} if "public_key" in settings else {"secret_key": credentials.data_url(SECRET)}
    return TokenProvider(TokenSettings(**{**defaults, **settings}))


def role_of(checker: TokenProvider, text: str, now_s: float = NOW_S) -> str | None:
    return checker.verify(text.encode(), now_s).role


def hand_made(header: dict[str, str], claims: dict[str, str], key: bytes | None) -> str:
    """Return a token that no correct library creates: signed by HMAC with `key`, or unsigned."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    signed = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    return f"{signed}.{part(hmac.digest(key, signed.encode(), 'sha256')) if key else ''}"


def assert_refused(checker: TokenProvider, text: str, match: str, now_s: float = NOW_S) -> None:
    with pytest.raises(AuthenticationError, match=match) as caught:
        checker.verify(text.encode(), now_s)
    assert not text or text not in str(caught.value), "a credential must not reach an error text"


def test_a_token_signed_with_the_secret_has_its_subject_as_role() -> None:
    identity = provider().verify(credentials.token(SECRET, sub="app").encode(), NOW_S)
    assert (identity.role, identity.method, identity.expires_at_s) == ("app", "token", None)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_every_hmac_algorithm_that_fits_the_secret_is_accepted(algorithm: str) -> None:
    secret = bytes(range(64))
    checker = provider(secret_key=credentials.data_url(secret))
    assert role_of(checker, credentials.token(secret, algorithm, sub="app")) == "app"


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
@pytest.mark.parametrize("form", ["der", "pem", "base64-text"])
def test_a_token_signed_with_an_rsa_key_is_accepted(algorithm: str, form: str) -> None:
    key = credentials.rsa_key()
    der = credentials.public_der(key)
    content = {"der": der, "pem": credentials.public_pem(key), "base64-text": base64.b64encode(der)}[form]
    checker = provider(public_key=credentials.data_url(content))
    assert role_of(checker, credentials.token(key, algorithm, sub="app")) == "app"


@pytest.mark.parametrize(
    ("curve", "algorithm"), [(ec.SECP256R1(), "ES256"), (ec.SECP384R1(), "ES384"), (ec.SECP521R1(), "ES512")]
)
def test_a_token_signed_with_an_elliptic_curve_key_is_accepted(curve: ec.EllipticCurve, algorithm: str) -> None:
    key = ec.generate_private_key(curve)
    checker = provider(public_key=credentials.data_url(credentials.public_der(key)), public_algorithm=algorithm)
    assert role_of(checker, credentials.token(key, algorithm, sub="app")) == "app"


def test_the_secret_may_be_a_file_of_bytes_or_of_base64_text(tmp_path: Path) -> None:
    for content in (SECRET, base64.b64encode(SECRET), base64.urlsafe_b64encode(SECRET) + b"\n"):
        path = tmp_path / "secret.key"
        path.write_bytes(content)
        for location in (str(path), path.as_uri(), f"file:{path}"):
            assert role_of(provider(secret_key=location), credentials.token(SECRET, sub="app")) == "app"


def test_a_secret_file_of_base64_text_may_also_be_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(base64.b64encode(SECRET))
    assert role_of(provider(secret_key=str(path)), credentials.token(path.read_bytes(), sub="app")) == "app"


def test_a_token_of_another_key_is_refused() -> None:
    assert_refused(provider(), credentials.token(bytes(32), sub="app"), "signed with the broker's key")
    checker = provider(public_key=credentials.data_url(credentials.public_der(credentials.rsa_key())))
    assert_refused(checker, credentials.token(credentials.rsa_key(1), "RS256", sub="app"), "signed")


def test_a_token_without_a_signature_is_refused() -> None:
    assert_refused(provider(), hand_made({"alg": "none"}, {"sub": "admin"}, None), "signed")
    assert_refused(provider(), hand_made({"alg": "HS256"}, {"sub": "admin"}, None), "signed")
    assert role_of(provider(), hand_made({"alg": "HS256"}, {"sub": "app"}, SECRET)) == "app"


def test_the_public_key_cannot_be_used_as_a_shared_secret() -> None:
    public = credentials.public_der(credentials.rsa_key())
    checker = provider(public_key=credentials.data_url(public))
    assert_refused(checker, hand_made({"alg": "HS256"}, {"sub": "admin"}, public), "signed")


@pytest.mark.parametrize("text", ["x", "a.b.c", "\N{GRINNING FACE}", "." * 100, "x" * 70_000])
def test_what_is_no_token_is_refused(text: str) -> None:
    assert_refused(provider(), text, "token")


def test_no_token_is_refused() -> None:
    assert_refused(provider(), "", "no token")


def test_an_expired_token_is_refused_and_the_identity_says_when_it_expires() -> None:
    text = credentials.token(SECRET, sub="app", exp=int(NOW_S) + 10)
    assert provider().verify(text.encode(), NOW_S).expires_at_s == NOW_S + 10
    assert_refused(provider(), text, "expired", now_s=NOW_S + 10)


def test_a_token_is_refused_before_its_time() -> None:
    text = credentials.token(SECRET, sub="app", nbf=int(NOW_S) + 10)
    assert_refused(provider(), text, "not valid yet")
    assert role_of(provider(), text, NOW_S + 10) == "app"


def test_the_clock_skew_widens_a_tokens_time_on_both_sides() -> None:
    checker = provider(clock_skew_s=30)
    expiring = credentials.token(SECRET, sub="app", exp=int(NOW_S))
    assert checker.verify(expiring.encode(), NOW_S + 29).expires_at_s == NOW_S + 30
    assert_refused(checker, expiring, "expired", now_s=NOW_S + 30)
    assert role_of(checker, credentials.token(SECRET, sub="app", nbf=int(NOW_S) + 30)) == "app"


def test_a_time_that_is_no_number_is_refused() -> None:
    assert_refused(provider(), credentials.token(SECRET, sub="app", exp=True), "number")
    assert_refused(provider(), credentials.token(SECRET, sub="app", nbf="soon"), "number")


def test_the_role_comes_from_the_configured_claim_and_the_first_of_a_list_counts() -> None:
    checker = provider(role_claim="roles")
    assert role_of(checker, credentials.token(SECRET, sub="x", roles=["app", "other"])) == "app"
    for roles in (None, [], "", [1]):
        assert_refused(checker, credentials.token(SECRET, sub="x", roles=roles), "no role")


def test_the_audience_must_match_when_one_is_configured() -> None:
    checker = provider(audience_claim="aud", audience="broker")
    assert role_of(checker, credentials.token(SECRET, sub="app", aud="broker")) == "app"
    assert role_of(checker, credentials.token(SECRET, sub="app", aud=["x", "broker"])) == "app"
    for wrong in ("x", ["x"], 5, None):
        assert_refused(checker, credentials.token(SECRET, sub="app", aud=wrong), "audience")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"secret_key": ""}, "set tokenSecretKey or tokenPublicKey"),
        ({"secret_key": credentials.data_url(b"short")}, "tokenSecretKey has 5 bytes"),
        ({"secret_key": credentials.data_url(credentials.public_pem(credentials.rsa_key()))}, "tokenSecretKey"),
        ({"public_key": credentials.data_url(b"\x00no key")}, "tokenPublicKey contains no public key"),
        (
            {"public_key": "/nowhere/public.key"},
            "tokenPublicKey cannot be read: the file /nowhere/public.key does not exist",
        ),
        ({"audience_claim": "aud"}, "tokenAudience must be set"),
    ],
)
def test_a_configuration_that_cannot_work_names_its_key(settings: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        provider(**settings)


def test_a_public_key_that_does_not_fit_its_algorithm_is_refused() -> None:
    elliptic = credentials.data_url(credentials.public_der(ec.generate_private_key(ec.SECP256R1())))
    for algorithm in ("RS256", "HS256", "none", "ES999"):
        with pytest.raises(ConfigError, match=f"tokenPublicAlg={algorithm}"):
            provider(public_key=elliptic, public_algorithm=algorithm)


def signed(claims: str) -> str:
    """Return a token with `claims`, signed with the secret."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    text = part(b'{"alg":"HS256"}') + "." + part(claims.encode())
    return f"{text}.{part(hmac.digest(SECRET, text.encode(), 'sha256'))}"


@pytest.mark.parametrize("written", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "-" + "9" * 400, "9" * 5000])
@pytest.mark.parametrize("claim", ["exp", "nbf"])
def test_a_time_that_is_no_time_is_refused(claim: str, written: str) -> None:
    assert_refused(provider(), signed(f'{{"sub":"app","{claim}":{written}}}'), "not a")


def test_claims_and_headers_nested_without_end_are_refused() -> None:
    deep = "[" * 20_000
    assert_refused(provider(), signed(f'{{"sub":"app","x":{deep}{"]" * 20_000}}}'), "not a JWT")
    assert_refused(provider(), signed(deep), "not a JWT")
    header = base64.urlsafe_b64encode(f'{{"alg":"HS256","x":{deep}'.encode()).rstrip(b"=").decode()
    assert_refused(provider(), f"{header}.e30.AAAA", "not a JWT")


@pytest.mark.parametrize(
    "written", ['{"sub":"\\ud800"}', '{"sub":"app","x":{"\\udfff":1}}', '{"sub":"\\ud83d\\u0041"}']
)
def test_claims_with_an_unpaired_surrogate_are_refused(written: str) -> None:
    assert_refused(provider(), signed(written), "not a JWT")
    assert role_of(provider(), signed('{"sub":"\\ud83d\\ude00"}')) == "\N{GRINNING FACE}"
