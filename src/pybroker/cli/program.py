"""One run of `pybroker`: imports the command, runs it, and returns its exit code, with at most one line on stderr.

User input, brokers and networks never cause a stack trace, and no secret is shown.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pybroker.cli.command_table import COMMANDS, Command
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_SIGNAL, EXIT_USAGE, CommandFailed, Interrupted, say
from pybroker.cli.parsing import CommandParser, describe_subcommands, has_commands
from pybroker.cli.which_broker import add_broker_options
from pybroker.version import __version__

_EPILOG = """\
Connection options can be written before or after the command; the last value applies. Without them, PULSAR_ADMIN_URL or a
profile selects the broker.

examples:
  pybroker serve --data data                         run a broker
  pybroker produce orders "hello" --key customer-7   publish a message
  pybroker consume orders -s billing                 receive messages
  pybroker explain orders billing                    why does the subscription receive nothing?

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 `explain` found blocked messages, 4 `consume` received too few messages,
128 + N ended by signal N. `pybroker COMMAND --help` shows the options and examples of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: Command | None = None
    try:
        command, global_options, own_arguments = split(given)
        if command is None:
            overview().parse_args(given)  # exits: --help, --version, or a usage error
            raise AssertionError("argparse did not exit although the arguments contain no command")
        return run_command(command, global_options, own_arguments)
    except CommandFailed as error:
        say(str(error))
        return error.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # The output's reader has closed it, like `head`. Discard further output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGNAL + signal.SIGPIPE
    except UnicodeEncodeError:
        say("an argument is not valid UTF-8: check the encoding of the terminal or script")
        return EXIT_USAGE
    except Exception as error:
        if command is None or command.has_traces or os.environ.get("PYBROKER_DEBUG"):
            raise
        say(
            f"{_place(error)}: this is a bug, or the server is not a Pulsar broker. Set PYBROKER_DEBUG=1 to see the stack trace."
        )
        return EXIT_FAILED


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
    return f"{type(error).__name__}{where}"


def split(arguments: list[str]) -> tuple[Command | None, list[str], list[str]]:
    """Split a command line into command, connection options before it, and arguments after it.

    The command is None if the first word after the connection options is not a command.
    """
    # Without abbreviations, which could match an option of the command.
    parser = CommandParser(prog="pybroker", add_help=False, allow_abbrev=False)
    add_broker_options(parser, is_binary=True)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options, unknown = parser.parse_known_args(arguments)
    words: list[str] = options.words
    if unknown or not words or words[0] not in COMMANDS:
        return None, [], []
    return COMMANDS[words[0]], arguments[: len(arguments) - len(words)], words[1:]


def run_command(command: Command, global_options: list[str], arguments: list[str]) -> int:
    """Run one command and return its exit code. Its own arguments override `global_options`."""
    parser = command_parser(command)
    if global_options and command.is_local:
        parser.error(
            f"this command does not call a broker, so it has no option {global_options[0].partition('=')[0]}: remove the option"
        )
    if command.own_arguments is None:
        # With subcommands, options follow the subcommand's name.
        at = 1 if has_commands(parser) and arguments[:1] != [] and not arguments[0].startswith("-") else 0
        options, rest = parser.parse_args([*arguments[:at], *global_options, *arguments[at:]]), []
    else:
        options = parser.parse_args(arguments[: command.own_arguments])
        rest = [*global_options, *arguments[command.own_arguments :]]
    options.rest = rest
    code: int = options.run(options)
    sys.stdout.flush()  # raises while a closed output is still handled
    return code


def command_parser(command: Command) -> argparse.ArgumentParser:
    """Return a command's parser with its options. Imports the command's module."""
    parser = CommandParser(prog=f"pybroker {command.name}")
    command.load().add_options(parser)
    describe_subcommands(parser)
    return parser


def overview() -> argparse.ArgumentParser:
    """Return the parser of `pybroker --help`, without the commands' options."""
    parser = CommandParser(
        prog="pybroker",
        description="A message broker that speaks the Apache Pulsar protocol, and commands for it or any other Pulsar broker.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pybroker {__version__}")
    add_broker_options(parser, is_binary=True)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        commands.add_parser(command.name, help=command.help, add_help=False)
    return parser
