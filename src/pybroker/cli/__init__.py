"""The command `pybroker`: everything that can be done from a shell, with a broker or without one.

`program.py` is where a run begins; `commands.py` lists the commands, each a module of its own that is imported when it is asked
for, so that `--help` and every single command start quickly. `endings.py` has the exit codes.
"""

from pybroker.cli.program import main

__all__ = ["main"]
