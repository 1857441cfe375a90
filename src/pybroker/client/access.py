"""Address and credentials of a broker, for each process that connects to it.

No secret appears in a `repr`, an error, or a Spark plan. A `Secret` with a file or an environment variable is not sent
to other processes either.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

MAX_SECRET_BYTES = 64 * 1024
"""Prevents sending the content of a wrong file, such as a log, to a broker."""


class AccessRefused(ValueError):
    """A secret cannot be read, or settings contradict each other. The text names the setting and contains no secret."""


@dataclass(frozen=True)
class Secret:
    """A secret text, or the file or environment variable that contains it. Exactly one of the three is set.

    `in_file` and `in_environment` are read at each use, in the process that needs the secret.
    """

    text: str | None = field(default=None, repr=False)
    in_file: str | None = None
    in_environment: str | None = None

    def reveal(self) -> str:
        """Return the secret without surrounding white space. Raises AccessRefused."""
        if self.text is not None:
            return self.text
        if self.in_environment is not None:
            value = os.environ.get(self.in_environment)
            if not value:
                raise AccessRefused(
                    f"the environment variable {self.in_environment} is not set in this process: "
                    "set it on the driver and on every executor"
                )
            return value.strip()
        assert self.in_file is not None
        try:
            with Path(self.in_file).open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise AccessRefused(
                f"the secret's file {self.in_file} cannot be read: {error.strerror}; the file must exist "
                "on the driver and on every executor"
            ) from error
        if not content.strip() or len(content) > MAX_SECRET_BYTES:
            raise AccessRefused(
                f"the file {self.in_file} of a secret is empty, or larger than {MAX_SECRET_BYTES} bytes"
            )
        return content.decode("utf-8", "replace").strip()  # the broker checks its validity


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
    connection_timeout_s: float = 10.0
    operation_timeout_s: float = 30.0
    """Time limit of one response."""

    def __post_init__(self) -> None:
        if self.token is not None and self.basic_user is not None:
            raise AccessRefused("a token and a user with password exclude each other: remove one of them")
        if (self.basic_user is None) != (self.basic_password is None):
            raise AccessRefused("basic authentication needs userId and password")
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise AccessRefused("a client certificate needs both its certificate file and its key file")

    @property
    def method(self) -> str:
        """Name of the authentication method: `token`, `basic`, `tls` or `none`."""
        if self.token is not None:
            return "token"
        if self.basic_user is not None:
            return "basic"
        return "tls" if self.tls_certificate_file is not None else "none"

    def auth_data(self) -> bytes:
        """Return the authentication data of CONNECT; the secret is read at each call. Raises AccessRefused."""
        if self.token is not None:
            return self.token.reveal().encode()
        if self.basic_user is not None:
            assert self.basic_password is not None
            return f"{self.basic_user}:{self.basic_password.reveal()}".encode()
        return b""


def access_by_parameters(
    service_url: str, admin_url: str | None, auth_parameters: str, tls_trust_certs_file: str | None
) -> Access:
    """Return an `Access`; the form of `auth_parameters` selects the authentication method. JSON with `userId` means
    basic, other non-empty text is a token in a form of `token_secret`, empty text means none. Raises AccessRefused.
    """
    token = user = password = None
    if auth_parameters.lstrip().startswith("{") and "userId" in _json_parameters(auth_parameters):
        user, password = basic_secret(auth_parameters)
    elif auth_parameters:
        token = token_secret(auth_parameters)
    return Access(
        service_url,
        admin_url or None,
        token=token,
        basic_user=user,
        basic_password=password,
        tls_trust_certs_file=tls_trust_certs_file or None,
    )


def token_secret(parameters: str) -> Secret:
    """Return the token in `authParams`: `token:...`, `file:...`, `env:NAME`, JSON with `token`, or the token itself."""
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
    may be `file:...` or `env:NAME`.
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
