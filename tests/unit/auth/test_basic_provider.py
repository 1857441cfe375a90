"""User and password against a password file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.support import credentials

from pybroker.auth.authentication_provider import ProviderEnvironment, RemoteClient
from pybroker.auth.basic_provider import MAX_REMEMBERED_FAILURES, BasicProvider
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError
from pybroker.runtime.clock import Clock

# Hashes of "secret" by OpenSSL and by crypt(3).
HASHES = {
    "apr1": "$apr1$foobar12$iaKeju32u.3kURgGqbDu3/",
    "sha1": "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    "crypt": "abNANd1rDfiNc",
}


CLIENT = RemoteClient("127.0.0.1")


def provider_at(location: str) -> BasicProvider:
    return BasicProvider.create(ProviderEnvironment(BrokerConfig(basic_auth_conf=location), Clock()))


def provider_of(content: str) -> BasicProvider:
    return provider_at(credentials.data_url(content.encode()))


async def role_of(provider: BasicProvider, data: str) -> str | None:
    return (await provider.authenticate(data.encode(), CLIENT)).role


async def test_the_right_password_gives_the_user_as_role(tmp_path: Path) -> None:
    provider = provider_at(str(credentials.htpasswd(tmp_path, alice="se:cret", bob="other")))
    identity = await provider.authenticate(b"alice:se:cret", CLIENT)
    assert (identity.role, identity.method, identity.expires_at_s) == ("alice", "basic", None)
    assert await role_of(provider, "bob:other") == "bob"


@pytest.mark.parametrize(
    "data", ["alice:wrong", "alice:", "nobody:secret", ":secret", "alice:secret\0", "alice:" + "x" * 5000]
)
async def test_a_wrong_user_or_password_is_refused_every_time(tmp_path: Path, data: str) -> None:
    provider = provider_at(str(credentials.htpasswd(tmp_path, alice="secret")))
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="the user is unknown, or the password is wrong"):
            await provider.authenticate(data.encode(), CLIENT)
        assert await role_of(provider, "alice:secret") == "alice"


async def test_a_wrong_password_is_refused_also_when_another_user_has_it(tmp_path: Path) -> None:
    provider = provider_at(str(credentials.htpasswd(tmp_path, alice="secret", bob="other")))
    for known in ("alice:secret", "bob:other"):
        await role_of(provider, known)
    for mixed in ("alice:other", "bob:secret", "carol:secret"):
        with pytest.raises(AuthenticationError):
            await role_of(provider, mixed)


def counting(provider: BasicProvider) -> list[str]:
    """Record the passwords that are hashed from now on."""
    hashed: list[str] = []
    verify = provider.verify

    def counted(user: str, password: str) -> bool:
        hashed.append(password)
        return verify(user, password)

    provider.verify = counted  # type: ignore[method-assign]
    return hashed


async def test_a_password_is_hashed_once_right_or_wrong_and_a_long_one_never(tmp_path: Path) -> None:
    provider = provider_at(str(credentials.htpasswd(tmp_path, alice="secret")))
    hashed = counting(provider)
    for data in ("alice:secret", "alice:wrong", "nobody:secret", "alice:" + "é" * 37) * 3:
        with contextlib.suppress(AuthenticationError):
            await role_of(provider, data)
    assert hashed == ["secret", "wrong", "secret"]


def test_the_wrong_passwords_that_are_remembered_are_few(tmp_path: Path) -> None:
    provider = provider_at(str(credentials.htpasswd(tmp_path, alice="secret")))
    for number in range(MAX_REMEMBERED_FAILURES + 5):
        provider.remember("alice", str(number), False)
    assert provider.recall("alice", "0") is None
    assert provider.recall("alice", "5") is False


@pytest.mark.parametrize("data", [b"", b"no colon", b"\xff:\xff"])
async def test_what_is_no_user_and_password_is_refused(tmp_path: Path, data: bytes) -> None:
    provider = provider_at(str(credentials.htpasswd(tmp_path, alice="secret")))
    with pytest.raises(AuthenticationError):
        await provider.authenticate(data, CLIENT)


@pytest.mark.parametrize(
    "scheme", ["apr_md5_crypt", "sha512_crypt", "sha256_crypt", "md5_crypt", "ldap_sha1", "des_crypt"]
)
async def test_every_common_kind_of_hash_is_understood(scheme: str) -> None:
    import passlib.hash  # type: ignore[import-untyped]

    maker = getattr(passlib.hash, scheme)
    if "rounds" in maker.setting_kwds:
        maker = maker.using(rounds=1000)  # the default number of rounds takes seconds
    provider = provider_of(f"# users\n\nalice:{maker.hash('secret')}\n")
    assert await role_of(provider, "alice:secret") == "alice"
    with pytest.raises(AuthenticationError):
        await role_of(provider, "alice:wrong")


@pytest.mark.parametrize("kind", sorted(HASHES))
async def test_hashes_of_other_tools_are_understood(kind: str) -> None:
    assert await role_of(provider_of(f"alice:{HASHES[kind]}\n"), "alice:secret") == "alice"


@pytest.mark.parametrize("line", ["alice", "alice:plain text", ":x", "alice:$2y$05$nothashed"])
def test_a_line_that_is_not_understood_is_named_without_showing_it(line: str) -> None:
    with pytest.raises(ConfigError, match="basicAuthConf, line 2") as caught:
        provider_of(f"bob:{HASHES['sha1']}\n{line}\n")
    assert line not in str(caught.value)


def test_a_missing_or_empty_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs basicAuthConf"):
        provider_at("")
    with pytest.raises(ConfigError, match="contains no user"):
        provider_of("# nobody\n")
