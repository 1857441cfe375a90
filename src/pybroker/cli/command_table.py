"""The table of the commands of `pybroker`.

A command's module has `add_options(parser)`, which sets the parser's default `run(options) -> exit code`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Command:
    """A command, as listed in `pybroker --help`."""

    name: str
    module: str
    help: str
    own_arguments: int | None = None
    """Number of arguments that the command's parser reads; the others are in `options.rest`. None: all."""
    is_local: bool = False
    """Whether the command calls no broker and has no connection options."""
    has_traces: bool = False
    """Whether a bug is reported with its stack trace, because the command writes a log."""

    def load(self) -> ModuleType:
        return import_module(f"pybroker.cli.commands.{self.module}")


_LIST = (
    Command(
        "explain",
        "explain",
        "show why messages wait: on all topics, a topic, subscription, key, message, consumer or producer",
    ),
    Command("unacked", "delivery_lists", "list messages that were delivered and are not acknowledged"),
    Command("delayed", "delivery_lists", "list messages that wait for their delivery time"),
    Command("draining", "delivery_lists", "list hashes whose previous consumer still has unacknowledged messages"),
    Command("waiting", "delivery_lists", "list hashes whose messages fill the look-ahead buffer"),
    Command("holes", "hashes", "show the oldest unacknowledged message and the acknowledged ranges after it"),
    Command("hash", "hashes", "show the hash of a key and the consumer that receives it"),
    Command("ack", "message_actions", "acknowledge single messages"),
    Command("redeliver", "message_actions", "deliver single unacknowledged messages again"),
    Command("delay", "message_actions", "change the delivery time of a delayed message"),
    Command("disconnect", "message_actions", "disconnect a consumer or producer"),
    Command("skip", "cursor_moves", "skip messages of a subscription"),
    Command("seek", "cursor_moves", "move a subscription to a message or a time"),
    Command("delete", "cursor_moves", "delete a subscription or a topic"),
    Command("policies", "policies", "show, set or remove policies of a topic or a namespace"),
    Command("transactions", "transactions", "list, show or abort open transactions"),
    Command("brokers", "cluster.brokers", "list the brokers of a cluster, show the leader, check or stop a broker"),
    Command("api", "api", "call any path of the REST interface"),
    Command("diagnose", "diagnose", "collect the state of a broker in one archive, for a report of a problem"),
    Command("topics", "topics", "list the topics of a namespace or tenant"),
    Command("subscriptions", "subscriptions", "list the subscriptions of a topic with their backlog"),
    Command("stats", "stats", "show rates, producers, subscriptions and consumers of topics, live"),
    Command("produce", "produce", "publish messages"),
    Command("consume", "consume", "receive messages of a subscription, or read a topic"),
    Command("peek", "peek", "show the next messages of a subscription without receiving them"),
    Command("tokens", "tokens", "create keys and tokens, verify and show tokens", is_local=True),
    Command("serve", "serve", "run a broker until SIGTERM or Ctrl-C", is_local=True, has_traces=True),
    Command("backup", "data_directory.backup", "back up the stored data of a broker while it runs"),
    Command("restore", "data_directory.restore", "create a data directory from a backup", is_local=True),
    Command(
        "ledger",
        "data_directory.ledger",
        "verify, show or repair a data directory while no broker uses it; list, show and verify ledgers on BookKeeper; "
        "copy topics between them",
        is_local=True,
        has_traces=True,
    ),
    # A pipeline parses its own options, because their list needs its optional libraries.
    Command(
        "pipeline",
        "pipeline",
        "run a pipeline over whole topics, for example into lake tables",
        own_arguments=1,
        has_traces=True,
    ),
    Command(
        "metadata",
        "cluster.metadata",
        "prepare the metadata store that the brokers of a cluster share, move metadata to it, or check metadata",
        is_local=True,
    ),
    Command("completion", "completion", "print the completion script for bash or zsh", is_local=True),
)
COMMANDS = {command.name: command for command in _LIST}
