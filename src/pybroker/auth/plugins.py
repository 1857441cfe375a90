"""Providers of users, found by the entry points of installed Python packages."""

from __future__ import annotations

from importlib import metadata
from typing import TypeVar

from pybroker.config.setting_types import ConfigError

AUTHENTICATION = "pybroker.authentication"
AUTHORIZATION = "pybroker.authorization"
Provider = TypeVar("Provider")


def plugin(group: str, name: str, key: str, base: type[Provider], built_in: str) -> type[Provider]:
    """Return the class of the entry point `name` in `group`, a subclass of `base`.

    Raises ConfigError, with the configuration key `key`, if no package declares the name, or if its class cannot be
    used. `built_in` lists the broker's own names for the error text.
    """
    found = list(metadata.entry_points(group=group, name=name))
    if not found:
        raise ConfigError(
            f"{key}: {name!r} is not supported; use one of {built_in}, or install a Python package with the entry point "
            f"{name!r} in the group {group!r}"
        )
    if len({entry.value for entry in found}) > 1:
        raise ConfigError(
            f"{key}: several Python packages declare {name!r} in the group {group!r}: uninstall all but one"
        )
    value = found[0].value
    try:
        loaded = found[0].load()
    except Exception as error:
        raise ConfigError(
            f"{key}: {name!r} cannot be imported from {value}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        raise ConfigError(f"{key}: {name!r} is {value}, which is not a subclass of {base.__module__}.{base.__name__}")
    return loaded
