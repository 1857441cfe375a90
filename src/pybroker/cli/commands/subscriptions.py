"""`pybroker subscriptions`: List the subscriptions of a topic with their consumers and backlog."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from pybroker.cli.admin_rest import AdminRest
from pybroker.cli.commands.topics import stats_of
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import topic
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell
from pybroker.cli.watching import add_watch_option, show
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.model.names import TopicName

EXAMPLES = """
pybroker subscriptions orders
pybroker subscriptions orders --watch     refresh every 2 seconds, until Ctrl-C
pybroker subscriptions persistent://acme/shop/orders --json
"""
MEMBERS = (
    ("TYPE", "type"),
    ("BACKLOG", "msgBacklog"),
    ("UNACKED", "unackedMessages"),
    ("DELAYED", "msgDelayed"),
    ("OUT/S", "msgRateOut"),
    ("ACKED/S", "messageAckRate"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    add_watch_option(parser)
    add_json_option(parser)
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with AdminRest(broker_of(options)) as rest:
        is_partitioned = rest.partitions(options.topic) != [options.topic]
        draw = partial(_draw, rest, options.topic, is_partitioned=is_partitioned)
        return show(output_of(options), options.watch, draw)


def _draw(rest: AdminRest, name: TopicName, output: Output, *, is_partitioned: bool) -> None:
    stats = stats_of(rest, name, is_partitioned=is_partitioned)
    found = [subscription_document(key, each) for key, each in sorted(stats.get("subscriptions", {}).items())]
    if output.is_json:
        output.document(found)
    else:
        write_subscriptions(output, found)


def subscription_document(name: str, stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "subscription": name,
        "type": stats.get("type") or None,
        "consumers": len(stats.get("consumers", ())),
        **{member: stats.get(member, 0) for _, member in MEMBERS[1:]},
        "isDurable": stats.get("isDurable", True),
        "isBlocked": bool(stats.get("blockedSubscriptionOnUnackedMsgs", False)),
    }


def write_subscriptions(output: Output, found: list[dict[str, Any]]) -> None:
    head = ["SUBSCRIPTION", "CONSUMERS", *(title for title, _ in MEMBERS), "NOTE"]
    rows: list[list[Cell]] = [
        [each["subscription"], each["consumers"], *(each[member] for _, member in MEMBERS), _note(each)]
        for each in found
    ]
    output.table(head, rows, "No subscriptions.")


def _note(document: dict[str, Any]) -> str:
    notes = ["blocked: too many unacknowledged messages"] if document["isBlocked"] else []
    if not document["isDurable"]:
        notes.append("not durable")
    return ", ".join(notes)
