"""One run of `pybroker`: find the command, import it, run it, and end with an exit code and at most one line on stderr.

Invariants: users, brokers, and networks never cause a stack trace, and no secret is shown. Imports little, so that help is quick.
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
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: Command | None = None
    try:
        command, global_options, own_arguments = split(given)
        if command is None:
            overview().parse_args(given)  # --help, --version, or a usage error; all of them exit
            raise AssertionError("no command, and nothing wrong with that")
        return run_command(command, global_options, own_arguments)
    except CommandFailed as error:
        say(str(error))
        return error.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does. Later output of Python is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGNAL + signal.SIGPIPE
    except UnicodeEncodeError:
        say("an argument is not valid UTF-8: check the encoding of the terminal or script")
        return EXIT_USAGE
    except Exception as error:
        if command is None or command.has_traces or os.environ.get("PYBROKER_DEBUG"):
            raise
        say(
            f"{_place(error)}: this is a bug, or the answer is not a broker's. Set PYBROKER_DEBUG=1 to see the stack trace."
        )
        return EXIT_FAILED


def _place(error: Exception) -> str:
    """Return the kind and location of an exception, without its text, which may contain anything."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
    return f"{type(error).__name__}{where}"


def split(arguments: list[str]) -> tuple[Command | None, list[str], list[str]]:
    """Split a command line into its command, the connection options before the command, and the arguments after it.

    The command is None if the first word after the connection options and their values is not a command.
    """
    # Without abbreviations: an option of the command, such as --to, is not one of the connection.
    parser = CommandParser(prog="pybroker", add_help=False, allow_abbrev=False)
    add_broker_options(parser, is_binary=True)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options, unknown = parser.parse_known_args(arguments)
    words: list[str] = options.words
    if unknown or not words or words[0] not in COMMANDS:
        return None, [], []
    return COMMANDS[words[0]], arguments[: len(arguments) - len(words)], words[1:]


def run_command(command: Command, global_options: list[str], arguments: list[str]) -> int:
    """Run one command and return its exit code. Its parser reads `global_options` first, so that its own arguments
    override them.

    Raises CommandFailed and Interrupted. For wrong usage, argparse ends the process.
    """
    parser = command_parser(command)
    if global_options and command.is_local:
        parser.error(
            f"this command calls no broker, so there is no option {global_options[0].partition('=')[0]}: leave it out"
        )
    if command.own_arguments is None:
        # The options of a command with subcommands belong to the subcommand, so they follow its name.
        at = 1 if has_commands(parser) and arguments[:1] != [] and not arguments[0].startswith("-") else 0
        options, rest = parser.parse_args([*arguments[:at], *global_options, *arguments[at:]]), []
    else:
        options = parser.parse_args(arguments[: command.own_arguments])
        rest = [*global_options, *arguments[command.own_arguments :]]
    options.rest = rest
    code: int = options.run(options)
    sys.stdout.flush()  # here, where a closed output is still handled
    return code


def command_parser(command: Command) -> argparse.ArgumentParser:
    """The parser of one command, with its options. Imports its module."""
    parser = CommandParser(prog=f"pybroker {command.name}")
    command.load().add_options(parser)
    describe_subcommands(parser)
    return parser


def overview() -> argparse.ArgumentParser:
    """Return the parser of `pybroker --help`. It knows the names of the commands but not their options."""
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
