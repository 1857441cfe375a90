"""How a run can end: exit codes, and the failures that become one line on stderr."""

from __future__ import annotations

import sys

from pybroker.cli.text_tables import printable

EXIT_OK = 0
EXIT_FAILED = 1
"""The broker refused, could not be reached, or something that was asked for is not there."""
EXIT_USAGE = 2
"""Arguments, a profile or a configuration that cannot be used; nothing was asked of a broker."""
EXIT_WAITS = 3
"""`explain` has found something that could go on and does not."""
EXIT_TOO_FEW = 4
"""`consume` has waited as long as it was told and got fewer messages than it was told to."""
EXIT_SIGNAL = 128
"""And the signal's number: 130 after Ctrl-C, 141 when nobody reads the output any more, 143 after SIGTERM."""


class CommandFailed(Exception):
    """The command could not do what it was asked. One line that says what to do next and carries no secret."""

    exit_code = EXIT_FAILED


class WrongUsage(CommandFailed):
    """The command line, a profile or the environment says something that cannot be used."""

    exit_code = EXIT_USAGE


class Interrupted(Exception):
    """A signal asked the command to end; what it was doing is brought to a clean end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.exit_code = EXIT_SIGNAL + number


def say(text: str) -> None:
    """One line for people, beside the output; of what a broker has said, too, it is one line that only prints."""
    sys.stderr.write(f"pybroker: {printable(text)}\n")
