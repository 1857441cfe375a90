"""`pybroker hash` and `holes`: Show the consumer of a key, and the gaps in a subscription's acknowledgements."""

from __future__ import annotations

import argparse
from typing import Any

from pybroker.cli.admin_rest import AdminRest, subscription_path
from pybroker.cli.commands.delivery_lists import consumer_text, key_of
from pybroker.cli.output import BOLD, Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import topic
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell, age, facts, moment, plain, printable, size
from pybroker.cli.watching import add_watch_option, show
from pybroker.cli.which_broker import add_broker_options, broker_of

HASH_EXAMPLES = """
pybroker hash orders billing customer-7
pybroker hash orders billing AAECAw== --base64   a binary key
pybroker hash orders billing customer-7 --watch
"""
HOLES_EXAMPLES = """
pybroker holes orders billing
pybroker holes orders billing --json | jq .held
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    is_hash = parser.prog.endswith("hash")
    if is_hash:
        described(
            parser, "Show the hash of a key, its hash range, and the consumer that receives it now.", HASH_EXAMPLES
        )
    else:
        described(
            parser,
            "Show the oldest unacknowledged message, the acknowledged ranges after it, and the ledgers that are retained for it.",
            HOLES_EXAMPLES,
        )
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    parser.add_argument("subscription", metavar="SUBSCRIPTION")
    if is_hash:
        parser.add_argument("key", metavar="KEY")
        parser.add_argument("--base64", action="store_true", help="KEY is a binary key in Base64")
    add_watch_option(parser)
    add_json_option(parser, "write the broker's document; a list of documents for a partitioned topic")
    add_broker_options(parser)
    parser.set_defaults(run=run_hash if is_hash else run_holes)


def run_hash(options: argparse.Namespace) -> int:
    return _shown(options, "hash", {"keyBase64" if options.base64 else "key": options.key}, _write_hash)


def run_holes(options: argparse.Namespace) -> int:
    return _shown(options, "ackHoles", {}, write_holes)


def _shown(options: argparse.Namespace, call: str, query: dict[str, object], write: Any) -> int:
    with AdminRest(broker_of(options)) as rest:
        names = rest.partitions(options.topic)

        def draw(output: Output) -> None:
            documents = {
                str(name): rest.get(f"{subscription_path(name, options.subscription)}/{call}", query) for name in names
            }
            if output.is_json:
                found = [{"topic": name, **each} for name, each in documents.items()]
                output.document(found[0] if len(found) == 1 else found)
                return
            for index, (name, document) in enumerate(documents.items()):
                if index:
                    output.line()
                output.line(printable(f"{name} / {options.subscription}"), BOLD)
                write(output, document)

        return show(output_of(options), options.watch, draw)


def _write_hash(output: Output, document: dict[str, Any]) -> None:
    consumer = document.get("consumer") or {}
    hash_range = document.get("range")
    draining = document.get("draining") or {}
    pairs: list[tuple[str, Cell]] = [
        ("key", key_of(document)),
        ("hash", plain(document.get("hash"))),
        ("range", None if not hash_range else f"{hash_range[0]} to {hash_range[1]}"),
        ("state", document.get("state")),
        ("consumer", consumer.get("name")),
        ("address", consumer.get("address")),
        ("draining from", consumer_text(draining.get("oldConsumer"))),
        ("since", moment(draining.get("since"))),
        ("unacknowledged messages", draining.get("unackedMessages")),
        ("waiting entries", document.get("waiting")),
        ("waiting since", moment(document.get("waitingSince"))),
        ("parked from", document.get("setAsideFrom")),
    ]
    output.lines(facts(pairs))


def write_holes(output: Output, document: dict[str, Any]) -> None:
    oldest = document.get("oldestUnacked") or {}
    held = document.get("held") or {}
    pairs: list[tuple[str, Cell]] = [
        ("mark-delete position", document.get("markDeletePosition")),
        ("oldest unacknowledged", oldest.get("messageId")),
        ("published", moment(oldest.get("publishTime"))),
        ("age", age(oldest.get("ageMs"))),
        ("cannot be read", oldest.get("unreadable")),
        ("retained ledgers", held.get("ledgers")),
        ("retained bytes", size(held.get("bytes"))),
    ]
    output.lines(facts(pairs))
    behind = document.get("acknowledgedBehind", [])
    output.line()
    rows: list[list[Cell]] = [[each["from"], each["to"], each["entries"]] for each in behind]
    output.table(
        ["ACKNOWLEDGED FROM", "TO", "ENTRIES"],
        rows,
        "No message after the oldest unacknowledged message is acknowledged.",
    )
    _write_more(output, document.get("more"))
    reasons = [
        [
            each.get("kind"),
            each.get("name"),
            each.get("ledgers"),
            size(each.get("bytes")),
            plain(each.get("firstLedger")),
        ]
        for each in held.get("reasons", [])
    ]
    if reasons:
        output.line()
        output.table(["RETAINED FOR", "NAME", "LEDGERS", "SIZE", "FIRST LEDGER"], reasons)
        _write_more(output, held.get("moreReasons"))


def _write_more(output: Output, more: object) -> None:
    if more:
        output.line(f"and {more} more")
