"""argparse, with errors of one line that repeat no value which may be a secret."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from pybroker.cli.exit_codes import EXIT_USAGE


class CommandParser(argparse.ArgumentParser):
    """Reports an error in one line, with a reference to the help. Of unknown arguments only option names are shown."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        # Names and options may have any order: `explain orders --key k billing`. argparse does not support that for
        # parsers with subcommands, and not for names behind `--`, which may begin with `-`.
        is_plain = has_commands(self) or "--" in given
        parse = self.parse_known_args if is_plain else self.parse_known_intermixed_args
        options, unknown = parse(given, namespace)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-") and word != "-"]
            count = f"{len(unknown)} argument{'s' * (len(unknown) > 1)} too many"
            self.error(f"there is no option {', '.join(names)}" if names else count)
        return options


def has_commands(parser: argparse.ArgumentParser) -> bool:
    """Return whether the parser's command has subcommands, such as `tokens create`."""
    return parser._subparsers is not None  # noqa: SLF001  (there is no public way to ask)


def described(parser: argparse.ArgumentParser, text: str, examples: str) -> None:
    """Return the texts above and below the options in a command's help, from the module's docstring."""
    first = " ".join(text.strip().partition("\n\n")[0].split())
    first = first.partition(": ")[2] if first.startswith("`pybroker") else first
    parser.description = first[:1].upper() + first[1:]
    parser.epilog = "examples:\n" + "".join(f"  {line}\n" for line in examples.strip().splitlines())
