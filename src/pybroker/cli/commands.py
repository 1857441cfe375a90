"""The commands there are, by name: a line each.

A module has `add_options(parser)`, which sets the default `run(options) -> exit code`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Command:
    """One line of `pybroker --help`."""

    name: str
    module: str
    help: str
    own_arguments: int = sys.maxsize
    """How many arguments its parser sees; what follows is left in `options.rest`."""

    def load(self) -> ModuleType:
        return import_module(f"pybroker.cli.{self.module}")


_LIST = (
    Command("serve", "serve", "run a broker until SIGTERM or Ctrl-C"),
    Command("ledger", "ledger", "look at stored data while no broker runs on it"),
    # The options of a pipeline are known only once its libraries are there: it reads what follows its name itself.
    Command("pipeline", "pipeline", "run over topics as a whole, such as into open tables", own_arguments=1),
)
COMMANDS = {command.name: command for command in _LIST}
