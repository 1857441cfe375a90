"""`pybroker unacked`, `delayed`, `draining` and `waiting`: List messages or key hashes of a subscription."""

from __future__ import annotations

import argparse
import base64
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pybroker.cli.admin_rest import AdminRest, subscription_path
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import base64_bytes, count, number, seconds, topic
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell, age, ago, moment, plain, printable, size, value_text
from pybroker.cli.watching import add_watch_option, show
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.model.names import TopicName

DEFAULT_LIMIT = 100
ROWS_AT_ONCE = 500
"""Rows that are formatted as one table, so that long lists start early and use little memory."""
Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """One list: its REST call and the format of its items."""

    call: str
    member: str
    head: Sequence[str]
    row: Callable[[Item, int], list[Cell]]
    """Returns the cells of an item, with the current time in milliseconds as second argument."""
    nothing: str
    text: str
    examples: str
    filters: Callable[[argparse.ArgumentParser], None] = field(default=lambda _: None)


def key_of(item: Mapping[str, Any]) -> str | None:
    if item.get("keyBase64") is not None:
        return _bytes_text(item["keyBase64"])
    key = item.get("key")
    return None if key is None else str(key) + ("..." if item.get("keyCut") else "")


def _bytes_text(encoded: object) -> str:
    return value_text(base64.b64decode(str(encoded)))


def consumer_text(consumer: object) -> str | None:
    if not isinstance(consumer, dict):
        return None if consumer is None else str(consumer)
    return str(consumer.get("name") or consumer.get("address"))


def _unacked_row(item: Item, now_ms: int) -> list[Cell]:
    return [
        item["messageId"],
        key_of(item),
        plain(item.get("hash")),
        item.get("consumer"),
        age(item.get("ageMs")),
        item.get("deliveryCount"),
        size(item.get("size")),
        ago(item.get("publishTime"), now_ms),
        "; ".join(_unacked_notes(item)),
    ]


def _unacked_notes(item: Item) -> Iterator[str]:
    if item.get("properties"):
        more = ", ..." if item.get("propertiesCut") else ""
        yield ", ".join(f"{name}={value}" for name, value in item["properties"].items()) + more
    if item.get("heldByTransaction"):
        yield f"acknowledged in the open transaction {item['heldByTransaction']}"
    if item.get("unreadable"):
        yield f"cannot be read: {item['unreadable']}"
    if item.get("encrypted"):
        yield "encrypted"


def _delayed_row(item: Item, now_ms: int) -> list[Cell]:
    notes = ["changed by an administrator"] if item.get("changed") else []
    notes += [f"cannot be read: {item['unreadable']}"] if item.get("unreadable") else []
    return [
        item["messageId"],
        key_of(item),
        ago(item.get("deliverAt"), now_ms),
        moment(item.get("deliverAt")),
        "; ".join(notes),
    ]


def _draining_row(item: Item, now_ms: int) -> list[Cell]:
    keys = [*map(str, item.get("keys", ())), *map(_bytes_text, item.get("keysBase64", ()))]
    ids = item.get("messageIds", [])
    unacked = item.get("unackedMessages", 0)
    return [
        plain(item.get("hash")),
        ", ".join(keys),
        consumer_text(item.get("oldConsumer")),
        consumer_text(item.get("newConsumer")),
        ago(item.get("since"), now_ms),
        unacked,
        " ".join(map(str, ids)) + (" ..." if unacked > len(ids) else ""),
        item.get("blockedAttempts"),
    ]


def _waiting_row(item: Item, now_ms: int) -> list[Cell]:
    return [
        plain(item.get("hash")),
        item.get("reason"),
        consumer_text(item.get("consumer")),
        consumer_text(item.get("because")),
        item.get("entries"),
        ago(item.get("since"), now_ms),
        item.get("setAsideFrom"),
    ]


def _add_unacked_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumer", metavar="C", help="only messages of this consumer, by its name")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key", metavar="K", help="only messages with this key")
    keys.add_argument(
        "--key-base64", type=base64_bytes, metavar="B", help="only messages with this binary key, in Base64"
    )
    parser.add_argument("--hash", type=number, metavar="N", help="only messages whose key has this hash")
    parser.add_argument(
        "--min-age",
        type=seconds,
        metavar="T",
        help="only messages that were delivered at least this long ago: 30s, 10m",
    )
    parser.add_argument("--properties", action="store_true", help="show their properties, too")


