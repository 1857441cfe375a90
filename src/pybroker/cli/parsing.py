"""An argparse parser with one-line errors, which never repeat a value that may be a secret."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pybroker.cli.exit_codes import EXIT_USAGE
from pybroker.cli.nearest_names import nearest
from pybroker.cli.text_tables import cut, printable

MAX_SHOWN = 60
"""Columns of an invalid value in an error text."""


class CommandParser(argparse.ArgumentParser):
    """Parser that reports an error in one line that refers to `--help`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)
        self._words: list[str] = []

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            # A mistyped option may be the missing required one, so it is reported first.
            known = list(_options_of(self))
            options = [word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"]
            wrong = [option for option in options if not any(each.startswith(option) for each in known)]
            message = f"unknown option {self._with_similar(wrong[0])}" if wrong else message
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(EXIT_USAGE, f"{self.prog}: {printable(message)}{end} See `{self.prog} --help`.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        similar = nearest(str(value), choices)
        meant = f"; did you mean {similar}?" if similar else ""
        shown = repr(cut(str(value), MAX_SHOWN))
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  (there is no public name)
            known = "" if similar else f"; the commands are {', '.join(choices)}"
            raise argparse.ArgumentError(None, f"unknown command {shown}{known}{meant}")
        raise argparse.ArgumentError(action, f"{shown} is not one of {', '.join(choices)}{meant}")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        # Names and options may be mixed: `explain orders --key k billing`. argparse does not support this with
        # subcommands, nor for names after `--`.
        is_plain = has_commands(self) or "--" in given
        parse = self.parse_known_args if is_plain else self.parse_known_intermixed_args
        options, unknown = parse(given, namespace)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-") and word != "-"]
            count = f"{len(unknown)} argument{'s' * (len(unknown) > 1)} too many"
            self.error(f"unknown option {', '.join(map(self._with_similar, names))}" if names else count)
        return options

    def _with_similar(self, option: str) -> str:
        similar = nearest(option, _options_of(self)) if option.startswith("--") else None
        return f"{option} (did you mean {similar}?)" if similar else option


def _options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001  (there is no public way to ask a parser for its options)
        if action.help is not argparse.SUPPRESS:
            yield from (each for each in action.option_strings if each.startswith("--"))
    for each in subcommands(parser).values():
        yield from _options_of(each)


def subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def has_commands(parser: argparse.ArgumentParser) -> bool:
    """Return whether the command has subcommands, such as `tokens create`."""
    return parser._subparsers is not None  # noqa: SLF001  (there is no public way to ask)


def described(parser: argparse.ArgumentParser, text: str, examples: str) -> None:
    """Set the help's description to the first paragraph of `text`, and its epilogue to the examples."""
    first = " ".join(text.strip().partition("\n\n")[0].split())
    first = first.partition(": ")[2] if first.startswith("`pybroker") else first
    parser.description = first[:1].upper() + first[1:]
    parser.epilog = _epilog(examples.strip().splitlines())


def describe_subcommands(parser: argparse.ArgumentParser) -> None:
    """Set each subcommand's description to its help text and the parser's examples that use the subcommand."""
    examples = [line.strip() for line in (parser.epilog or "").splitlines()[1:]]
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            helps = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
            for name, subcommand in action.choices.items():
                text = helps.get(name, "")
                subcommand.description = f"{text[:1].upper()}{text[1:]}."
                subcommand.epilog = epilog_of(subcommand.prog, examples)


def epilog_of(program: str, examples: Sequence[str]) -> str:
    command = program.removeprefix("pybroker")
    return _epilog([line for line in examples if f"{command} " in f"{line} "])


def _epilog(examples: Sequence[str]) -> str:
    return "examples:\n" + "".join(f"  {line}\n" for line in examples)
