"""Exit codes, and errors that are printed as one line on stderr."""

from __future__ import annotations

import sys

from pybroker.cli.text_tables import printable

EXIT_OK = 0
EXIT_FAILED = 1
"""The broker was unreachable or refused the request, or an object does not exist."""
EXIT_USAGE = 2
"""An argument, profile or configuration is invalid. No request was sent."""
EXIT_WAITS = 3
"""`explain` found something stuck."""
EXIT_TOO_FEW = 4
"""`consume` received fewer messages than requested before its timeout."""
EXIT_SIGNAL = 128
"""The exit code after a signal is this number plus the signal's number:

130 after Ctrl-C, 141 when the reader of the output has ended, 143 after SIGTERM.
"""


class CommandFailed(Exception):
    """An expected failure. The text is one line with advice, and contains no secret."""

    exit_code = EXIT_FAILED


class WrongUsage(CommandFailed):
    """An argument, profile or environment variable is invalid."""

    exit_code = EXIT_USAGE


class Interrupted(Exception):
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.exit_code = EXIT_SIGNAL + number


def say(text: str) -> None:
    """Write one line to stderr. Unprintable characters are escaped."""
    sys.stderr.write(f"pybroker: {printable(text)}\n")
