"""Prediction of hot keys: the load of each consumer of a Key_Shared subscription. Only reads.

It uses the hash ranges of the current consumers of a subscription (--subscription), or of --consumers hypothetical
ones.

Exit codes: 0 success, 1 failure, 2 wrong options, 3 skewed: one consumer gets more than --limit times its even share.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from pybroker.client.rest import RestClient
from pybroker.columns.message_columns import VALUE
from pybroker.model.names import TopicName
from pybroker.pipelines.connecting import Connect
from pybroker.pipelines.key_counts import KeyCount, KeyCounts, Owners, selector_of
from pybroker.pipelines.topic_ranges import (
    EXIT_FINDINGS,
    EXIT_OK,
    WrongOptions,
    add_read_options,
    answered,
    lost_of,
    part_of,
    plans_of,
    ranges_of,
    say,
    source_options,
    text_of,
    watched,
    write_json,
    write_table,
)
from pybroker.reading.message_batches import MessageReader, MessageReading
from pybroker.reading.rest_topics import segments_of
from pybroker.reading.sources import open_source

if TYPE_CHECKING:
    from pybroker.reading.read_options import SourceOptions

_KEY, _ORDERING = "__key", "__orderingKey"
HashRanges = dict[str, list[tuple[int, int]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_read_options(parser)
    group = parser.add_argument_group("consumers")
    group.add_argument("--subscription", metavar="S", help="assign keys to the current hash ranges of its consumers")
    group.add_argument(
        "--consumers", type=int, default=4, metavar="N", help="number of hypothetical consumers, without --subscription"
    )
    group.add_argument(
        "--mode",
        choices=("consistent-hash", "auto-split"),
        default="consistent-hash",
        help="how the broker spreads hashes (subscriptionKeySharedUseConsistentHashing)",
    )
    group.add_argument(
        "--limit", type=float, default=2.0, metavar="F", help="multiple of the even share that counts as skewed (2)"
    )
    group.add_argument("--top", type=int, default=20, metavar="N", help="keys to show")
    group.add_argument("--by-bytes", action="store_true", help="rank keys by bytes of values instead of messages")
    group.add_argument(
        "--max-keys",
        type=int,
        default=1_000_000,
        metavar="N",
        help="keys kept in memory; above that, only the largest ones",
    )


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, connect: Connect) -> int:
    return answered(lambda: _run(options, connect), parser)


def _run(options: argparse.Namespace, connect: Connect) -> int:
    if not 1 <= options.consumers <= 1000 or options.max_keys < 2 or options.limit < 1:
        raise WrongOptions(
            "the options are invalid: --consumers must be from 1 to 1000, --max-keys at least 2, and --limit at least 1"
        )
    where, part = source_options(options, connect, options.topics), part_of(options)
    counts = KeyCounts(options.max_keys)
    with closing(open_source(where)) as source:
        plans = [plan for topic in options.topics for plan in plans_of(source, topic, part)]
        for sentence in lost_of(plans):
            say(f"lost and not counted: {sentence}")
        reader = MessageReader(source, MessageReading((VALUE, _KEY, _ORDERING)))
        for piece in watched(ranges_of(plans), "counting keys", is_silent=options.json):
            for batch in reader.read(piece):
                count_batch(counts, batch)
    owners = _owners(options, where)
    document = skew(counts, owners, options.top, options.limit, by_bytes=options.by_bytes)
    if options.json:
        write_json(document)
    else:
        _show(document)
    return EXIT_FINDINGS if document["skewed"] else EXIT_OK


def count_batch(counts: KeyCounts, batch: pa.RecordBatch) -> None:
    """Count the messages of a batch by key. As in the broker, the ordering key has precedence over the key."""
    key = pc.coalesce(batch.column(_ORDERING), batch.column(_KEY))
    size = pc.fill_null(pc.binary_length(batch.column(VALUE)), 0)
    grouped = pa.table({"key": key, "size": size}).group_by("key").aggregate([("size", "count"), ("size", "sum")])
    columns = (grouped.column(name).to_pylist() for name in ("key", "size_count", "size_sum"))
    for each, messages, size_bytes in zip(*columns, strict=True):
        counts.add(each, messages, size_bytes)


def _owners(options: argparse.Namespace, where: SourceOptions) -> Owners:
    fold = selector_of(options.mode, 0 if options.subscription else options.consumers)
    if not options.subscription:
        return Owners.of_selector(fold)
    ranges: HashRanges = {}
    with closing(where.rest_client()) as rest:
        for topic in options.topics:
            ranges |= consumer_ranges(_stats(rest, TopicName.parse(topic)), options.subscription)
    if not ranges:
        raise WrongOptions(
            f"Key_Shared subscription {options.subscription} has no connected consumer: use --consumers N"
        )
    return Owners(ranges, fold)


def _stats(rest: RestClient, topic: TopicName) -> Mapping[str, Any]:
    path = f"/admin/v2/persistent/{segments_of(topic)}"
    partitions = int(rest.json("GET", f"{path}/partitions")["partitions"])
    one = (
        segments_of(topic.partition(0)) if partitions else segments_of(topic)
    )  # all partitions have the same consumers
    found: Mapping[str, Any] = rest.json("GET", f"/admin/v2/persistent/{one}/stats?getPreciseBacklog={quote('false')}")
    return found


def consumer_ranges(stats: Mapping[str, Any], subscription: str) -> HashRanges:
    """Return the hash ranges of each consumer of a subscription by name, from the topic's stats."""
    consumers = stats.get("subscriptions", {}).get(subscription, {}).get("consumers", [])
    return {
        f"{consumer['consumerName']} {consumer.get('address', '')}".strip(): [
            (int(first), int(last)) for first, last in consumer.get("keyHashRangeArrays") or []
        ]
        for consumer in consumers
        if consumer.get("keyHashRangeArrays")
    }


