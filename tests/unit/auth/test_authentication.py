"""Selection of the authentication method, on the binary protocol and over HTTP."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.support import credentials

from pybroker.auth.authentication import AuthenticationService, PeerCertificate
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError

SECRET = bytes(range(32))
CLASS_NAMES = tuple(
    f"org.apache.pulsar.broker.authentication.AuthenticationProvider{kind}" for kind in ("Token", "Basic", "Tls")
)
CERTIFICATE = PeerCertificate("cert-role")
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


def test_without_authentication_everybody_is_nobody() -> None:
    service = AuthenticationService(BrokerConfig())
    assert not service.enabled
    for identity in (
        service.authenticate("token", b"whatever", None, 0),
        service.authenticate_http({"authorization": "Bearer x"}, CERTIFICATE, 0),
    ):
        assert (identity.role, identity.method, identity.expires_at_s) == (None, "none", None)


def test_all_three_ways_in_work_at_once(config: BrokerConfig) -> None:
    service = AuthenticationService(config)
    assert service.authenticate("token", TOKEN.encode(), None, 0).role == "token-role"
    assert service.authenticate("basic", b"alice:secret", CERTIFICATE, 0).role == "alice"
    assert service.authenticate("tls", b"", CERTIFICATE, 0).role == "cert-role"


def test_all_three_ways_in_work_over_http(config: BrokerConfig) -> None:
    service = AuthenticationService(config)
    assert service.authenticate_http({"authorization": f"Bearer {TOKEN}"}, CERTIFICATE, 0).role == "token-role"
    assert service.authenticate_http({"authorization": f"bearer  {TOKEN}"}, None, 0).role == "token-role"
    assert service.authenticate_http(basic_header("alice:secret"), None, 0).role == "alice"
    assert service.authenticate_http({}, CERTIFICATE, 0).role == "cert-role"
    assert service.authenticate_http({}, CERTIFICATE, 0, TOKEN).role == "token-role"
    assert service.authenticate_http(basic_header("alice:secret"), None, 0, TOKEN).role == "alice"


@pytest.mark.parametrize("anonymous", ["", "anonymous"])
@pytest.mark.parametrize(
    ("method", "data"), [("token", b"x"), ("token", b""), ("basic", b"alice:wrong"), ("basic", b""), ("tls", b"")]
)
def test_wrong_or_missing_credentials_of_a_configured_method_are_refused_and_never_anonymous(
    config: BrokerConfig, anonymous: str, method: str, data: bytes
) -> None:
    service = AuthenticationService(config.replace(anonymous_user_role=anonymous))
    with pytest.raises(AuthenticationError):
        service.authenticate(method, data, None, 0)


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
def test_wrong_credentials_over_http_are_refused_and_never_anonymous(
    config: BrokerConfig, anonymous: str, headers: dict[str, str]
) -> None:
    service = AuthenticationService(config.replace(anonymous_user_role=anonymous))
    with pytest.raises(AuthenticationError):
        service.authenticate_http(headers, CERTIFICATE, 0)


@pytest.mark.parametrize("method", ["", "none", "athenz", "x" * 1000])
def test_who_names_no_configured_method_is_anonymous_only_where_that_is_a_role(
    config: BrokerConfig, method: str
) -> None:
    with pytest.raises(AuthenticationError) as caught:
        AuthenticationService(config).authenticate(method, b"", None, 0)
    assert len(str(caught.value)) < 200
    allowed = config.replace(anonymous_user_role="anonymous")
    assert AuthenticationService(allowed).authenticate(method, b"", None, 0).role == "anonymous"
    strict = allowed.replace(strict_auth_method=True)
    with pytest.raises(AuthenticationError):
        AuthenticationService(strict).authenticate(method, b"", None, 0)


def test_an_http_request_without_credentials_is_anonymous_only_where_that_is_a_role(config: BrokerConfig) -> None:
    with pytest.raises(AuthenticationError, match="authentication is required"):
        AuthenticationService(config).authenticate_http({}, None, 0)
    allowed = config.replace(anonymous_user_role="anonymous")
    assert AuthenticationService(allowed).authenticate_http({}, None, 0).role == "anonymous"


def test_a_certificate_is_no_credential_where_certificates_are_only_transport(config: BrokerConfig) -> None:
    service = AuthenticationService(
        config.replace(authentication_providers=("token",), anonymous_user_role="anonymous")
    )
    assert service.authenticate_http({}, CERTIFICATE, 0).role == "anonymous"
    assert service.authenticate("tls", b"", CERTIFICATE, 0).role == "anonymous"


def test_a_certificate_without_a_common_name_is_refused(config: BrokerConfig) -> None:
    with pytest.raises(AuthenticationError, match="common name"):
        AuthenticationService(config).authenticate("tls", b"", PeerCertificate(None), 0)


def test_short_names_and_repeated_ones_are_accepted(config: BrokerConfig) -> None:
    service = AuthenticationService(config.replace(authentication_providers=("tls", "token", CLASS_NAMES[0])))
    assert service.authenticate("token", TOKEN.encode(), None, 0).role == "token-role"
    with pytest.raises(AuthenticationError):
        service.authenticate("basic", b"alice:secret", None, 0)


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
