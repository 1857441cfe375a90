"""`pybroker ledger`: Verify, show or repair a data directory while no broker uses it, or ledgers on BookKeeper."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.cli.broker_settings import add_set_option, overrides_of, run_with_configuration
from pybroker.cli.output import add_json_option
from pybroker.cli.parsing import described

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.model.names import NamespaceName, TopicName
    from pybroker.tools.ledgers_on_bookkeeper.connecting import LedgerTool

EXAMPLES = """
pybroker ledger verify data
pybroker ledger dump data --ledger 12 --json
pybroker ledger repair data                      show the changes that a repair would make
pybroker ledger repair data --apply
pybroker ledger repair data --apply --accept-loss    continue without stored data that is missing and permanently lost

Ledgers on BookKeeper, while brokers use them:
pybroker ledger list --metadata-store zk:zk1:2181,zk2:2181/pulsar --property pulsar/managed-ledger=public/default/persistent/t
pybroker ledger dump --metadata-store zk:zk1:2181 --ledger 12 --first 100 --last 199
pybroker ledger verify --config broker.conf --ledger 12
pybroker ledger orphans --metadata-store zk:zk1:2181 --cluster c1
pybroker ledger list --metadata-store zk:zk1:2181 --topic persistent://public/default/t
pybroker ledger verify --metadata-store zk:zk1:2181 --topic persistent://public/default/t

