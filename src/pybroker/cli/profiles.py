"""Profiles: named brokers with their credentials, in `profiles.toml`.

Errors contain no value of the file. A file with a secret is refused while other users can read it.
"""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pybroker.cli.exit_codes import WrongUsage

MAX_FILE_BYTES = 1 << 20
TEXTS = (
    "url",
    "service_url",
    "listener_name",
    "basic_user",
    "token_env",
    "basic_password_env",
)
PATHS = (
    "token_file",
    "oauth2_file",
    "basic_password_file",
    "tls_trust_certs_file",
    "tls_certificate_file",
    "tls_key_file",
)
SECRETS = ("token", "basic_password")
FLAGS = ("tls_allow_insecure", "tls_verify_hostname")
_KNOWN = (*TEXTS, *PATHS, *SECRETS, *FLAGS)
_RIGHTS_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Profiles:
    """Content of a valid profiles file. Paths are absolute."""

    path: Path
    default: str | None = None
    by_name: Mapping[str, Mapping[str, str | bool]] = field(default_factory=dict, repr=False)

    def get(self, name: str) -> Mapping[str, str | bool]:
        if name not in self.by_name:
            there = (
                f"the profiles are {', '.join(sorted(self.by_name))}" if self.by_name else "the file has no profiles"
            )
            raise WrongUsage(f"the profile {name!r} does not exist in {self.path}: {there}")
        return self.by_name[name]


def profiles_path(environment: Mapping[str, str]) -> Path:
    """Return the path in `PYBROKER_PROFILES`, or `pybroker/profiles.toml` in the XDG configuration directory."""
    named = environment.get("PYBROKER_PROFILES")
    if named:
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME", "")
    # By the XDG specification, a relative path is ignored.
    home = Path(base) if base.startswith("/") else Path(environment.get("HOME") or "~").expanduser() / ".config"
    return home / "pybroker" / "profiles.toml"


def read_profiles(path: Path) -> Profiles:
    """Return the profiles, or none if the file does not exist. Raises WrongUsage for an invalid file, or a file with
    secrets that other users can read.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Profiles(path)
    except OSError as error:
        raise WrongUsage(f"the file {path} with the profiles cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise WrongUsage(
            f"the file {path} has more than {MAX_FILE_BYTES} bytes, so it cannot be a file of profiles. Check "
            "PYBROKER_PROFILES."
        )
    profiles = parse_profiles(path, content)
    if mode & _RIGHTS_OF_OTHERS and any(set(SECRETS) & set(each) for each in profiles.by_name.values()):
        raise WrongUsage(
            f"the file {path} contains a secret, and other users can read it: run chmod 600 {path}, or use "
            "token_file in the profile"
        )
    return profiles


def parse_profiles(path: Path, content: bytes) -> Profiles:
    """Parse the file's content. Errors contain the line or key, but no value."""
    try:
        document = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise WrongUsage(f"the file {path} of profiles is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise WrongUsage(f"the file {path} of profiles is not TOML: {_without_values(str(error))}") from None
    except RecursionError:
        raise WrongUsage(f"the file {path} of profiles is not TOML: it is nested too deeply") from None
    tables = document.get("profiles", {})
    default = document.get("default")
    unknown = sorted(set(document) - {"profiles", "default"})
    if unknown:
        raise WrongUsage(f"{path}: the key {unknown[0]!r} is unknown: a profile begins with [profiles.NAME]")
    if default is not None and not isinstance(default, str):
        raise WrongUsage(f"{path}: default must be the name of a profile")
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise WrongUsage(f"{path}: a profile begins with [profiles.NAME], but the file has another table")
    by_name = {name: _profile(path, name, values) for name, values in tables.items()}
    return Profiles(path, default, by_name)


def _profile(path: Path, name: str, values: Mapping[str, object]) -> Mapping[str, str | bool]:
    where = f"{path}: profile {name!r}"
    checked: dict[str, str | bool] = {}
    for key, value in values.items():
        if key not in _KNOWN:
            like = difflib.get_close_matches(key, _KNOWN, 1)
            raise WrongUsage(f"{where}: {key!r} is not a known key" + (f"; did you mean {like[0]}?" if like else ""))
        if key in FLAGS:
            if not isinstance(value, bool):
                raise WrongUsage(f"{where}: {key} must be true or false")
            checked[key] = value
        elif not isinstance(value, str) or not value:
            raise WrongUsage(f"{where}: {key} must be a non-empty text")
        elif key in PATHS:
            checked[key] = str(path.absolute().parent / Path(value).expanduser())
        else:
            checked[key] = value
    return checked


def _without_values(reason: str) -> str:
    place = reason[reason.rfind("(at ") :] if "(at " in reason else ""
    return f"check it {place}" if place else "check its quotes and brackets"
