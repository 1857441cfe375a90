"""The commands there are, by name: a line each.

A module has `add_options(parser)`, which sets the default `run(options) -> exit code`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Command:
    """One line of `pybroker --help`."""

    name: str
    module: str
    help: str
    own_arguments: int | None = None
    """The number of arguments that the command's parser reads; None for all. The others are left in `options.rest`."""
    is_local: bool = False
    """Whether the command calls no broker, and so has no connection options."""
    has_traces: bool = False
    """Whether a bug is reported with its stack trace: brokers and pipelines have a log for it."""

    def load(self) -> ModuleType:
        return import_module(f"pybroker.cli.commands.{self.module}")


_LIST = (
    Command(
        "explain",
        "explain",
        "what is stuck, and why: all topics, a topic, subscription, key, message, consumer, producer",
    ),
    Command("unacked", "delivery_lists", "messages that are delivered and not acknowledged"),
    Command("delayed", "delivery_lists", "messages that are kept back until their time"),
    Command("draining", "delivery_lists", "hashes that wait for their old consumer"),
    Command("waiting", "delivery_lists", "hashes that fill the look-ahead"),
    Command("holes", "hashes", "what is not acknowledged in front of what is"),
    Command("hash", "hashes", "the hash of a key, and who has it"),
    Command("ack", "message_actions", "acknowledge single messages"),
    Command("redeliver", "message_actions", "have single messages delivered again"),
    Command("delay", "message_actions", "change when a delayed message is delivered"),
    Command("disconnect", "message_actions", "disconnect a consumer or producer"),
    Command("skip", "cursor_moves", "skip messages of a subscription"),
    Command("seek", "cursor_moves", "move a subscription to a message or a time"),
    Command("delete", "cursor_moves", "delete a subscription or a topic"),
    Command("policies", "policies", "show, set and remove policies of a topic or a namespace"),
    Command("transactions", "transactions", "open transactions: list, show, abort"),
    Command("api", "api", "any call of the REST interface"),
    Command("diagnose", "diagnose", "collect the state of a broker in one archive, for a report of a problem"),
    Command("topics", "topics", "the topics of a namespace"),
    Command("subscriptions", "subscriptions", "who reads a topic, and how far behind"),
    Command("stats", "stats", "what happens on topics, live"),
    Command("produce", "produce", "publish messages"),
    Command("consume", "consume", "receive messages, or read a topic"),
    Command("peek", "peek", "the next messages of a subscription, without taking them"),
    Command("tokens", "tokens", "make keys and tokens, and look at tokens", is_local=True),
    Command("serve", "serve", "run a broker until SIGTERM or Ctrl-C", is_local=True, has_traces=True),
    Command("backup", "data_directory.backup", "back up the stored data of a broker while it runs"),
    Command("restore", "data_directory.restore", "make a data directory from a backup", is_local=True),
    Command(
        "ledger",
        "data_directory.ledger",
        "look at stored data while no broker runs on it",
        is_local=True,
        has_traces=True,
    ),
    # The options of a pipeline are known only if its libraries are installed, so it parses its own arguments.
    Command(
        "pipeline", "pipeline", "run over topics as a whole, such as into open tables", own_arguments=1, has_traces=True
    ),
    Command("completion", "completion", "completion for bash or zsh", is_local=True),
)
COMMANDS = {command.name: command for command in _LIST}