Topics from a data directory to BookKeeper and back, while no broker runs:
pybroker ledger copy --data data --config broker.conf --to bookkeeper --namespace public/default --dry-run
pybroker ledger copy --data data --metadata-store zk:zk1:2181 --cluster c1 --to local --topic persistent://public/default/t
"""
_KEY_OF_OPTION = {"metadata_store": "metadataStoreUrl", "cluster": "clusterName", "data": "dataDirectory"}
_TARGETS = ("bookkeeper", "local")
_STATES = ("OPEN", "IN_RECOVERY", "CLOSED")
_TIMEOUT_S = 10.0
_ORPHAN_AGE_HOURS = 24.0
_HOUR_MS = 3_600_000


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    verify = commands.add_parser("verify", help="read all data and report each damage; exit code 1 if data is damaged")
    verify.add_argument("directory", type=Path, nargs="?", metavar="DIR", help="the data directory")
    which = verify.add_mutually_exclusive_group()
    which.add_argument(
        "--ledger", type=_number, metavar="N", help="on BookKeeper: verify only this ledger (default: all ledgers)"
    )
    _add_topic_option(which, "on BookKeeper: verify the ledgers, counts and cursors of this topic")
    _add_store_options(verify)
    verify.set_defaults(run=_verify)
    dump = commands.add_parser("dump", help="show ledgers, entries, cursors and the journal")
    dump.add_argument("directory", type=Path, nargs="?", metavar="DIR", help="the data directory")
    which = dump.add_mutually_exclusive_group()
    which.add_argument(
        "--ledger", type=_number, metavar="N", help="show only this ledger; on BookKeeper, this or --topic is required"
    )
    _add_topic_option(which, "on BookKeeper: show the entries and cursors of this topic")
    dump.add_argument("--payloads", action="store_true", help="show the bytes of entries, too, in hexadecimal")
    dump.add_argument(
        "--first", type=_number, default=0, metavar="ENTRY", help="on BookKeeper: the first entry (default: 0)"
    )
    dump.add_argument(
        "--last",
        type=_number,
        metavar="ENTRY",
        help="on BookKeeper: the last entry (default: the last entry of the ledger)",
    )
    _add_store_options(dump)
    dump.set_defaults(run=_dump)
    listing = commands.add_parser("list", help="list the ledgers on BookKeeper")
    _add_topic_option(listing, "only the ledgers of this topic, with their use, and its cursors")
    listing.add_argument("--state", choices=_STATES, help="only ledgers in this state")
    listing.add_argument(
        "--property",
        type=_property,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only ledgers with this property (custom metadata); may be repeated",
    )
    _add_store_options(listing)
    listing.set_defaults(run=_list)
    orphans = commands.add_parser(
        "orphans",
        help="list the ledgers of a cluster on BookKeeper that belong to no topic and no cursor; deletes nothing",
    )
    orphans.add_argument(
        "--cluster", metavar="NAME", help="the cluster whose brokers created the ledgers (clusterName)"
    )
    orphans.add_argument(
        "--min-age-hours",
        type=float,
        default=_ORPHAN_AGE_HOURS,
        metavar="HOURS",
        help=f"minimum age, because a broker may still add younger ledgers to a topic (default: {_ORPHAN_AGE_HOURS:g})",
    )
    _add_store_options(orphans)
    orphans.set_defaults(run=_orphans)
    copy = commands.add_parser(
        "copy", help="copy topics from a data directory to BookKeeper or back, while no broker runs; can be repeated"
    )
    copy.add_argument("--to", required=True, choices=_TARGETS, dest="target", help="where the copy is stored")
    copy.add_argument("--data", metavar="DIR", help="the data directory (dataDirectory)")
    copy.add_argument("--metadata-store", metavar="URL", help="such as zk:host:2181/path (metadataStoreUrl)")
    copy.add_argument("--cluster", metavar="NAME", help="name of the cluster (clusterName)")
    copy.add_argument("--config", type=Path, metavar="FILE", help="configuration file of the broker (default: none)")
    add_set_option(copy)
    which = copy.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topic", type=_topic, metavar="TOPIC", help="one topic, or one partition of a partitioned topic"
    )
    which.add_argument("--namespace", type=_namespace, metavar="TENANT/NAMESPACE", help="all its persistent topics")
    copy.add_argument("--dry-run", action="store_true", help="show the topics to copy, and copy nothing")
    add_json_option(copy, "write one JSON object per line")
    copy.set_defaults(run=_copy)
    repair = commands.add_parser(
        "repair", help="show or make the repair of a data directory with which the broker does not start"
    )
    repair.add_argument("directory", type=Path, metavar="DIR", help="the data directory")
    repair.add_argument(
        "--apply", action="store_true", help="make the changes; replaced files are kept in DIR/taken-away-<time>"
    )
    repair.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --apply: continue without stored data that is missing (journal or ledgers lost, truncated or older)",
    )
    repair.set_defaults(run=_repair)


def _add_topic_option(parser: argparse._ActionsContainer, meaning: str) -> None:
    parser.add_argument(
        "--topic", type=_topic, metavar="TOPIC", help=f"{meaning}; for a partitioned topic, one of its partitions"
    )


def _add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metadata-store", metavar="URL", help="such as zk:host:2181/path: use ledgers on BookKeeper")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file of a broker with metadataStoreUrl"
    )
    add_set_option(parser)
    parser.add_argument(
        "--ledgers-root", default="/ledgers", metavar="PATH", help="BookKeeper's path in ZooKeeper (default: /ledgers)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help=f"the longest wait for ZooKeeper (default: {_TIMEOUT_S:g})",
    )
    add_json_option(parser, "write one JSON object per line")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError("the value must be a number of 0 or more")
    return int(text)


def _property(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("the value must have the form KEY=VALUE")
    return key, value


def _configuration(options: argparse.Namespace) -> BrokerConfig:
    from pybroker.config import Problems, read  # noqa: PLC0415  (so that --help answers at once)

    problems = Problems()
    loaded = read(options.config, os.environ, overrides_of(options, _KEY_OF_OPTION, problems))
    problems.found += loaded.problems
    problems.raise_any()
    return loaded.config


def _is_on_bookkeeper(options: argparse.Namespace) -> bool:
    """Return whether the command is for ledgers on BookKeeper. Raises ConfigError if both a directory and a metadata
    store are given, or neither.
    """
    from pybroker.config import ConfigError  # noqa: PLC0415

    has_store = options.metadata_store is not None or options.config is not None or bool(options.set)
    if has_store == (options.directory is not None):
        raise ConfigError(
            "the command does not know which ledgers to read: give either DIR for a data directory, or --metadata-store "
            "zk:host:2181/path (or --config) for ledgers on BookKeeper"
        )
    return has_store


def _topic(text: str) -> TopicName:
    from pybroker.errors import InvalidTopicName  # noqa: PLC0415
    from pybroker.model.names import TopicName  # noqa: PLC0415

    try:
        topic = TopicName.parse(text)
    except InvalidTopicName as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not topic.is_persistent:
        raise argparse.ArgumentTypeError("the topic is not persistent, so it has no ledgers: give a persistent topic")
    return topic


def _namespace(text: str) -> NamespaceName:
    from pybroker.errors import InvalidTopicName  # noqa: PLC0415
    from pybroker.model.names import NamespaceName  # noqa: PLC0415

    try:
        return NamespaceName.parse(text)
    except InvalidTopicName as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _copy(options: argparse.Namespace) -> int:
    return run_with_configuration(_run_copy, options)


def _run_copy(options: argparse.Namespace) -> int:
    from pybroker.tools.copying_topics.copy_command import CopyRequest, main  # noqa: PLC0415

    request = CopyRequest(options.target, options.topic, options.namespace, options.dry_run, options.json)
    return main(_configuration(options), request)


def _verify(options: argparse.Namespace) -> int:
    return run_with_configuration(_run_verify, options)


def _run_verify(options: argparse.Namespace) -> int:
    if not _is_on_bookkeeper(options):
        from pybroker.tools.verify import main as verify  # noqa: PLC0415

        return verify(options.directory)
    from pybroker.tools.ledgers_on_bookkeeper.topic_ledgers import verify_topic  # noqa: PLC0415
    from pybroker.tools.ledgers_on_bookkeeper.verifying import Verification  # noqa: PLC0415

    async def command(tool: LedgerTool) -> int:
        if options.topic is not None:
            return await verify_topic(tool, options.topic)
        return await Verification(tool).run(options.ledger)

    return _run_on_bookkeeper(options, command)


def _dump(options: argparse.Namespace) -> int:
    return run_with_configuration(_run_dump, options)


def _run_dump(options: argparse.Namespace) -> int:
    if not _is_on_bookkeeper(options):
        from pybroker.tools.dump import main as dump  # noqa: PLC0415

        return dump(options.directory, options.ledger, with_payloads=options.payloads, is_json=options.json)
    from pybroker.config import ConfigError  # noqa: PLC0415
    from pybroker.tools.ledgers_on_bookkeeper.dumping import dump_ledger  # noqa: PLC0415
    from pybroker.tools.ledgers_on_bookkeeper.topic_ledgers import dump_topic  # noqa: PLC0415

    if options.ledger is None and options.topic is None:
        raise ConfigError(
            "for ledgers on BookKeeper, dump needs --ledger N or --topic TOPIC; `pybroker ledger list` shows "
            "the ledgers"
        )

    async def command(tool: LedgerTool) -> int:
        if options.topic is not None:
            return await dump_topic(tool, options.topic, with_payloads=options.payloads)
        return await dump_ledger(tool, options.ledger, options.first, options.last, with_payloads=options.payloads)

    return _run_on_bookkeeper(options, command)


def _list(options: argparse.Namespace) -> int:
    return run_with_configuration(_run_list, options)


def _run_list(options: argparse.Namespace) -> int:
    from pybroker.tools.ledgers_on_bookkeeper.listing import list_ledgers  # noqa: PLC0415
    from pybroker.tools.ledgers_on_bookkeeper.topic_ledgers import list_topic  # noqa: PLC0415

    async def command(tool: LedgerTool) -> int:
        if options.topic is not None:
            return await list_topic(tool, options.topic)
        return await list_ledgers(tool, options.state, dict(options.property))

    return _run_on_bookkeeper(options, command)


def _orphans(options: argparse.Namespace) -> int:
    return run_with_configuration(_run_orphans, options)


def _run_orphans(options: argparse.Namespace) -> int:
    from pybroker.config import ConfigError  # noqa: PLC0415
    from pybroker.tools.ledgers_on_bookkeeper.orphans import list_orphans  # noqa: PLC0415

    cluster_name = _configuration(options).cluster_name
    if options.min_age_hours <= 0:
        raise ConfigError("--min-age-hours must be more than 0")

    async def command(tool: LedgerTool) -> int:
        return await list_orphans(tool, cluster_name, int(options.min_age_hours * _HOUR_MS))

    return _run_on_bookkeeper(options, command)


def _run_on_bookkeeper(options: argparse.Namespace, command: Callable[[LedgerTool], Awaitable[int]]) -> int:
    from pybroker.tools.ledgers_on_bookkeeper.connecting import run  # noqa: PLC0415

    return run(_configuration(options), options.ledgers_root, options.timeout, is_json=options.json, command=command)


def _repair(options: argparse.Namespace) -> int:
    from pybroker.tools.repair import main as repair  # noqa: PLC0415

    return repair(options.directory, applies=options.apply, accepts_loss=options.accept_loss)
