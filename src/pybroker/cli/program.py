"""One run of `pybroker`: find the command, import it, run it, and end with an exit code and at most one line on stderr.

What must hold: no trace is shown for what users, brokers or networks do, and no secret ever. Imports little, so that help is quick.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pybroker import __version__
from pybroker.cli.commands import COMMANDS, Command
from pybroker.cli.endings import EXIT_FAILED, EXIT_SIGNAL, EXIT_USAGE, CommandFailed, Interrupted, say
from pybroker.cli.parsing import CommandParser

_EPILOG = """\
Which broker, for all commands that talk to one:
  --url URL, PULSAR_ADMIN_URL, or a profile: --profile NAME, PYBROKER_PROFILE; else http://127.0.0.1:8080

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 explain found something that waits, 4 consume got too few messages,
128 + N ended by signal N. `pybroker COMMAND --help` shows options and examples."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(given[0]) if given else None
    try:
        if command is None:
            overview().parse_args(given)  # --help, --version, or what is wrong with it; all of them exit
            raise AssertionError("no command, and nothing wrong with that")
        return run_command(command, given[1:])
    except CommandFailed as error:
        say(str(error))
        return error.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does. What Python would still write at its end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGNAL + signal.SIGPIPE
    except UnicodeEncodeError:
        say("an argument is no text in UTF-8")
        return EXIT_USAGE
    except Exception as error:
        if command is None or command.has_traces or os.environ.get("PYBROKER_DEBUG"):
            raise
        say(f"{_place(error)}: this should not have happened; PYBROKER_DEBUG=1 shows the trace")
        return EXIT_FAILED


def _place(error: Exception) -> str:
    """What went wrong, and where; not in its own words, which may have anything in them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
    return f"{type(error).__name__}{where}"


def run_command(command: Command, arguments: list[str]) -> int:
    """Run one command with its own arguments; its exit code. Raises CommandFailed, Interrupted; argparse exits by itself."""
    parser = command_parser(command)
    options = parser.parse_args(arguments[: command.own_arguments])
    options.rest = arguments[command.own_arguments :]
    code: int = options.run(options)
    sys.stdout.flush()  # here, where nobody reading it any more is still known for what it is
    return code


def command_parser(command: Command) -> argparse.ArgumentParser:
    """The parser of one command, with its options. Imports its module."""
    parser = CommandParser(prog=f"pybroker {command.name}", description=f"{command.help.capitalize()}.")
    command.load().add_options(parser)
    return parser


def overview() -> argparse.ArgumentParser:
    """What `pybroker --help` shows. Knows the names of the commands and nothing of their options."""
    parser = CommandParser(
        prog="pybroker",
        description="A message broker that speaks the Apache Pulsar protocol, and commands for it or any other Pulsar broker.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"pybroker {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        commands.add_parser(command.name, help=command.help, add_help=False)
    return parser