def skew(counts: KeyCounts, owners: Owners, top: int, limit: float, *, by_bytes: bool = False) -> dict[str, Any]:
    """Return the result for the output: totals, consumers with their shares, and the `top` heaviest keys with hash and
    consumer. A consumer is skewed above `limit` times its even share.
    """

    def weight(count: KeyCount) -> int:
        return count.size_bytes if by_bytes else count.messages

    shares = counts.of_hashes(owners)
    for name in owners.names:
        shares.setdefault(name, KeyCount())
    total = sum(map(weight, shares.values()))
    even = total / len(shares) if shares else 0
    heaviest = counts.heaviest(top, by_bytes=by_bytes)
    hashes = owners.sticky_hashes(key for key, _ in heaviest)
    largest = max(map(weight, shares.values()), default=0)
    return {
        "messages": counts.total.messages,
        "bytes": counts.total.size_bytes,
        "keys": len(counts.keys),
        "exact": not counts.error,
        "countsTooLowByAtMost": counts.error,
        "messagesWithoutKey": counts.without_key.messages,
        "by": "bytes" if by_bytes else "messages",
        "consumers": [
            {
                "consumer": name or "(none)",
                "messages": count.messages,
                "bytes": count.size_bytes,
                "timesEvenShare": round(weight(count) / even, 3) if even else 0.0,
            }
            for name, count in sorted(shares.items(), key=lambda item: (-weight(item[1]), item[0]))
        ],
        "hotKeys": [
            {
                "key": text_of(key),
                "messages": count.messages,
                "bytes": count.size_bytes,
                "share": round(weight(count) / total, 4) if total else 0.0,
                "hash": sticky_hash,
                "consumer": owners.owner(sticky_hash) or "(none)",
            }
            for (key, count), sticky_hash in zip(heaviest, hashes, strict=True)
        ],
        "skewed": len(shares) > 1 and largest > limit * even,
    }


def _show(document: Mapping[str, Any]) -> None:
    exact = "" if document["exact"] else f" (each count may be too low by up to {document['countsTooLowByAtMost']:,})"
    say(
        f"{document['messages']:,} messages, {document['bytes']:,} bytes of values, {document['keys']:,} keys{exact}; "
        f"{document['messagesWithoutKey']:,} messages without key"
    )
    _table(document["consumers"], ("consumer", "messages", "bytes", "timesEvenShare"))
    _table(document["hotKeys"], ("key", "messages", "bytes", "share", "hash", "consumer"))
    if document["skewed"]:
        say(
            "skewed: the first consumer receives several times its share. More consumers do not help with a single hot "
            "key: distribute its messages over more keys"
        )


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    write_table(names, [[row[name] for name in names] for row in rows])
