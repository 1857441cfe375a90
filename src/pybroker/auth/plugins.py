"""Plugins: authentication and authorization providers in installed packages, named by entry point or `module:Class`."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module, metadata
from inspect import isabstract
from typing import TypeVar

from pybroker.config.setting_types import ConfigError

AUTHENTICATION = "pybroker.authentication"
AUTHORIZATION = "pybroker.authorization"
Provider = TypeVar("Provider")


def failure_place(error: Exception) -> str:
    """Return the file and the line at which a provider has raised `error`, for the log.

    Only this location and the type of the exception are logged. The text and context of an exception can contain
    credentials.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def plugin(group: str, name: str, key: str, base: type[Provider], built_in: str) -> type[Provider]:
    """Return the class with this name, a subclass of `base`: an entry point in `group`, or `module:Class`.

    Raises ConfigError, with the configuration key `key`, if the name is unknown, or if its class cannot be used.
    `built_in` lists the broker's own names for the error text.
    """
    try:
        loaded = _loaded(group, name)
    except LookupError:
        raise ConfigError(
            f"{key}: {name!r} is not supported; use one of {built_in}, module:Class, or an entry point in the group {group}"
        ) from None
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        raise ConfigError(f"{key}: {name!r} is not a subclass of {base.__module__}.{base.__name__}")
    if isabstract(loaded):
        missing = sorted(getattr(loaded, "__abstractmethods__", ()))
        raise ConfigError(f"{key}: {name!r} lacks {', '.join(missing)}")
    return loaded


def _loaded(group: str, name: str) -> object:
    """Raises LookupError if there is no such entry point, and any exception of an import."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        found: object = getattr(import_module(module), attribute)
        return found
    entries = {entry.value: entry for entry in metadata.entry_points(group=group, name=name)}
    if len(entries) > 1:
        raise ValueError(f"several packages declare this name: {', '.join(entries)}")
    if not entries:
        raise LookupError(name)
    loaded: object = entries.popitem()[1].load()
    return loaded


def created(key: str, name: str, create: Callable[[], Provider]) -> Provider:
    """Return the result of `create`. Raises ConfigError if the code of a plugin fails."""
    try:
        return create()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} cannot be created: {type(error).__name__}: {error}") from error
