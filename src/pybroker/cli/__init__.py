"""The command `pybroker`: everything that can be done from a shell, with a broker or without one.

Start with `program.py`, which runs a command. `command_table.py` lists the commands; each is a module of `commands/`, imported
only when it is used, so that `--help` and each command start quickly. `exit_codes.py` has the exit codes.
"""

from pybroker.cli.program import main

__all__ = ["main"]
