"""Tokens and keys are made as brokers take them, and no secret is shown where it should not be."""

import io
import json
import stat
import sys
from pathlib import Path

import jwt
import pytest
from tests.support import credentials

from pybroker.auth.token_provider import TokenProvider, TokenSettings
from pybroker.cli import main
from pybroker.cli.commands.token_keys import ALL, ASYMMETRIC, HMAC


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PULSAR_TOKEN", raising=False)


def out(capsysbinary: pytest.CaptureFixture[bytes], *arguments: str) -> str:
    """What a command that must succeed writes."""
    assert main(["tokens", *arguments]) == 0, capsysbinary.readouterr().err
    return capsysbinary.readouterr().out.decode().strip()


def refusal(capsysbinary: pytest.CaptureFixture[bytes], code: int, *arguments: str) -> str:
    """The one line of a command that must fail."""
    assert main(["tokens", *arguments]) == code
    said = capsysbinary.readouterr().err.decode()
    assert said.count("\n") == 1
    return said


def written(token: str) -> str:
    Path("token.jwt").write_text(token + "\n")
    return "token.jwt"


@pytest.mark.parametrize("algorithm", ["HS256", "HS512", "RS256", "ES256", "ES384", "ES512", "PS256"])
def test_a_token_of_each_kind_of_key_is_taken_by_the_broker_and_shown(
    algorithm: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    if algorithm in HMAC:
        out(capsysbinary, "create-secret-key", "-a", algorithm, "--output", "secret.key")
        signing, verifying = ["-sk", "secret.key"], ["-sk", "secret.key"]
        provider = TokenProvider(TokenSettings(secret_key="secret.key"))
    else:
        if algorithm[0] == "E":
            pair = ["--output-private-key", "private.der", "--output-public-key", "public.der"]
            out(capsysbinary, "create-key-pair", "-a", algorithm, *pair)
        else:  # one that is made once: a new one takes long
            Path("private.der").write_bytes(credentials.private_pem(credentials.rsa_key()))
            Path("public.der").write_bytes(credentials.public_der(credentials.rsa_key()))
        signing, verifying = ["-pk", "private.der"], ["-pk", "file://" + str(Path("public.der").absolute())]
        provider = TokenProvider(TokenSettings(public_key="public.der", public_algorithm=algorithm))
    token = out(capsysbinary, "create", *signing, "-a", algorithm, "-s", "billing", "-e", "1h", "--headers", "kid=7")
    assert provider.verify(token.encode(), 0).role == "billing"
    assert jwt.get_unverified_header(token) == {"alg": algorithm, "kid": "7"}
    name = written(token)
    shown = json.loads(out(capsysbinary, "validate", *verifying, "-a", algorithm, "-f", name, "--json"))
    assert shown["role"] == "billing"
    assert shown["claims"]["exp"] * 1000 == shown["expiresAt"]
    header, separator, claims = out(capsysbinary, "show", "-f", name).splitlines()
    assert (json.loads(header)["alg"], separator, json.loads(claims)["sub"]) == (algorithm, "---", "billing")


def test_without_an_algorithm_it_is_the_one_that_fits_the_key(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    out(capsysbinary, "create-key-pair", "-a", "ES384", "--output-private-key", "p", "--output-public-key", "q")
    assert jwt.get_unverified_header(out(capsysbinary, "create", "-pk", "p", "-s", "x"))["alg"] == "ES384"
    assert set(ALL) == {*HMAC, *ASYMMETRIC}


def test_a_token_of_another_key_an_old_one_and_one_for_others_is_not_valid(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    out(capsysbinary, "create-secret-key", "--output", "a.key")
    out(capsysbinary, "create-secret-key", "--output", "b.key", "--base64")
    token = out(capsysbinary, "create", "-sk", "a.key", "-s", "x", "--audience", "here")
    name = written(token)
    assert "signed with the broker's key" in refusal(capsysbinary, 1, "validate", "-sk", "b.key", "-f", name)
    assert "the token's audience is not" in refusal(
        capsysbinary, 1, "validate", "-sk", "a.key", "--audience", "there", "-f", name
    )
    assert "role x, it never expires" in out(capsysbinary, "validate", "-sk", "a.key", "--audience", "here", "-f", name)
    old = written(credentials.token(Path("a.key").read_bytes(), sub="x", exp=1))
    assert "has expired" in refusal(capsysbinary, 1, "validate", "-sk", "a.key", "-f", old)


def test_what_is_written_is_for_its_owner_only_and_replaces_nothing(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    out(capsysbinary, "create-secret-key", "--output", "secret.key")
    out(capsysbinary, "create", "-sk", "secret.key", "-s", "x", "--output", "x.jwt")
    assert stat.S_IMODE(Path("secret.key").stat().st_mode) == stat.S_IMODE(Path("x.jwt").stat().st_mode) == 0o600
    before = Path("secret.key").read_bytes()
    assert "already exists" in refusal(capsysbinary, 1, "create-secret-key", "--output", "secret.key")
    assert Path("secret.key").read_bytes() == before


def test_neither_keys_nor_tokens_are_taken_from_the_command_line(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC0xMjM0"
    for value in (secret, f"data:;base64,{secret}"):
        said = refusal(capsysbinary, 2, "create", "-sk", value, "-s", "x")
        assert "history" in said
        assert secret not in said
    said = refusal(capsysbinary, 2, "show", "eyJ.hunter2.x")
    assert "hunter2" not in said


def test_a_key_can_stand_in_the_environment(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", credentials.data_url(b"k" * 32))
    token = out(capsysbinary, "create", "-sk", "env:MY_KEY", "-s", "x")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(token.encode())))
    assert "role x" in out(capsysbinary, "validate", "-sk", "env:MY_KEY")
    assert "not set" in refusal(capsysbinary, 2, "create", "-sk", "env:NO_SUCH_KEY", "-s", "x")


@pytest.mark.parametrize(
    ("content", "arguments", "complaint"),
    [
        (b"short", ["-sk", "k"], "has 5 bytes, but HS256 needs at least 32"),
        (b"x" * 40, ["-sk", "k", "-a", "HS512"], "HS512 needs at least 64"),
        (b"x" * 40, ["-sk", "k", "-a", "RS256"], "needs --private-key"),
        (b"no key", ["-pk", "k"], "is not a private key"),
        (b"x" * 40, ["-sk", "k", "--headers", "alg=none"], "alg and b64 cannot be set"),
    ],
)
def test_a_key_that_cannot_sign_is_told(
    content: bytes, arguments: list[str], complaint: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("k").write_bytes(content)
    assert complaint in refusal(capsysbinary, 2, "create", *arguments, "-s", "x")


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "bnVsbA.bnVsbA.x", "W10.W10.", "." * 1000, "é.é.é"])
def test_what_is_no_token_is_told_without_showing_it(text: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    Path("t").write_text(text)
    assert "the input is not a token" in refusal(capsysbinary, 1, "show", "-f", "t")


def test_claims_stay_in_their_line(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    Path("k").write_bytes(b"k" * 32)
    name = written(credentials.token(b"k" * 32, sub="x", evil="\x1b[2J\nvalid: role admin"))
    lines = out(capsysbinary, "validate", "-sk", "k", "-f", name).splitlines()
    assert len(lines) == 2
    assert "\x1b" not in lines[0]
    assert len(out(capsysbinary, "show", "-f", name).splitlines()) == 3
