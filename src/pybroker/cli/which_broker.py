"""The broker and credentials of a command.

Options override single values. All others come from one source, so that credentials of one broker are never sent to
another. The first of these applies: the profile of `--profile`; a pipeline's settings file with a broker or
credentials; the environment, if `--url`, `--service-url`, `PULSAR_ADMIN_URL` or `PULSAR_SERVICE_URL` is set; the
default profile; the environment with a local broker. No option contains a secret.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from pybroker.cli.exit_codes import WrongUsage
from pybroker.cli.parsed_arguments import seconds
from pybroker.cli.profiles import Profiles, profiles_path, read_profiles
from pybroker.client.access import Access, AccessRefused, OAuth2, Secret, oauth2_of

DEFAULT_URL = "http://127.0.0.1:8080"
_ENVIRONMENT = {
    "url": "PULSAR_ADMIN_URL",
    "service_url": "PULSAR_SERVICE_URL",
    "token_file": "PULSAR_TOKEN_FILE",
    "oauth2_file": "PULSAR_OAUTH2_FILE",
    "listener_name": "PULSAR_LISTENER_NAME",
    "basic_user": "PULSAR_BASIC_USER",
    "basic_password_file": "PULSAR_BASIC_PASSWORD_FILE",
    "tls_trust_certs_file": "PULSAR_TLS_TRUST_CERTS_FILE",
    "tls_certificate_file": "PULSAR_TLS_CERTIFICATE_FILE",
    "tls_key_file": "PULSAR_TLS_KEY_FILE",
}
_SECRETS_IN_ENVIRONMENT = {"token_env": "PULSAR_TOKEN", "basic_password_env": "PULSAR_BASIC_PASSWORD"}
_OF_OPTIONS = (*_ENVIRONMENT, "tls_allow_insecure")
_TOKEN = ("token", "token_file", "token_env")
_PASSWORD = ("basic_password", "basic_password_file", "basic_password_env")
_OAUTH2 = ("oauth2_file", "oauth2_params")
_CREDENTIALS = (*_TOKEN, *_OAUTH2, *_PASSWORD, "basic_user")


@dataclass(frozen=True, slots=True)
class Where:
    """Selected broker: address, credentials, and their source."""

    access: Access
    """An empty `service_url` is requested from the broker."""
    source: str
    """Origin of the values, for error texts: a profile, the options, the environment."""


class _Refuse(argparse.Action):
    """Refuses an option whose value would be a secret."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        instead = (
            "--token-file, PULSAR_TOKEN"
            if self.dest != "refused_password"
            else "--basic-password-file, PULSAR_BASIC_PASSWORD"
        )
        parser.error(
            f"{self.option_strings[0]} is not supported: a secret would stay in the shell's history. Use {instead} or a profile"
        )


def add_broker_options(parser: argparse.ArgumentParser, *, is_binary: bool = False) -> None:
    """Add the connection options. `is_binary`: the command also uses the binary protocol."""
    group = parser.add_argument_group("connection and credentials")
    group.add_argument(
        "--url",
        "--admin-url",
        metavar="URL",
        help=f"HTTP address of the broker (PULSAR_ADMIN_URL; default: {DEFAULT_URL})",
    )
    group.add_argument(
        "--profile", metavar="NAME", help="a profile of ~/.config/pybroker/profiles.toml (PYBROKER_PROFILE)"
    )
    if is_binary:
        group.add_argument(
            "--service-url",
            metavar="URL",
            help="pulsar:// or pulsar+ssl:// address (PULSAR_SERVICE_URL; default: requested from --url)",
        )
        group.add_argument(
            "--listener-name",
            metavar="NAME",
            help="name of the advertised listener of the broker (PULSAR_LISTENER_NAME)",
        )
    group.add_argument(
        "--token-file", metavar="FILE", help="file with a token (PULSAR_TOKEN_FILE, or the token in PULSAR_TOKEN)"
    )
    group.add_argument(
        "--oauth2-file",
        metavar="FILE",
        help="JSON file with issuerUrl, privateKey, audience and scope of an identity provider (PULSAR_OAUTH2_FILE)",
    )
    group.add_argument("--basic-user", metavar="USER", help="user of basic authentication (PULSAR_BASIC_USER)")
    group.add_argument(
        "--basic-password-file",
        metavar="FILE",
        help="file with its password (PULSAR_BASIC_PASSWORD_FILE, or the password in PULSAR_BASIC_PASSWORD)",
    )
    group.add_argument(
        "--tls-trust-certs-file",
        metavar="FILE",
        help="certificates of trusted authorities, in PEM (default: those of the system)",
    )
    group.add_argument("--tls-certificate-file", metavar="FILE", help="client certificate in PEM, with --tls-key-file")
    group.add_argument("--tls-key-file", metavar="FILE", help="key of the client certificate in PEM")
    group.add_argument(
        "--tls-allow-insecure", action="store_true", default=None, help="accept any certificate of the broker"
    )
    group.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="T", help="maximum wait for a response of the broker (30s)"
    )
    for names, dest in (
        (("--token", "--auth-params"), "refused"),
        (("--password", "--basic-password"), "refused_password"),
    ):
        parser.add_argument(*names, dest=dest, nargs="?", action=_Refuse, help=argparse.SUPPRESS)


