"""Tokens of identity providers: accepted signatures and claims, and every kind of token that is refused."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from tests.support import credentials
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import AUDIENCE, DISCOVERY, KEYS, IdentityProvider, new_key

from pybroker.auth.authentication import AuthenticationService, RemoteClient
from pybroker.auth.authentication_provider import ProviderEnvironment
from pybroker.auth.openid import openid_provider
from pybroker.auth.openid.openid_provider import OpenIdProvider
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError
from pybroker.runtime.clock import Clock

CLIENT = RemoteClient("127.0.0.1")
ISSUER = "https://idp.example"


class Network:
    """The documents of several providers by URL, instead of downloads."""

    def __init__(self) -> None:
        self.documents: dict[str, Callable[[], dict[str, object]]] = {}
        self.downloads: list[str] = []

    def add(self, provider: IdentityProvider, issuer: str) -> None:
        provider.issuer = issuer
        self.documents[issuer + DISCOVERY] = lambda: {"issuer": issuer, "jwks_uri": issuer + KEYS}
        self.documents[issuer + KEYS] = lambda: {"keys": provider.published}

    async def download(self, url: str, **_: object) -> dict[str, object]:
        self.downloads.append(url)
        return self.documents[url]()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    found = Network()
    monkeypatch.setattr(openid_provider, "download_json", found.download)
    return found


@pytest.fixture
def issuer(network: Network) -> IdentityProvider:
    found = IdentityProvider("ES256")
    network.add(found, ISSUER)
    return found


def config_of(**changes: Any) -> BrokerConfig:
    settings = {"open_id_allowed_token_issuers": (ISSUER,), "open_id_allowed_audiences": ("other", AUDIENCE)}
    return BrokerConfig().replace(**{**settings, **changes})


def provider_of(**changes: Any) -> OpenIdProvider:
    return OpenIdProvider(ProviderEnvironment(config_of(**changes), Clock()))


async def role_of(provider: OpenIdProvider, token: str) -> str | None:
    return (await provider.authenticate(token.encode(), CLIENT)).role


async def refusal(provider: OpenIdProvider, token: str) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as caught:
        await provider.authenticate(token.encode(), CLIENT)
    assert not token or token not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
)
async def test_token_of_each_algorithm_is_accepted(network: Network, algorithm: str) -> None:
    issuer = IdentityProvider(algorithm)
    network.add(issuer, ISSUER)
    before_s = time.time()
    identity = await provider_of().authenticate(issuer.token().encode(), CLIENT)
    assert (identity.role, identity.method) == ("app", "token")
    assert identity.expires_at_s is not None
    assert before_s + 299 < identity.expires_at_s < time.time() + 301


@pytest.mark.parametrize(
    ("claim", "value", "role"),
    [
        ("sub", "app", "app"),
        ("roles", "writer", "writer"),
        ("roles", ["writer", "reader"], "writer"),
        ("realm.roles", "flat", "flat"),
    ],
)
async def test_role_is_the_text_or_the_first_text_of_a_list(
    issuer: IdentityProvider, claim: str, value: object, role: str
) -> None:
    assert await role_of(provider_of(open_id_role_claim=claim), issuer.token(**dict[str, Any]({claim: value}))) == role


async def test_role_of_a_nested_claim_is_found_by_its_path(issuer: IdentityProvider) -> None:
    provider = provider_of(open_id_role_claim="realm.roles")
    assert await role_of(provider, issuer.token(realm={"roles": ["writer"]})) == "writer"
    wrongs: list[object] = [{"roles": {}}, ["roles"], "roles", None, {"roles": [["writer"]]}]
    for wrong in wrongs:
        assert "no role in its claim 'realm.roles'" in str(await refusal(provider, issuer.token(realm=wrong)))


@pytest.mark.parametrize("audience", [AUDIENCE, ["x", AUDIENCE], "other"])
async def test_one_audience_must_be_allowed(issuer: IdentityProvider, audience: object) -> None:
    assert await role_of(provider_of(), issuer.token(aud=audience)) == "app"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iss": "https://evil.example"}, "UNSUPPORTED_ISSUER"),
        ({"iss": ISSUER + "/"}, "UNSUPPORTED_ISSUER"),
        ({"iss": None}, "UNSUPPORTED_ISSUER"),
        ({"iss": [ISSUER]}, "UNSUPPORTED_ISSUER"),
        ({"aud": None}, "INVALID_JWT_CLAIM"),
        ({"aud": "wrong"}, "INVALID_JWT_CLAIM"),
        ({"aud": []}, "INVALID_JWT_CLAIM"),
        ({"aud": {AUDIENCE: 1}}, "INVALID_JWT_CLAIM"),
        ({"aud": [[AUDIENCE]]}, "INVALID_JWT_CLAIM"),
        ({"exp": None}, "INVALID_JWT_CLAIM"),
        ({"exp": 1}, "EXPIRED_JWT"),
        ({"exp": "2999-01-01"}, "INVALID_TOKEN"),
        ({"exp": True}, "INVALID_TOKEN"),
        ({"exp": [4_000_000_000]}, "INVALID_TOKEN"),
        ({"exp": float("inf")}, "ERROR_DECODING_JWT"),
        ({"exp": 10**400}, "INVALID_TOKEN"),
        ({"nbf": 4_000_000_000}, "INVALID_TOKEN"),
        ({"nbf": "now"}, "INVALID_TOKEN"),
        ({"iat": None}, "INVALID_JWT_CLAIM"),
        ({"iat": 4_000_000_000}, "INVALID_JWT_CLAIM"),
        ({"iat": {}}, "INVALID_TOKEN"),
        ({"sub": None}, "INVALID_JWT_CLAIM"),
        ({"sub": ""}, "INVALID_TOKEN"),
        ({"sub": 5}, "INVALID_TOKEN"),
        ({"sub": []}, "INVALID_TOKEN"),
        ({"sub": "x" * 2000}, "INVALID_TOKEN"),
    ],
    ids=str,
)
async def test_wrong_claim_is_refused(issuer: IdentityProvider, changes: dict[str, Any], reason: str) -> None:
    assert (await refusal(provider_of(), issuer.token(**changes))).reason == reason


async def test_clock_differences_up_to_the_leeway_are_accepted(issuer: IdentityProvider) -> None:
    now_s = time.time()
    provider = provider_of(open_id_accepted_time_leeway_seconds=60)
    identity = await provider.authenticate(
        issuer.token(exp=now_s - 30, nbf=now_s + 30, iat=now_s + 30).encode(), CLIENT
    )
    assert identity.expires_at_s == pytest.approx(now_s + 30)
    assert (await refusal(provider, issuer.token(exp=now_s - 61))).reason == "EXPIRED_JWT"


@pytest.mark.parametrize("key_id", [None, "", 5, "x" * 2000, "unknown"])
async def test_token_without_a_known_key_id_is_refused(issuer: IdentityProvider, key_id: object) -> None:
    error = await refusal(provider_of(), hand_made({"alg": "ES256", "kid": key_id}, {"iss": ISSUER}))
    assert "key id" in str(error)


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def hand_made(header: object, claims: object, signature: bytes = b"signature") -> str:
    parts = [encoded(json.dumps(part).encode()) for part in (header, claims)]
    return ".".join([*parts, encoded(signature)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "a.b.c.d.e",
        "é.é.é",
        "x" * 70_000,
        encoded(b"[" * 20_000) + ".e30.x",
        "e30.e30.e30",
    ],
    ids=lambda text: text[:12],
)
async def test_text_that_is_no_token_is_refused(issuer: IdentityProvider, text: str) -> None:
    await refusal(provider_of(), text)


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS1", "", None, 5, ["ES256"]])
async def test_unsafe_algorithm_is_refused_without_a_download(
    network: Network, issuer: IdentityProvider, algorithm: object
) -> None:
    error = await refusal(provider_of(), hand_made({"alg": algorithm, "kid": "first"}, {"iss": ISSUER, "sub": "admin"}))
    assert error.reason == "UNSUPPORTED_ALGORITHM"
    assert not network.downloads


async def test_public_key_is_not_accepted_as_a_shared_secret(network: Network) -> None:
    issuer = IdentityProvider("RS256")
    network.add(issuer, ISSUER)
    header, claims = (
        {"alg": "HS256", "kid": "first"},
        {"iss": ISSUER, "sub": "admin", "aud": AUDIENCE, "exp": 4e9, "iat": 1},
    )
    signed = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
    public = credentials.public_pem(credentials.rsa_key())
    token = f"{signed}.{encoded(hmac.digest(public, signed.encode(), 'sha256'))}"
    assert (await refusal(provider_of(), token)).reason == "UNSUPPORTED_ALGORITHM"


async def test_key_is_not_used_with_another_algorithm_of_its_type(network: Network) -> None:
    issuer = IdentityProvider("RS256")
    network.add(issuer, ISSUER)
    issuer.keys["first"] = issuer.keys["first"][0], "PS256"  # signs with PS256, publishes RS256
    assert (await refusal(provider_of(), issuer.token())).reason == "ALGORITHM_MISMATCH"


async def test_signature_of_another_key_is_refused(issuer: IdentityProvider) -> None:
    issuer.keys["first"] = new_key("ES256"), "ES256"
    assert (await refusal(provider_of(), issuer.token())).reason == "ERROR_VERIFYING_JWT_SIGNATURE"


async def test_changed_claims_are_refused(issuer: IdentityProvider) -> None:
    header, _, signature = issuer.token().split(".")
    _, claims, _ = issuer.token("admin").split(".")
    assert (await refusal(provider_of(), f"{header}.{claims}.{signature}")).reason == "ERROR_VERIFYING_JWT_SIGNATURE"


async def test_token_inside_a_token_is_refused(issuer: IdentityProvider) -> None:
    key, algorithm = issuer.keys["first"]
    outer = jwt.PyJWS().encode(issuer.token().encode(), key, algorithm, headers={"kid": "first", "cty": "JWT"})
    assert (await refusal(provider_of(), outer)).reason == "ERROR_DECODING_JWT"


async def test_unknown_critical_header_is_refused(issuer: IdentityProvider) -> None:
    token = issuer.token(header={"crit": ["policy"], "policy": "strict"})
    assert (await refusal(provider_of(), token)).reason == "ERROR_DECODING_JWT"


async def test_several_issuers_have_their_own_keys(network: Network, issuer: IdentityProvider) -> None:
    other = IdentityProvider("ES256")
    network.add(other, "https://other.example")
    provider = provider_of(open_id_allowed_token_issuers=(ISSUER, other.issuer))
    assert await role_of(provider, issuer.token("a")) == "a"
    assert await role_of(provider, other.token("b")) == "b"
    assert (await refusal(provider, other.token(iss=ISSUER))).reason == "ERROR_VERIFYING_JWT_SIGNATURE"


async def test_keys_of_the_least_recently_used_issuer_are_dropped(network: Network, issuer: IdentityProvider) -> None:
    others = [IdentityProvider("ES256") for _ in range(2)]
    for number, other in enumerate(others):
        network.add(other, f"https://other{number}.example")
    issuers = (ISSUER, *(each.issuer for each in others))
    provider = provider_of(open_id_allowed_token_issuers=issuers, open_id_cache_size=2)
    for each in (issuer, others[0], issuer, others[1], issuer, others[0]):
        assert await role_of(provider, each.token()) == "app"
    fetched = [url.removesuffix(KEYS) for url in network.downloads if url.endswith(KEYS)]
    assert fetched == [ISSUER, others[0].issuer, others[1].issuer, others[0].issuer]


async def test_forged_tokens_do_not_displace_the_keys_of_another_issuer(
    network: Network, issuer: IdentityProvider
) -> None:
    other = IdentityProvider("ES256")
    network.add(other, "https://other.example")
    provider = provider_of(open_id_allowed_token_issuers=(ISSUER, other.issuer), open_id_cache_size=1)
    assert await role_of(provider, issuer.token()) == "app"
    for _ in range(3):
        assert (await refusal(provider, issuer.token(iss=other.issuer))).reason == "ERROR_VERIFYING_JWT_SIGNATURE"
        assert await role_of(provider, issuer.token()) == "app"
    assert network.downloads.count(ISSUER + KEYS) == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"open_id_allowed_token_issuers": ()}, "openIDAllowedTokenIssuers"),
        ({"open_id_allowed_audiences": ()}, "openIDAllowedAudiences"),
        ({"open_id_allowed_token_issuers": ("http://idp.example",)}, "does not use https"),
        ({"open_id_allowed_token_issuers": ("idp.example",)}, "is not a valid URL"),
        ({"open_id_allowed_token_issuers": ("https://user:secret@idp.example",)}, "contains a user"),
        ({"open_id_allowed_token_issuers": ("https://idp.example:99999",)}, "is not a valid URL"),
        ({"open_id_allowed_token_issuers": ("https://idp.example?x=1",)}, "contains a query"),
        ({"open_id_token_issuer_trust_certs_file_path": "/missing.pem"}, "openIDTokenIssuerTrustCertsFilePath"),
        ({"open_id_cache_refresh_after_write_seconds": 100_000}, "openIDCacheRefreshAfterWriteSeconds"),
    ],
)
def test_configuration_that_cannot_work_is_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        provider_of(**changes)


def test_file_without_certificates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.pem"
    path.write_text("nothing")
    with pytest.raises(ConfigError, match="openIDTokenIssuerTrustCertsFilePath"):
        provider_of(open_id_token_issuer_trust_certs_file_path=str(path))
    provider_of(open_id_token_issuer_trust_certs_file_path=str(CertificateAuthority(tmp_path).certificate_path))


async def test_tokens_of_the_broker_and_of_an_issuer_work_side_by_side(issuer: IdentityProvider) -> None:
    secret = bytes(range(32))
    package = "org.apache.pulsar.broker.authentication."
    names = (f"{package}AuthenticationProviderToken", f"{package}oidc.AuthenticationProviderOpenID")
    config = config_of(
        authentication_enabled=True, authentication_providers=names, token_secret_key=credentials.data_url(secret)
    )
    service = AuthenticationService(config)
    assert (await service.authenticate("token", issuer.token("a").encode(), CLIENT)).role == "a"
    assert (await service.authenticate("token", credentials.token(secret, sub="b").encode(), CLIENT)).role == "b"
    with pytest.raises(AuthenticationError, match=r"AuthenticationProviderToken: .*; AuthenticationProviderOpenID: "):
        await service.authenticate("token", b"x", CLIENT)
    assert service.successes == {
        ("AuthenticationProviderToken", "token"): 1,
        ("AuthenticationProviderOpenID", "token"): 1,
    }
    assert {key.reason: total for key, total in service.failures.items()} == {
        "INVALID_TOKEN": 1,
        "ERROR_DECODING_JWT": 1,
    }
    await service.close()
