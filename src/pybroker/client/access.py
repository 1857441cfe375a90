"""Where a broker is and how one proves there who one is: given once, carried to every process that talks to the broker.

A secret is written out nowhere: not in `repr`, not in an error, not in a plan of Spark. It is best not carried at all but read
from a file or the environment of the process that uses it, which also makes a token that is renewed in its file work.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

MAX_SECRET_BYTES = 64 * 1024
"""Of a file that is read as a secret: a wrong path, such as a log, must not be sent to a broker."""


class AccessRefused(ValueError):
    """A secret that cannot be read, or an access that contradicts itself. The text says what to change and holds no secret."""


@dataclass(frozen=True)
class Secret:
    """A text that is never shown: itself, or where it is to be read when it is used.

    Exactly one of the three is set. `in_file` and `in_environment` are read each time, in the process that needs the secret.
    """

    text: str | None = field(default=None, repr=False)
    in_file: str | None = None
    in_environment: str | None = None

    def reveal(self) -> str:
        """The secret, without the line feed at a file's end. Raises AccessRefused when it is not there."""
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
                f"the secret's file {self.in_file} cannot be read: {error.strerror}; it is read where it is used, "
                "on the driver and on every executor"
            ) from error
        if not content.strip() or len(content) > MAX_SECRET_BYTES:
            raise AccessRefused(f"the file {self.in_file} is empty or no secret: it has over {MAX_SECRET_BYTES} bytes")
        return content.decode("utf-8", "replace").strip()  # whether it is right says the broker


@dataclass(frozen=True)
class Access:
    """How to reach a broker and as whom. Equal accesses may share a connection; picklable; `repr` shows no secret."""

    service_url: str
    """`pulsar://host:port` or `pulsar+ssl://host:port`, several hosts separated by commas."""
    admin_url: str | None = None
    """`http://host:port` or `https://host:port` of the broker's REST; None where it was not told."""
    token: Secret | None = None
    basic_user: str | None = None
    basic_password: Secret | None = None
    tls_certificate_file: str | None = None
    """PEM, with `tls_key_file`: the client's own certificate; presented on every TLS connection."""
    tls_key_file: str | None = None
    tls_trust_certs_file: str | None = None
    """PEM of the authorities to trust; None: those of the system."""
    tls_allow_insecure: bool = False
    """Accept any certificate: for trying things out."""
    tls_verify_hostname: bool = True
    listener_name: str | None = None
    connection_timeout_s: float = 10.0
    operation_timeout_s: float = 30.0
    """How long one answer of the broker may take before it counts as an error."""

    def __post_init__(self) -> None:
        if self.token is not None and self.basic_user is not None:
            raise AccessRefused("either a token or user and password, not both")
        if (self.basic_user is None) != (self.basic_password is None):
            raise AccessRefused("basic authentication needs userId and password")
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise AccessRefused("a client certificate needs both its certificate file and its key file")

    @property
    def method(self) -> str:
        """The protocol's name of how one authenticates: `token`, `basic`, `tls` or `none`."""
        if self.token is not None:
            return "token"
        if self.basic_user is not None:
            return "basic"
        return "tls" if self.tls_certificate_file is not None else "none"

    def auth_data(self) -> bytes:
        """What CONNECT carries beside the method's name, read anew each time. Raises AccessRefused."""
        if self.token is not None:
            return self.token.reveal().encode()
        if self.basic_user is not None:
            assert self.basic_password is not None
            return f"{self.basic_user}:{self.basic_password.reveal()}".encode()
        return b""


def access_by_parameters(
    service_url: str, admin_url: str | None, auth_parameters: str, tls_trust_certs_file: str | None
) -> Access:
    """Where the form of `auth_parameters` says how one authenticates: JSON with `userId` is basic authentication, anything
    else a token as `token_secret` takes it, and nothing means nobody in particular. Raises AccessRefused.
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
    """The token that the clients' `authParams` mean: `token:...`, `file:...`, `env:NAME`, JSON with `token`, or itself."""
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
    """User and password of basic authentication: JSON with `userId` and `password`, or `user:password`.

    The password may be `file:...` or `env:NAME` in the JSON form, as a token may.
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
        raise AccessRefused('basic authentication needs {"userId": "...", "password": "..."} as authParams')
    return user, secret


def tls_files(parameters: str) -> tuple[str, str]:
    """Certificate and key file of TLS authentication: JSON or `tlsCertFile:...,tlsKeyFile:...`."""
    text = parameters.strip()
    if text.startswith("{"):
        values = {key: str(value) for key, value in _json_parameters(text).items()}
    else:
        values = {key.strip(): value.strip() for key, _, value in (part.partition(":") for part in text.split(","))}
    certificate, key = values.get("tlsCertFile", ""), values.get("tlsKeyFile", "")
    if not certificate or not key:
        raise AccessRefused("TLS authentication needs tlsCertFile:PATH,tlsKeyFile:PATH as authParams")
    return certificate, key


def _json_parameters(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):  # The text is not repeated: it may hold a secret.
        raise AccessRefused("the authParams begin with { and are no JSON object")
    return values


def _not_empty(text: str) -> str:
    if not text.strip():
        raise AccessRefused("the authParams hold no secret: use token:..., file:/path or env:NAME")
    return text.strip()
