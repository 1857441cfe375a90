"""Exit codes, and the failures that are printed as one line on stderr."""

from __future__ import annotations

import sys

from pybroker.cli.text_tables import printable

EXIT_OK = 0
EXIT_FAILED = 1
"""The broker refused, was not reachable, or a requested object does not exist."""
EXIT_USAGE = 2
"""Arguments, a profile or a configuration are invalid. The command sent no request to a broker."""
EXIT_WAITS = 3
"""`explain` found something that could continue and does not."""
EXIT_TOO_FEW = 4
"""`consume` reached its timeout and received fewer messages than requested."""
EXIT_SIGNAL = 128
"""Added to the signal's number: 130 after Ctrl-C, 141 when the reader of the output has gone, 143 after SIGTERM."""


class CommandFailed(Exception):
    """The command failed. The message is one line, says how to continue, and contains no secret."""

    exit_code = EXIT_FAILED


class WrongUsage(CommandFailed):
    """The command line, a profile or the environment contains an invalid value."""

    exit_code = EXIT_USAGE


class Interrupted(Exception):
    """A signal asked the command to end. The command ends its work cleanly."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.exit_code = EXIT_SIGNAL + number


def say(text: str) -> None:
    """Write one line to stderr. Text from a broker is escaped to one printable line."""
    sys.stderr.write(f"pybroker: {printable(text)}\n")
