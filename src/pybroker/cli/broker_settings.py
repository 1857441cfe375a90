"""Options of commands that read the configuration of a broker: `--config`, `--set`, and options for single keys."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pybroker.cli.exit_codes import EXIT_USAGE, say

if TYPE_CHECKING:
    from pybroker.config import Problems


def add_set_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set any configuration key; may be repeated"
    )


def overrides_of(options: argparse.Namespace, keys_of_options: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Return the configuration keys that the command line sets. An option of `keys_of_options` (option to key)
    overrides `--set`.
    """
    overrides: dict[str, str] = {}
    for setting in options.set:
        key, separator, value = setting.partition("=")
        if separator and key.strip():
            overrides[key.strip()] = value
        else:
            problems.found.append(f"--set needs KEY=VALUE, not {setting!r}")
    for option, key in keys_of_options.items():
        value = getattr(options, option, None)
        if value is not None:
            overrides[key] = value
    return overrides


def run_with_configuration(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Call `run` and return its exit code. If it raises ConfigError, print the problems and return EXIT_USAGE."""
    from pybroker.config import ConfigError  # noqa: PLC0415  (so that --help answers at once)

    try:
        return run(options)
    except ConfigError as error:
        for problem in error.problems:
            say(problem)
        return EXIT_USAGE