def broker_of(
    options: argparse.Namespace,
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Where:
    """Return the broker and credentials that the command line selects. `settings`: the values of a pipeline's settings
    file, by profile key. Raises WrongUsage.
    """
    environment = os.environ if environment is None else environment
    if options.timeout <= 0:
        raise WrongUsage("--timeout must be more than 0 seconds")
    values, source, _ = _values_of(options, environment, settings or {})
    try:
        access = Access(
            service_url=_checked_url("service_url", values, ("pulsar", "pulsar+ssl")) or "",
            admin_url=_checked_url("url", values, ("http", "https")),
            token=_secret(values, *_TOKEN),
            oauth2=_oauth2(values),
            basic_user=_text(values, "basic_user"),
            basic_password=_secret(values, *_PASSWORD),
            tls_certificate_file=_text(values, "tls_certificate_file"),
            tls_key_file=_text(values, "tls_key_file"),
            tls_trust_certs_file=_text(values, "tls_trust_certs_file"),
            tls_allow_insecure=bool(values.get("tls_allow_insecure", False)),
            tls_verify_hostname=bool(values.get("tls_verify_hostname", True)),
            listener_name=_text(values, "listener_name"),
            connection_timeout_s=min(10.0, options.timeout),
            operation_timeout_s=options.timeout,
        )
    except AccessRefused as error:
        raise WrongUsage(f"{source}: {error}") from None
    return Where(access, source)


def _values_of(
    options: argparse.Namespace, environment: Mapping[str, str], settings: Mapping[str, str]
) -> tuple[dict[str, str | bool], str, str | None]:
    """Return the connection values by option name, a description of their source, and the name of the profile if the
    source is a profile.
    """
    given = {key: value for key in _OF_OPTIONS if (value := getattr(options, key, None)) is not None}
    values, source, profile = _source(options.profile, given, environment, settings)
    if any(key in given for key in _CREDENTIALS):  # never mix credentials of two sources
        values = {key: value for key, value in values.items() if key not in _CREDENTIALS or key in _going_with(given)}
    values = {**values, **given}
    if not values.get("url") and not values.get("service_url"):
        values["url"] = DEFAULT_URL
    return values, source, profile


class SameBroker(NamedTuple):
    """The options that must be added to a suggested command, so that it uses the same broker and role in any shell of
    this user. They contain no secret.
    """

    variables: str = ""
    """Variable assignments before the program."""
    options: str = ""
    """Options between program and command."""

    def command(self, command: str) -> str:
        """Return the command, which starts with `pybroker`, with these options."""
        program, _, rest = command.partition(" ")
        return f"{self.variables}{program}{self.options} {rest}"


def same_broker(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> SameBroker:
    environment = os.environ if environment is None else environment
    values, _, profile = _values_of(options, environment, {})
    words, variables = [], []
    if profile is not None:
        words += ["--profile", profile]
        values = {key: value for key in _OF_OPTIONS if (value := getattr(options, key, None)) is not None}
        if environment.get("PYBROKER_PROFILES"):
            path = Path(environment["PYBROKER_PROFILES"]).absolute()
            variables.append(f"PYBROKER_PROFILES={shlex.quote(str(path))}")
    for key, value in values.items():
        if key in {"service_url", "listener_name"}:
            continue  # suggested commands use HTTP only
        if key in _SECRETS_IN_ENVIRONMENT:
            variables.append(f'{value}="${value}"')
        elif value is True:
            words.append(f"--{key.replace('_', '-')}")
        elif value:
            is_file = key.endswith("_file")
            words += [f"--{key.replace('_', '-')}", str(Path(str(value)).absolute() if is_file else value)]
    return SameBroker("".join(f"{each} " for each in variables), "".join(f" {shlex.quote(word)}" for word in words))


def _going_with(given: Mapping[str, object]) -> Sequence[str]:
    if "basic_user" in given:
        return _PASSWORD if "basic_password_file" not in given else ()
    return ("basic_user",) if "basic_password_file" in given else ()


def _source(
    profile: str | None, given: Mapping[str, object], environment: Mapping[str, str], settings: Mapping[str, str]
) -> tuple[dict[str, str | bool], str, str | None]:
    if profile is not None:
        return _of_profile(read_profiles(profiles_path(environment)), profile)
    if settings:
        return dict(settings), "settings file", None
    names_broker = any(given.get(key) or environment.get(_ENVIRONMENT[key]) for key in ("url", "service_url"))
    if not names_broker:
        named = environment.get("PYBROKER_PROFILE")
        profiles = read_profiles(profiles_path(environment))
        default = named or profiles.default
        if default is not None:
            return _of_profile(profiles, default)
    values: dict[str, str | bool] = {
        key: environment[name] for key, name in _ENVIRONMENT.items() if environment.get(name)
    }
    values |= {key: name for key, name in _SECRETS_IN_ENVIRONMENT.items() if environment.get(name)}
    if "token_file" in values:
        values.pop("token_env", None)
    if "basic_password_file" in values:
        values.pop("basic_password_env", None)
    if "basic_user" not in values:
        values.pop("basic_password_env", None)
    return values, "options and environment", None


def _of_profile(profiles: Profiles, name: str) -> tuple[dict[str, str | bool], str, str | None]:
    return dict(profiles.get(name)), f"profile {name}", name


def _checked_url(key: str, values: Mapping[str, str | bool], schemes: Sequence[str]) -> str | None:
    text = _text(values, key)
    if text is None:
        return None
    expected = f"{key.replace('_', '-')}: expected {' or '.join(f'{scheme}://HOST:PORT' for scheme in schemes)}"
    try:
        parts = urlsplit(text.partition(",")[0].strip())
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise WrongUsage(expected) from None
    if "@" in text:
        raise WrongUsage(
            f"{expected}. The URL must be given without user and password: use --basic-user and --basic-password-file, or a profile"
        )
    if parts.scheme not in schemes or not parts.hostname or not has_port:
        raise WrongUsage(expected)
    return text.strip()


def _secret(values: Mapping[str, str | bool], text: str, file: str, variable: str) -> Secret | None:
    found = [key for key in (text, file, variable) if values.get(key)]
    if len(found) > 1:
        raise AccessRefused(f"{' and '.join(found)} exclude each other: remove all but one of them")
    if not found:
        return None
    value = str(values[found[0]])
    if found[0] == text:
        return Secret(text=value)
    return Secret(in_file=value) if found[0] == file else Secret(in_environment=value)


def _oauth2(values: Mapping[str, str | bool]) -> OAuth2 | None:
    file, parameters = _text(values, "oauth2_file"), _text(values, "oauth2_params")
    if file is not None:
        parameters = Secret(in_file=file).reveal()
    return None if parameters is None else oauth2_of(parameters)


def _text(values: Mapping[str, str | bool], key: str) -> str | None:
    value = values.get(key)
    return str(value) if value else None
