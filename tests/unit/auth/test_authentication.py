"""Selection of the authentication method, on the binary protocol and over HTTP."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.support import credentials

from pybroker.auth.authentication import AuthenticationService, PeerCertificate, RemoteClient
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError

SECRET = bytes(range(32))
CLASS_NAMES = tuple(
    f"org.apache.pulsar.broker.authentication.AuthenticationProvider{kind}" for kind in ("Token", "Basic", "Tls")
)
CERTIFIED = RemoteClient("127.0.0.1", PeerCertificate("cert-role"))
PLAIN = RemoteClient("127.0.0.1")
TOKEN = credentials.token(SECRET, sub="token-role")


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return BrokerConfig().replace(
        authentication_enabled=True,
        authentication_providers=CLASS_NAMES,
        token_secret_key=credentials.data_url(SECRET),
        basic_auth_conf=str(credentials.htpasswd(tmp_path, alice="secret")),
    )


def basic_header(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


async def test_without_authentication_everybody_is_nobody() -> None:
    service = AuthenticationService(BrokerConfig())
    assert not service.enabled
    for identity in (
        await service.authenticate("token", b"whatever", PLAIN),
        await service.authenticate_http({"authorization": "Bearer x"}, CERTIFIED),
    ):
        assert (identity.role, identity.method, identity.expires_at_s) == (None, "none", None)


async def test_all_three_ways_in_work_at_once(config: BrokerConfig) -> None:
    service = AuthenticationService(config)
    assert (await service.authenticate("token", TOKEN.encode(), PLAIN)).role == "token-role"
    assert (await service.authenticate("basic", b"alice:secret", CERTIFIED)).role == "alice"
    assert (await service.authenticate("tls", b"", CERTIFIED)).role == "cert-role"


async def test_all_three_ways_in_work_over_http(config: BrokerConfig) -> None:
    service = AuthenticationService(config)
    assert (await service.authenticate_http({"authorization": f"Bearer {TOKEN}"}, CERTIFIED)).role == "token-role"
    assert (await service.authenticate_http({"authorization": f"bearer  {TOKEN}"}, PLAIN)).role == "token-role"
    assert (await service.authenticate_http(basic_header("alice:secret"), PLAIN)).role == "alice"
    assert (await service.authenticate_http({}, CERTIFIED)).role == "cert-role"
    assert (await service.authenticate_http({}, CERTIFIED, TOKEN)).role == "token-role"
    assert (await service.authenticate_http(basic_header("alice:secret"), PLAIN, TOKEN)).role == "alice"


@pytest.mark.parametrize("anonymous", ["", "anonymous"])
@pytest.mark.parametrize(
    ("method", "data"), [("token", b"x"), ("token", b""), ("basic", b"alice:wrong"), ("basic", b""), ("tls", b"")]
)
async def test_wrong_or_missing_credentials_of_a_configured_method_are_refused_and_never_anonymous(
    config: BrokerConfig, anonymous: str, method: str, data: bytes
) -> None:
    service = AuthenticationService(config.replace(anonymous_user_role=anonymous))
    with pytest.raises(AuthenticationError):
        await service.authenticate(method, data, PLAIN)


@pytest.mark.parametrize("anonymous", ["", "anonymous"])
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer x"},
        {"authorization": "Bearer"},
        basic_header("alice:wrong"),
        {"authorization": "Basic *"},
    ],
)
async def test_wrong_credentials_over_http_are_refused_and_never_anonymous(
    config: BrokerConfig, anonymous: str, headers: dict[str, str]
) -> None:
    service = AuthenticationService(config.replace(anonymous_user_role=anonymous))
    with pytest.raises(AuthenticationError):
        await service.authenticate_http(headers, CERTIFIED)


@pytest.mark.parametrize("method", ["", "none", "athenz", "x" * 1000])
async def test_who_names_no_configured_method_is_anonymous_only_where_that_is_a_role(
    config: BrokerConfig, method: str
) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await AuthenticationService(config).authenticate(method, b"", PLAIN)
    assert len(str(caught.value)) < 200
    allowed = config.replace(anonymous_user_role="anonymous")
    assert (await AuthenticationService(allowed).authenticate(method, b"", PLAIN)).role == "anonymous"
    strict = allowed.replace(strict_auth_method=True)
    with pytest.raises(AuthenticationError):
        await AuthenticationService(strict).authenticate(method, b"", PLAIN)


async def test_an_http_request_without_credentials_is_anonymous_only_where_that_is_a_role(config: BrokerConfig) -> None:
    with pytest.raises(AuthenticationError, match="authentication is required"):
        await AuthenticationService(config).authenticate_http({}, PLAIN)
    allowed = config.replace(anonymous_user_role="anonymous")
    assert (await AuthenticationService(allowed).authenticate_http({}, PLAIN)).role == "anonymous"


async def test_a_certificate_is_no_credential_where_certificates_are_only_transport(config: BrokerConfig) -> None:
    service = AuthenticationService(
        config.replace(authentication_providers=("token",), anonymous_user_role="anonymous")
    )
    assert (await service.authenticate_http({}, CERTIFIED)).role == "anonymous"
    assert (await service.authenticate("tls", b"", CERTIFIED)).role == "anonymous"


async def test_a_certificate_without_a_common_name_is_refused(config: BrokerConfig) -> None:
    with pytest.raises(AuthenticationError, match="common name"):
        await AuthenticationService(config).authenticate("tls", b"", RemoteClient("127.0.0.1", PeerCertificate(None)))


async def test_short_names_and_repeated_ones_are_accepted(config: BrokerConfig) -> None:
    service = AuthenticationService(config.replace(authentication_providers=("tls", "token", CLASS_NAMES[0])))
    assert (await service.authenticate("token", TOKEN.encode(), PLAIN)).role == "token-role"
    with pytest.raises(AuthenticationError):
        await service.authenticate("basic", b"alice:secret", PLAIN)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"authentication_providers": ("org.example.Magic",)}, "authenticationProviders: 'org.example.Magic'"),
        ({"authentication_providers": ()}, "authenticationProviders"),
        ({"basic_auth_conf": ""}, "basicAuthConf"),
        ({"token_secret_key": ""}, "tokenSecretKey"),
        ({"tls_allow_insecure_connection": True}, "tlsAllowInsecureConnection"),
    ],
)
def test_a_configuration_that_cannot_work_names_its_key(
    config: BrokerConfig, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        AuthenticationService(config.replace(**changes))
