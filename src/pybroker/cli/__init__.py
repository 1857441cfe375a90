"""The command-line program `pybroker`. Start with `program.py`, which runs a command.

`command_table.py` lists the commands. Each command is a module of `commands/`, imported only when used.
"""

from pybroker.cli.program import main

__all__ = ["main"]
