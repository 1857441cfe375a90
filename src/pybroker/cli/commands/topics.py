"""`pybroker topics`: List the topics of a namespace, or of all namespaces of a tenant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from pybroker.cli.admin_rest import AdminRest, NotThere, namespace_path, path_of
from pybroker.cli.commands.explain import stuck_topics
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import namespace_or_tenant
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell, size
from pybroker.cli.watching import add_watch_option, show
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.model.names import DOMAINS, PERSISTENT, NamespaceName, TopicName

EXAMPLES = """
pybroker topics                          topics of public/default
pybroker topics acme/orders --long       with rates, backlog and size
pybroker topics acme --partitions        of all namespaces of a tenant, each partition on its own line
pybroker topics acme/orders --long --watch=5s
pybroker topics acme/orders --json | jq -r '.[].topic'
"""


MAX_STUCK = 10_000
"""Maximum number of stuck topics that are marked in a list."""


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A line of the list. `partitions` is 0 for a non-partitioned topic."""

    name: TopicName
    partitions: int


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument(
        "namespace",
        nargs="?",
        type=namespace_or_tenant,
        default=NamespaceName("public", "default"),
        metavar="NAMESPACE",
        help="TENANT/NAMESPACE, or a tenant (default: public/default)",
    )
    parser.add_argument(
        "-l", "--long", action="store_true", help="with rates, backlog and size; needs one more call for each topic"
    )
    parser.add_argument(
        "--partitions", action="store_true", help="list each partition instead of the partitioned topic"
    )
    parser.add_argument("--system", action="store_true", help="include the broker's system topics")
    add_watch_option(parser)
    add_json_option(parser)
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with AdminRest(broker_of(options)) as rest:
        return show(output_of(options), options.watch, partial(_draw, rest, options))


def _draw(rest: AdminRest, options: argparse.Namespace, output: Output) -> None:
    found: list[ListedTopic] = []
    for namespace in _namespaces(rest, options.namespace):
        names = _names(rest, namespace, with_system=options.system)
        partitioned = [] if options.partitions else _partitioned(rest, namespace)
        found += listed(names, partitioned)
    rows = [_document(rest, topic, is_long=options.long) for topic in found]
    if options.long:
        _add_stuck(rest, rows, options.namespace)
    if output.is_json:
        output.document(rows)
    else:
        _write_table(output, rows, is_long=options.long)


def listed(names: Iterable[str], partitioned: Iterable[str]) -> list[ListedTopic]:
    """Return one line for each topic; the partitions of a partitioned topic share one line. `partitioned`: the names of
    all partitioned topics, also of those without a partition in `names`.
    """
    counts = {str(TopicName.parse(name)): 0 for name in partitioned}
    plain: list[TopicName] = []
    for topic in {TopicName.parse(name) for name in names}:
        whole = str(topic.partitioned_name)
        if topic.partition_index >= 0 and whole in counts:
            counts[whole] = max(counts[whole], topic.partition_index + 1)
        else:
            plain.append(topic)
    found = [ListedTopic(topic, 0) for topic in plain]
    found += [ListedTopic(TopicName.parse(name), count) for name, count in counts.items()]
    return sorted(found, key=lambda each: str(each.name))


def _namespaces(rest: AdminRest, given: str | NamespaceName) -> list[NamespaceName]:
    if isinstance(given, NamespaceName):
        return [given]
    return [NamespaceName.parse(text) for text in sorted(rest.get(f"/admin/v2/namespaces/{quote(given, safe='')}"))]


def _names(rest: AdminRest, namespace: NamespaceName, *, with_system: bool) -> list[str]:
    query = {"includeSystemTopic": True if with_system else None}
    return [name for domain in DOMAINS for name in rest.get(f"/admin/v2/{domain}/{namespace_path(namespace)}", query)]


def _partitioned(rest: AdminRest, namespace: NamespaceName) -> list[str]:
    return [
        name for domain in DOMAINS for name in rest.get(f"/admin/v2/{domain}/{namespace_path(namespace)}/partitioned")
    ]


def _document(rest: AdminRest, topic: ListedTopic, *, is_long: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"topic": str(topic.name), "partitions": topic.partitions}
    if not is_long:
        return document
    try:
        stats = stats_of(rest, topic.name, is_partitioned=topic.partitions > 0)
    except NotThere:
        return {**document, "isGone": True}  # deleted since it was listed, or not loaded
    subscriptions: dict[str, Any] = stats.get("subscriptions", {})
    return {
        **document,
        "msgRateIn": float(stats.get("msgRateIn", 0)),
        "msgRateOut": float(stats.get("msgRateOut", 0)),
        "producers": len(stats.get("publishers", ())),
        "subscriptions": len(subscriptions),
        "msgBacklog": max((each.get("msgBacklog", 0) for each in subscriptions.values()), default=0),
        "storageSize": stats.get("storageSize", 0) if topic.name.domain == PERSISTENT else 0,
    }


def _add_stuck(rest: AdminRest, rows: list[dict[str, Any]], namespace: str | NamespaceName) -> None:
    try:
        found = stuck_topics(rest, MAX_STUCK, f"{namespace}/")["topics"]
    except NotThere:
        return
    stuck: dict[str, list[str]] = {}
    for each in found:
        name = str(TopicName.parse(each["topic"]).partitioned_name)
        for key in {each["topic"], name}:
            stuck.setdefault(key, []).append(str(each["finding"]["code"]))
    for row in rows:
        row["stuck"] = sorted(set(stuck.get(row["topic"], [])))


def stats_of(rest: AdminRest, topic: TopicName, *, is_partitioned: bool) -> dict[str, Any]:
    if is_partitioned:
        stats: dict[str, Any] = rest.get(f"{path_of(topic)}/partitioned-stats", {"perPartition": False})
    else:
        stats = rest.get(f"{path_of(topic)}/stats")
    return stats


def _write_table(output: Output, rows: list[dict[str, Any]], *, is_long: bool) -> None:
    head = ["TOPIC", "PARTITIONS"]
    cells: list[list[Cell]] = [[row["topic"], row["partitions"] or None] for row in rows]
    if is_long:
        head += ["IN/S", "OUT/S", "PRODUCERS", "SUBS", "BACKLOG", "SIZE", "STUCK"]
        members = ("msgRateIn", "msgRateOut", "producers", "subscriptions", "msgBacklog")
        for line, row in zip(cells, rows, strict=True):
            stuck = ", ".join(row["stuck"]) or "no" if "stuck" in row else None
            line += [*(row.get(member) for member in members), size(row.get("storageSize")), stuck]
    output.table(head, cells, "No topics.")
