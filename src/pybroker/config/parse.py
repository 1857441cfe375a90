"""Reader of the configuration: file, environment and command line.

The file format is Java properties, as far as Pulsar's files use it. Precedence, lowest first: default, file,
environment, command line. Unknown keys and keys without effect cause warnings. All errors are reported together.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pybroker.config.broker_config import KEYS, BrokerConfig
from pybroker.config.setting_types import ConfigError, Problems, Value, format_value, parse_value

# Pulsar's containers use this prefix, which may also set unknown keys.
ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"

MASK = "*****"

# Similarity from which an unknown key is treated as a misspelled known one; 1 is equal.
LIKENESS_OF_A_SLIP = 0.85

_SEPARATOR = re.compile(r"\s*[=:]\s*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and its warnings.

    It must not be used if it has `problems`; keys with invalid values (`refused_keys`) then have their defaults.
    """

    config: BrokerConfig
    unknown_keys: tuple[str, ...]
    unsupported_keys_in_use: tuple[str, ...]
    problems: tuple[str, ...] = ()
    refused_keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Setting:
    text: str
    origin: str


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> LoadedConfig:
    """Read the configuration. Each source overrides the previous one: defaults, file, environment (`environ`),
    `overrides`. Raises ConfigError with all problems.
    """
    loaded = read(path, environ, overrides)
    if loaded.problems:
        raise ConfigError(*loaded.problems)
    return loaded


def read(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> LoadedConfig:
    """Read the configuration. Each source overrides the previous one: defaults, file, environment (`environ`),
    `overrides`. Raises no ConfigError: the errors are in `problems` of the result.
    """
    problems = Problems()
    settings: dict[str, _Setting] = {}
    if path is not None:
        with problems.noted():
            settings.update(_file_settings(path, problems))
    settings.update(_environment_settings(environ))
    settings.update((key, _Setting(text, "command line")) for key, text in overrides.items())

    fields: dict[str, Value] = {}
    unknown: list[str] = []
    unsupported: list[str] = []
    refused: set[str] = set()
    for key, setting in settings.items():
        info = KEYS.get(key)
        if info is None:
            unknown.append(key)
            continue
        refused.add(key)
        with problems.noted():
            value = fields[info.field] = parse_value(info, setting.text, setting.origin)
            refused.discard(key)
        if key in refused:
            continue
        if not info.supported and value != info.default:
            unsupported.append(key)
    # `parse_value` returns the type from which the field was generated.
    config = BrokerConfig(**fields)  # type: ignore[arg-type]
    return LoadedConfig(
        config, tuple(sorted(unknown)), tuple(sorted(unsupported)), tuple(problems.found), frozenset(refused)
    )


def similar_key(unknown_key: str) -> str | None:
    for key in KEYS:
        if key.lower() == unknown_key.lower():
            return key
    return next(iter(get_close_matches(unknown_key, KEYS, 1, LIKENESS_OF_A_SLIP)), None)


def dump(config: BrokerConfig) -> dict[str, str]:
    """Return every key as text, with masked secrets, for the admin API."""
    texts: dict[str, str] = {}
    for key, info in KEYS.items():
        text = format_value(getattr(config, info.field))
        texts[key] = MASK if info.secret and text else text
    return texts


def parse_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, key and value of each setting. Raises ConfigError with all invalid lines, after the last
    setting.
    """
    problems = Problems()
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        logical = line.strip()
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            _, following = next(lines, (number, ""))
            logical = logical[:-1] + following.strip()
        key, *value = _SEPARATOR.split(logical, maxsplit=1)
        if key and value:
            yield number, _unescape(key), _unescape(value[0])
        else:
            problems.found.append(f"line {number} is not key=value: {key[:60]!r}")
    problems.raise_any()


def _file_settings(path: Path, problems: Problems) -> dict[str, _Setting]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} cannot be read, because it is not UTF-8 text") from error
    settings: dict[str, _Setting] = {}
    try:
        for number, key, value in parse_properties(text):
            settings[key] = _Setting(value, f"{path} line {number}")
    except ConfigError as error:
        problems.found += (f"{path}: {problem}" for problem in error.problems)
    return settings


def _environment_settings(environ: Mapping[str, str]) -> dict[str, _Setting]:
    settings: dict[str, _Setting] = {}
    for name, text in environ.items():
        if name in KEYS:
            # The prefixed form is more specific, so it wins.
            settings.setdefault(name, _Setting(text, f"environment variable {name}"))
        elif name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX)
            settings[key] = _Setting(text, f"environment variable {name}")
    return settings


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _ESCAPED_CONTROLS.get(escape, escape)

    return _ESCAPE.sub(replacement, text) if "\\" in text else text