LISTINGS = {
    "unacked": Listing(
        "unacked",
        "messages",
        ("MESSAGE", "KEY", "HASH", "CONSUMER", "AGE", "DELIVERIES", "SIZE", "PUBLISHED", "NOTE"),
        _unacked_row,
        "No unacknowledged messages.",
        "List messages that were delivered and are not acknowledged, with their consumer and age.",
        """
pybroker unacked orders billing
pybroker unacked orders billing --consumer billing-2 --min-age 10m
pybroker unacked orders billing --key customer-7 --properties
pybroker unacked orders billing --watch=5s
pybroker unacked orders billing --json --limit 100000 | jq -r '.messages[].messageId'
""",
        _add_unacked_filters,
    ),
    "delayed": Listing(
        "delayed",
        "messages",
        ("MESSAGE", "KEY", "DELIVERY", "AT", "NOTE"),
        _delayed_row,
        "No delayed messages.",
        "List messages that wait for their delivery time.",
        """
pybroker delayed orders billing
pybroker delay orders billing 12:345 --now       deliver one of them now
""",
    ),
    "draining": Listing(
        "drainingHashes",
        "hashes",
        ("HASH", "KEYS", "FROM", "TO", "SINCE", "UNACKED", "MESSAGES", "BLOCKED"),
        _draining_row,
        "No draining hashes.",
        "List hashes of a Key_Shared subscription that wait until their previous consumer has acknowledged its messages.",
        """
pybroker draining orders billing
pybroker draining orders billing --watch
pybroker ack orders billing 12:345               acknowledge a message that blocks a hash
""",
    ),
    "waiting": Listing(
        "waiting",
        "hashes",
        ("HASH", "REASON", "CONSUMER", "BECAUSE OF", "ENTRIES", "SINCE", "PARKED FROM"),
        _waiting_row,
        "No waiting hashes.",
        "List hashes of a Key_Shared subscription whose messages wait in the look-ahead buffer and cannot be delivered.",
        """
pybroker waiting orders billing
pybroker waiting orders billing --watch
pybroker explain orders billing                  the cause, and the next steps
""",
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    listing = LISTINGS[parser.prog.split()[-1]]
    described(parser, listing.text, listing.examples)
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    parser.add_argument("subscription", metavar="SUBSCRIPTION")
    listing.filters(parser)
    parser.add_argument(
        "--limit", type=count, default=DEFAULT_LIMIT, metavar="N", help=f"maximum number of items ({DEFAULT_LIMIT})"
    )
    add_watch_option(parser)
    add_json_option(parser)
    add_broker_options(parser)
    parser.set_defaults(run=run, listing=listing)


def run(options: argparse.Namespace) -> int:
    with AdminRest(broker_of(options)) as rest:
        names = rest.partitions(options.topic)
        return show(output_of(options), options.watch, partial(_draw, rest, options, names))


def _draw(rest: AdminRest, options: argparse.Namespace, names: Sequence[TopicName], output: Output) -> None:
    listing: Listing = options.listing
    many = len(names) > 1
    left = options.limit
    collected: list[Item] = []
    total: int | None = None
    for name in names:
        pages = _Pages(rest, subscription_path(name, options.subscription), listing, _query(options), left)
        if left <= 0:  # the limit is reached; the total follows
            total = _sum(total, pages.counted())
            continue
        if output.is_json:
            found = [{**item, **({"topic": str(name)} if many else {})} for item in pages]
            collected += found
            shown = len(found)
        else:
            if many:
                output.line(printable(str(name)))
            shown = write_items(output, listing, pages, int(time.time() * 1000))
        total = _sum(total, pages.total)
        left -= shown
    if output.is_json:
        output.document({listing.member: collected, "total": total})
    elif total is not None and left <= 0 and total > options.limit:
        output.line(f"{options.limit:,} of {total:,}: --limit shows more")


def _sum(total: int | None, more: int | None) -> int | None:
    return more if total is None else total + (more or 0)


def _query(options: argparse.Namespace) -> dict[str, object]:
    given = vars(options)
    min_age, key = given.get("min_age"), given.get("key_base64")
    return {
        "consumer": given.get("consumer"),
        "key": given.get("key"),
        "keyBase64": None if key is None else base64.b64encode(key).decode(),
        "hash": given.get("hash"),
        "minAgeMs": None if min_age is None else round(min_age * 1000),
        "withProperties": True if given.get("properties") else None,
    }


class _Pages:
    """Iterates over the items of all pages of a list. `total`: the total in the first page."""

    def __init__(self, rest: AdminRest, path: str, listing: Listing, query: dict[str, object], limit: int) -> None:
        self.total: int | None = None
        self._rest = rest
        self._path = f"{path}/{listing.call}"
        self._member = listing.member
        self._query = query
        self._limit = limit

    def counted(self) -> int | None:
        total = self._rest.get(self._path, {**self._query, "limit": 1}).get("total")
        return None if total is None else int(total)

    def __iter__(self) -> Iterator[Item]:
        for answer, items in self._rest.pages(self._path, self._member, self._query, self._limit):
            if self.total is None and answer.get("total") is not None:
                self.total = int(answer["total"])
            yield from items


def write_items(output: Output, listing: Listing, items: Iterator[Item] | _Pages, now_ms: int) -> int:
    """Write the items in tables of at most ROWS_AT_ONCE rows. Return the number of items."""
    shown = 0
    iterator = iter(items)
    while rows := [listing.row(item, now_ms) for item in itertools.islice(iterator, ROWS_AT_ONCE)]:
        output.table(listing.head, rows)
        output.flush()
        shown += len(rows)
    if not shown:
        output.line(listing.nothing)
    return shown
