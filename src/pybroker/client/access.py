"""Address and credentials with which a process connects to a broker.

No secret appears in a `repr`, an error, or a Spark plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pybroker.client.oauth2 import OAuth2, oauth2_of
from pybroker.client.secret import AccessRefused, Secret

__all__ = ["Access", "AccessRefused", "OAuth2", "Secret", "oauth2_of"]


@dataclass(frozen=True)
class Access:
    """Address, credentials and timeouts for one broker or cluster. Can be pickled; `repr` shows no secret. Clients with
    equal objects may share a connection.
    """

    service_url: str
    """`pulsar://host:port` or `pulsar+ssl://host:port`; several hosts are separated by commas."""
    admin_url: str | None = None
    """`http://host:port` or `https://host:port` of the REST API."""
    token: Secret | None = None
    oauth2: OAuth2 | None = None
    """Client credentials, with which tokens are requested from an identity provider."""
    basic_user: str | None = None
    basic_password: Secret | None = None
    tls_certificate_file: str | None = None
    """PEM file of the client's certificate. Needs `tls_key_file`."""
    tls_key_file: str | None = None
    tls_trust_certs_file: str | None = None
    """PEM file of the trusted authorities; None: the authorities of the system."""
    tls_allow_insecure: bool = False
    """Accept any certificate. For experiments only."""
    tls_verify_hostname: bool = True
    listener_name: str | None = None
    original_principal: str = ""
    """For a client with a proxy role: the role of the user for whom it connects."""
    connection_timeout_s: float = 10.0
    operation_timeout_s: float = 30.0
    """Time limit of one response."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.token, self.oauth2, self.basic_user)) > 1:
            raise AccessRefused("a token, OAuth 2.0, and a user with password exclude each other: keep one of them")
        if (self.basic_user is None) != (self.basic_password is None):
            raise AccessRefused("basic authentication needs userId and password")
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise AccessRefused("a client certificate needs both its certificate file and its key file")

    @property
    def method(self) -> str:
        """Name of the authentication method: `token`, `basic`, `tls` or `none`."""
        if self.token is not None or self.oauth2 is not None:
            return "token"
        if self.basic_user is not None:
            return "basic"
        return "tls" if self.tls_certificate_file is not None else "none"

    def auth_data(self) -> bytes:
        """Return the authentication data of CONNECT; the secret is read at each call. With OAuth 2.0, the call may wait
        for the identity provider. Raises AccessRefused, and ClientError if the identity provider cannot be reached.
        """
        if self.token is not None:
            return self.token.reveal().encode()
        if self.oauth2 is not None:
            from pybroker.client.oauth2_tokens import access_token  # noqa: PLC0415  (HTTP: only its users wait for it)

            return access_token(self.oauth2, self.tls_trust_certs_file, self.connection_timeout_s).encode()
        if self.basic_user is not None:
            assert self.basic_password is not None
            return f"{self.basic_user}:{self.basic_password.reveal()}".encode()
        return b""


def access_by_parameters(
    service_url: str, admin_url: str | None, auth_parameters: str, tls_trust_certs_file: str | None
) -> Access:
    """Return an `Access`. JSON with `userId` in `auth_parameters` selects basic authentication, JSON with `issuerUrl`
    selects OAuth 2.0, and empty text selects no authentication. Other text contains a token, which `token_secret`
    parses. Raises AccessRefused.
    """
    token = user = password = oauth2 = None
    values = _json_parameters(auth_parameters) if auth_parameters.lstrip().startswith("{") else {}
    if "userId" in values:
        user, password = basic_secret(auth_parameters)
    elif "issuerUrl" in values or "issuer_url" in values:
        oauth2 = oauth2_of(auth_parameters)
    elif auth_parameters:
        token = token_secret(auth_parameters)
    return Access(
        service_url,
        admin_url or None,
        token=token,
        oauth2=oauth2,
        basic_user=user,
        basic_password=password,
        tls_trust_certs_file=tls_trust_certs_file or None,
    )


def token_secret(parameters: str) -> Secret:
    """Return the token in `parameters` (Pulsar's `authParams`): `token:...`, `file:...`, `env:NAME`, JSON with `token`,
    or the token itself. Raises AccessRefused.
    """
    text = parameters.strip()
    if text.startswith("{"):
        return token_secret(str(_json_parameters(text).get("token", "")))
    if text.startswith("token:"):
        return Secret(text=_not_empty(text.removeprefix("token:")))
    if text.startswith("file:"):
        path = text.removeprefix("file:")
        return Secret(in_file=_not_empty("/" + path.lstrip("/") if path.startswith("//") else path))
    if text.startswith("env:"):
        return Secret(in_environment=_not_empty(text.removeprefix("env:")))
    return Secret(text=_not_empty(text))


def basic_secret(parameters: str) -> tuple[str, Secret]:
    """Return user and password from JSON with `userId` and `password`, or from `user:password`. In JSON, the password
    may be `file:...` or `env:NAME`. Raises AccessRefused.
    """
    text = parameters.strip()
    if text.startswith("{"):
        values = _json_parameters(text)
        user, password = str(values.get("userId", "")), str(values.get("password", ""))
        if password.startswith("file:"):
            secret = token_secret(password)
        elif password.startswith("env:"):
            secret = Secret(in_environment=_not_empty(password.removeprefix("env:")))
        else:
            secret = Secret(text=password)
    else:
        user, _, password = text.partition(":")
        secret = Secret(text=password)
    if not user or secret.text == "":
        raise AccessRefused(
            'authParams of basic authentication must be JSON of the form {"userId": "...", "password": "..."}'
        )
    return user, secret


def tls_files(parameters: str) -> tuple[str, str]:
    text = parameters.strip()
    if text.startswith("{"):
        values = {key: str(value) for key, value in _json_parameters(text).items()}
    else:
        values = {key.strip(): value.strip() for key, _, value in (part.partition(":") for part in text.split(","))}
    certificate, key = values.get("tlsCertFile", ""), values.get("tlsKeyFile", "")
    if not certificate or not key:
        raise AccessRefused("authParams of TLS authentication must have the form tlsCertFile:PATH,tlsKeyFile:PATH")
    return certificate, key


def _json_parameters(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):  # the error does not repeat the text, which may contain a secret
        raise AccessRefused("the authParams begin with {, but are not a JSON object")
    return values


def _not_empty(text: str) -> str:
    if not text.strip():
        raise AccessRefused("the authParams contain no secret: use the form token:..., file:/path or env:NAME")
    return text.strip()
