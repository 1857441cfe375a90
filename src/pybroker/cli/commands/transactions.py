"""`pybroker transactions`: List the open transactions, show one, or abort one."""

from __future__ import annotations

import argparse
import json
import re
import time
from argparse import ArgumentTypeError
from functools import partial
from typing import Any, NamedTuple

from pybroker.cli.admin_rest import AdminRest
from pybroker.cli.confirming import add_yes_option, require_confirmed
from pybroker.cli.exit_codes import EXIT_OK
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import MAX_NUMBER, seconds
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell, ago, facts, moment
from pybroker.cli.watching import add_watch_option, show
from pybroker.cli.which_broker import add_broker_options, broker_of

EXAMPLES = """
pybroker transactions list --open-for 10m
pybroker transactions list --watch
pybroker transactions show 0:17
pybroker transactions abort 0:17
"""
BASE = "/admin/v3/transactions"
_ID = re.compile(r"\(?([0-9]{1,19})[:,] ?([0-9]{1,19})\)?", re.ASCII)


class GivenTransaction(NamedTuple):
    """A transaction id: coordinator and number within the coordinator."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"{self.most}:{self.least}"


def transaction_id(text: str) -> GivenTransaction:
    """Parse `0:17`, or `(0,17)` as brokers write it."""
    match = _ID.fullmatch(text.strip())
    if match is None or max(map(int, match.groups())) > MAX_NUMBER:
        raise ArgumentTypeError("the value is not a transaction id: use the form COORDINATOR:NUMBER, such as 0:17")
    return GivenTransaction(int(match.group(1)), int(match.group(2)))


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the open transactions, the oldest first")
    listing.add_argument(
        "--open-for",
        type=seconds,
        default=0.0,
        metavar="T",
        help="only transactions that have been open for at least this time: 30s, 10m",
    )
    show = commands.add_parser("show", help="show the owner, state, topics and subscriptions of a transaction")
    abort = commands.add_parser("abort", help="abort a transaction that its program does not end")
    for each, run in ((listing, run_list), (show, run_show), (abort, run_abort)):
        if each is not listing:
            each.add_argument("id", type=transaction_id, metavar="COORDINATOR:NUMBER")
        if each is listing:
            add_watch_option(each)
        if each is abort:
            add_yes_option(each)
        add_json_option(each)
        add_broker_options(each)
        each.set_defaults(run=run)


def run_list(options: argparse.Namespace) -> int:
    with AdminRest(broker_of(options)) as rest:
        return show(output_of(options), options.watch, partial(_draw_list, rest, options.open_for))


def _draw_list(rest: AdminRest, open_for_s: float, output: Output) -> None:
    found: dict[str, Any] = rest.get(f"{BASE}/slowTransactions/{round(open_for_s * 1000)}") or {}
    if output.is_json:
        output.document(found)
        return
    now_ms = int(time.time() * 1000)
    rows: list[list[Cell]] = [
        [
            each.get("txnId"),
            each.get("status"),
            ago(each.get("openTimestamp"), now_ms),
            each.get("owner"),
            *_sizes(each),
        ]
        for each in sorted(found.values(), key=lambda each: each.get("openTimestamp", 0))
    ]
    head = ["TRANSACTION", "STATE", "OPENED", "OWNER", "TOPICS", "SUBSCRIPTIONS"]
    output.table(head, rows, "No open transactions.")


def _sizes(transaction: dict[str, Any]) -> tuple[int, int]:
    acknowledged = transaction.get("ackedPartitions") or {}
    return len(transaction.get("producedPartitions") or {}), sum(len(each) for each in acknowledged.values())


def run_show(options: argparse.Namespace) -> int:
    with AdminRest(broker_of(options)) as rest:
        found = rest.get(f"{BASE}/transactionMetadata/{options.id.most}/{options.id.least}")
    output = output_of(options)
    if output.is_json:
        output.document(found)
    else:
        output.lines(facts([(name, _text(name, value)) for name, value in found.items()]))
    return EXIT_OK


def _text(name: str, value: object) -> Cell:
    if isinstance(value, int) and name.endswith(("Timestamp", "At")):
        return moment(value)
    return value if isinstance(value, str | int | float) else json.dumps(value)


def run_abort(options: argparse.Namespace) -> int:
    require_confirmed(
        options,
        f"This is irreversible: the messages of transaction {options.id} are dropped, and the messages that it has acknowledged "
        "are delivered again.",
    )
    with AdminRest(broker_of(options)) as rest:
        rest.change("POST", f"{BASE}/abortTransaction/{options.id.most}/{options.id.least}")
    output = output_of(options)
    if output.is_json:
        output.document({"done": True})
    else:
        output.line(f"Transaction {options.id} is aborted.")
    return EXIT_OK
