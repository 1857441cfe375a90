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
    has_traces: bool = False
    """Whether a bug is told with its trace: whoever runs a broker or a pipeline has a log for it."""

    def load(self) -> ModuleType:
        return import_module(f"pybroker.cli.{self.module}")


_LIST = (
    Command("explain", "explain", "why a topic, subscription, key, message, consumer or producer stands still"),
    Command("unacked", "delivery_lists", "messages that are delivered and not acknowledged"),
    Command("delayed", "delivery_lists", "messages that are kept back until their time"),
    Command("draining", "delivery_lists", "hashes that wait for their old consumer"),
    Command("waiting", "delivery_lists", "hashes that fill the look-ahead"),
    Command("holes", "hashes", "what is not acknowledged in front of what is"),
    Command("hash", "hashes", "the hash of a key, and who has it"),
    Command("ack", "acting", "acknowledge single messages"),
    Command("redeliver", "acting", "have single messages delivered again"),
    Command("delay", "acting", "change when a delayed message is delivered"),
    Command("disconnect", "acting", "disconnect a consumer or producer"),
    Command("topics", "topics", "the topics of a namespace"),
    Command("subscriptions", "subscriptions", "who reads a topic, and how far behind"),
    Command("stats", "stats", "what happens on topics, live"),
    Command("produce", "produce", "publish messages"),
    Command("consume", "consume", "receive messages, or read a topic"),
    Command("peek", "peek", "the next messages of a subscription, without taking them"),
    Command("tokens", "tokens", "make keys and tokens, and look at tokens"),
    Command("serve", "serve", "run a broker until SIGTERM or Ctrl-C", has_traces=True),
    Command("ledger", "ledger", "look at stored data while no broker runs on it", has_traces=True),
    # The options of a pipeline are known only once its libraries are there: it reads what follows its name itself.
    Command(
        "pipeline", "pipeline", "run over topics as a whole, such as into open tables", own_arguments=1, has_traces=True
    ),
    Command("completion", "completion", "completion for bash or zsh"),
)
COMMANDS = {command.name: command for command in _LIST}
