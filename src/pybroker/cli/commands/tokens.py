"""`pybroker tokens`: Create keys and tokens, verify and show tokens. Compatible with `pulsar tokens`.

The command line never contains a secret. Only the owner can read written files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybroker.auth.locations import read_location
from pybroker.auth.token_claims import MAX_TOKEN_BYTES
from pybroker.auth.token_provider import TokenProvider, TokenSettings
from pybroker.cli.commands import token_keys
from pybroker.cli.exit_codes import EXIT_OK, CommandFailed, WrongUsage
from pybroker.cli.output import add_json_option, output_of
from pybroker.cli.parsed_arguments import pair, seconds
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import moment
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError

EXAMPLES = """
pybroker tokens create-secret-key --output token.key
pybroker tokens create --secret-key token.key --subject billing --expiry-time 30d > billing.jwt
pybroker tokens create-key-pair -a ES256 --output-private-key private.der --output-public-key public.der
pybroker tokens create --private-key private.der -a ES256 --subject billing
pybroker tokens validate --secret-key token.key < billing.jwt
pybroker tokens show --token-file billing.jwt
"""
_LOCATION = "FILE, file:///PATH, or env:NAME for an environment variable in the format of the broker's key"


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    secret = commands.add_parser("create-secret-key", help="create a secret key (tokenSecretKey)")
    secret.add_argument("-a", "--signature-algorithm", choices=token_keys.HMAC, default="HS256")
    secret.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to this new file (default: standard output)"
    )
    secret.add_argument("-b", "--base64", action="store_true", help="as Base64 text")
    secret.set_defaults(run=_create_secret_key)

    keys = commands.add_parser(
        "create-key-pair", help="create a private key for signing and a public key for brokers (tokenPublicKey)"
    )
    keys.add_argument("-a", "--signature-algorithm", choices=token_keys.ASYMMETRIC, default="RS256")
    keys.add_argument(
        "--output-private-key", type=Path, required=True, metavar="FILE", help="new file of the private key"
    )
    keys.add_argument(
        "--output-public-key", type=Path, required=True, metavar="FILE", help="new file of the public key"
    )
    keys.set_defaults(run=_create_key_pair)

    create = commands.add_parser("create", help="create a token")
    create.add_argument("-s", "--subject", required=True, metavar="ROLE", help="the role of the token")
    key = create.add_mutually_exclusive_group(required=True)
    key.add_argument("-sk", "--secret-key", metavar="WHERE", help=_LOCATION)
    key.add_argument("-pk", "--private-key", metavar="WHERE", help=f"a key in DER or PEM format: {_LOCATION}")
    create.add_argument(
        "-a",
        "--signature-algorithm",
        choices=token_keys.ALL,
        help="default: HS256, or the algorithm of the private key",
    )
    create.add_argument(
        "-e",
        "--expiry-time",
        type=seconds,
        metavar="T",
        help="validity from now: 30s, 12h, 30d, 1y (default: never expires)",
    )
    create.add_argument("--audience", metavar="A", help="value of the claim aud")
    create.add_argument(
        "--claim", action="append", default=[], type=pair, metavar="NAME=TEXT", help="a claim; may be repeated"
    )
    create.add_argument(
        "--headers",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=TEXT",
        help="a header, such as kid=1; may be repeated",
    )
    create.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to this new file (default: standard output)"
    )
    create.set_defaults(run=_create)

    validate = commands.add_parser(
        "validate", help="check whether a broker with this key accepts a token, and show its role"
    )
    key = validate.add_mutually_exclusive_group(required=True)
    key.add_argument("-sk", "--secret-key", metavar="WHERE", help=_LOCATION)
    key.add_argument("-pk", "--public-key", metavar="WHERE", help=f"a key in DER or PEM format: {_LOCATION}")
    validate.add_argument(
        "-a",
        "--signature-algorithm",
        choices=token_keys.ALL,
        default="RS256",
        help="algorithm of the public key (RS256)",
    )
    validate.add_argument("--role-claim", default="sub", metavar="NAME", help="tokenAuthClaim (sub)")
    validate.add_argument("--audience-claim", default="", metavar="NAME", help="tokenAudienceClaim")
    validate.add_argument("--audience", default="", metavar="A", help="tokenAudience")
    validate.set_defaults(run=_validate)

    show = commands.add_parser("show", help="show the header and claims of a token without verifying it")
    show.set_defaults(run=_show)
    for each in (validate, show):
        each.add_argument(
            "-f", "--token-file", type=Path, metavar="FILE", help="default: standard input, or PULSAR_TOKEN"
        )
        each.add_argument("refused", nargs="*", help=argparse.SUPPRESS)
        add_json_option(each)


def _create_secret_key(options: argparse.Namespace) -> int:
    content = token_keys.new_secret(options.signature_algorithm, is_base64=options.base64)
    _write(options.output, content)
    return EXIT_OK


def _create_key_pair(options: argparse.Namespace) -> int:
    private, public = token_keys.new_key_pair(options.signature_algorithm)
    _write(options.output_private_key, private)
    _write(options.output_public_key, public)
    return EXIT_OK


def _create(options: argparse.Namespace) -> int:
    claims: dict[str, Any] = {"sub": options.subject}
    if options.audience is not None:
        claims["aud"] = options.audience
    claims |= dict(options.claim)
    if options.expiry_time is not None:
        claims["exp"] = int(time.time() + options.expiry_time)
    if options.secret_key is not None:
        content, is_secret = _location("--secret-key", options.secret_key), True
    else:
        content, is_secret = _location("--private-key", options.private_key), False
    try:
        token = token_keys.signed(
            claims, content, options.signature_algorithm, is_secret=is_secret, headers=dict(options.headers)
        )
    except token_keys.KeyRefused as error:
        raise WrongUsage(str(error)) from None
    # Pulsar's tool accepts no newline after a token in a file.
    _write(options.output, token.encode() + (b"\n" if options.output is None else b""))
    return EXIT_OK


def _validate(options: argparse.Namespace) -> int:
    secret_key = _as_broker(_location("--secret-key", options.secret_key)) if options.secret_key else ""
    public_key = _as_broker(_location("--public-key", options.public_key)) if options.public_key else ""
    if options.audience_claim and not options.audience:
        raise WrongUsage("--audience-claim needs --audience")
    token = _token(options)
    try:
        provider = TokenProvider(
            TokenSettings(
                secret_key=secret_key,
                public_key=public_key,
                public_algorithm=options.signature_algorithm,
                role_claim=options.role_claim,
                audience_claim=options.audience_claim or ("aud" if options.audience else ""),
                audience=options.audience,
            )
        )
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    try:
        identity = provider.verify(token, time.time())
    except AuthenticationError as error:
        raise CommandFailed(str(error)) from None
    _, claims = token_keys.parts_of(token)
    expires_ms = None if identity.expires_at_s is None else round(identity.expires_at_s * 1000)
    output = output_of(options)
    if output.is_json:
        output.document({"role": identity.role, "expiresAt": expires_ms, "claims": claims})
    else:
        output.line(_java_map(claims))
        output.line(
            f"valid: role {identity.role}, " + (f"until {moment(expires_ms)}" if expires_ms else "it never expires")
        )
    return EXIT_OK


def _show(options: argparse.Namespace) -> int:
    try:
        header, claims = token_keys.parts_of(_token(options))
    except ValueError as error:
        raise CommandFailed(f"the input is not a token: {error}") from None
    output = output_of(options)
    if output.is_json:
        output.document({"header": header, "claims": claims})
    else:
        for part, text in ((header, ""), (claims, "---")):
            output.lines([text] if text else [])
            output.line(json.dumps(part, separators=(",", ":")))
    return EXIT_OK


def _java_map(claims: Mapping[str, Any]) -> str:
    shown = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in claims.items())
    return "{" + ", ".join(f"{name}={json.dumps(value)[1:-1]}" for name, value in shown) + "}"


def _location(option: str, text: str) -> bytes:
    """Return the key at the location in `text`: a file, or `env:NAME`. Raises WrongUsage if the command line contains
    the key itself.
    """
    if text.startswith("env:"):
        value = os.environ.get(text.removeprefix("env:"), "")
        if not value:
            raise WrongUsage(
                f"{option}: the environment variable {text.removeprefix('env:')} is not set. Set it to the key's location."
            )
        return _read(option, value)
    if text.startswith("data:") or not (text.startswith("file:") or _exists(text)):
        raise WrongUsage(
            f"{option}: the file does not exist. Do not give a key itself on the command line, because it "
            f"would stay in the history of the shell: give {_LOCATION}."
        )
    return _read(option, text)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _read(option: str, text: str) -> bytes:
    try:
        return read_location(option, text)
    except ConfigError as error:
        raise WrongUsage(str(error)) from None


def _as_broker(content: bytes) -> str:
    import base64  # noqa: PLC0415

    return "data:;base64," + base64.b64encode(content).decode()


def _token(options: argparse.Namespace) -> bytes:
    if options.refused:
        raise WrongUsage(
            "a token on the command line would stay in the history of the shell: use --token-file or standard input"
        )
    try:
        if options.token_file is not None:
            with options.token_file.open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1)
        elif sys.stdin.isatty() and os.environ.get("PULSAR_TOKEN"):
            token = os.environ["PULSAR_TOKEN"].encode()
        else:
            token = sys.stdin.buffer.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise CommandFailed(f"the token cannot be read: {error.strerror}. Check --token-file.") from None
    return bytes(token.strip().removeprefix(b"token:"))


def _write(path: Path | None, content: bytes) -> None:
    if path is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandFailed(
            f"{path} already exists, and the command does not replace a key. Remove the file first, or give "
            "another name."
        ) from None
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
