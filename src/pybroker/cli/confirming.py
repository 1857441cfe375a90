"""Confirmation of irreversible commands, on the terminal or with `--yes`."""

from __future__ import annotations

import argparse
import sys

from pybroker.cli.exit_codes import CommandFailed, WrongUsage
from pybroker.cli.text_tables import printable


def add_yes_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def require_confirmed(options: argparse.Namespace, effect: str) -> None:
    """Ask the user to confirm `effect`, a complete sentence. Raises CommandFailed if the user declines, WrongUsage
    without a terminal.
    """
    if options.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise WrongUsage(f"{effect} Confirmation needs a terminal: add --yes to confirm")
    sys.stderr.write(f"{printable(effect)}\nType yes to continue: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() != "yes":
        raise CommandFailed("the action was not confirmed, so nothing was changed")
