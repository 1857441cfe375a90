"""`pybroker stats`: Show rates, producers, subscriptions and consumers of topics, refreshed every 2 seconds or once.

Rates are computed from the broker's counters between two refreshes. The first output shows the broker's own averages.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pybroker.cli.admin_rest import AdminRest
from pybroker.cli.commands.subscriptions import subscription_document, write_subscriptions
from pybroker.cli.commands.topics import stats_of
from pybroker.cli.output import BOLD, YELLOW, Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import topic
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell, rate, size
from pybroker.cli.watching import DEFAULT_PAUSE_S, pause, show
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.model.names import TopicName

EXAMPLES = """
pybroker stats orders                    refresh every 2 seconds, until Ctrl-C
pybroker stats orders --once
pybroker stats orders payments --watch=10s
pybroker stats orders --once --json | jq .msgRateIn
"""
MAX_CONSUMERS = 50
"""Consumers and producers shown per list. --json has all."""
_COUNTERS = {
    "msgRateIn": "msgInCounter",
    "msgThroughputIn": "bytesInCounter",
    "msgRateOut": "msgOutCounter",
    "msgThroughputOut": "bytesOutCounter",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("topics", type=topic, nargs="+", metavar="TOPIC")
    parser.add_argument("--once", action="store_true", help="write the state once and end")
    parser.add_argument(
        "--interval",
        "--watch",
        dest="interval",
        nargs="?",
        type=pause,
        default=DEFAULT_PAUSE_S,
        const=DEFAULT_PAUSE_S,
        metavar="SECONDS",
        help=f"refresh every SECONDS ({DEFAULT_PAUSE_S:g}) until Ctrl-C; after the names, or as --watch=SECONDS",
    )
    add_json_option(parser, "write the broker's document; without --once, one line for each refresh")
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    rates = RatesBetween()
    with AdminRest(broker_of(options)) as rest:
        partitioned = {name: rest.partitions(name) != [name] for name in options.topics}

        def draw(output: Output) -> None:
            stats = {name: stats_of(rest, name, is_partitioned=partitioned[name]) for name in options.topics}
            rates.look(stats, time.monotonic())
            _write(output, stats)

        return show(output_of(options), None if options.once else options.interval, draw)


@dataclass(slots=True)
class RatesBetween:
    """Replaces the broker's one-minute averages by rates since the previous sample."""

    _at_s: float = 0.0
    _before: dict[str, dict[str, int]] = field(default_factory=dict)

    def look(self, stats: Mapping[TopicName, dict[str, Any]], now_s: float) -> None:
        """Replace the broker's averages in `stats` by the rates since the previous call, except in the first call and
        after a restart of the counters. `now_s` is monotonic.
        """
        took_s, self._at_s = now_s - self._at_s, now_s
        past, self._before = self._before, {}  # drops deleted topics
        for name, document in stats.items():
            parts = {str(name): document}
            parts |= {f"{name}\0{key}": each for key, each in document.get("subscriptions", {}).items()}
            for key, part in parts.items():
                counters = {rate: part[counter] for rate, counter in _COUNTERS.items() if counter in part}
                before = past.get(key)
                if (
                    before is not None
                    and took_s > 0
                    and all(counters[each] >= before.get(each, 0) for each in counters)
                ):
                    part.update({each: (counters[each] - before.get(each, 0)) / took_s for each in counters})
                self._before[key] = counters


def _write(output: Output, stats: Mapping[TopicName, dict[str, Any]]) -> None:
    if output.is_json:
        documents = [{"topic": str(name), **document} for name, document in stats.items()]
        output.document(documents[0] if len(documents) == 1 else documents)
    elif len(stats) == 1:
        ((name, document),) = stats.items()
        write_topic(output, name, document)
    else:
        _write_topics(output, stats)


def _write_topics(output: Output, stats: Mapping[TopicName, dict[str, Any]]) -> None:
    head = ["TOPIC", "IN/S", "BYTES IN/S", "OUT/S", "BYTES OUT/S", "PRODUCERS", "SUBS", "BACKLOG", "SIZE"]
    rows: list[list[Cell]] = [
        [
            str(name),
            float(each.get("msgRateIn", 0)),
            size(each.get("msgThroughputIn", 0)),
            float(each.get("msgRateOut", 0)),
            size(each.get("msgThroughputOut", 0)),
            len(each.get("publishers", ())),
            len(each.get("subscriptions", {})),
            max((sub.get("msgBacklog", 0) for sub in each.get("subscriptions", {}).values()), default=0),
            size(each.get("storageSize", 0)),
        ]
        for name, each in stats.items()
    ]
    output.table(head, rows)


def write_topic(output: Output, name: TopicName, stats: dict[str, Any]) -> None:
    output.line(str(name), BOLD)
    output.line(
        f"in {_traffic(stats, 'In')}, out {_traffic(stats, 'Out')}, {size(stats.get('storageSize', 0))} stored, "
        f"backlog {size(stats.get('backlogSize', 0))}"
    )
    publishers = stats.get("publishers", [])
    if publishers:
        output.line()
        rows: list[list[Cell]] = [
            [
                each.get("producerName", ""),
                each.get("address", ""),
                float(each.get("msgRateIn", 0)),
                size(each.get("msgThroughputIn", 0)),
                each.get("accessMode", ""),
                "waiting for memory" if "waitsForMemory" in each else "",
            ]
            for each in publishers[:MAX_CONSUMERS]
        ]
        output.table(["PRODUCER", "ADDRESS", "IN/S", "BYTES IN/S", "ACCESS", "NOTE"], rows)
        _write_rest(output, len(publishers))
    subscriptions = stats.get("subscriptions", {})
    output.line()
    write_subscriptions(output, [subscription_document(each, subscriptions[each]) for each in sorted(subscriptions)])
    for each in sorted(subscriptions):
        _write_consumers(output, each, subscriptions[each])


def _write_consumers(output: Output, subscription: str, stats: dict[str, Any]) -> None:
    consumers = stats.get("consumers", [])
    if not consumers:
        return
    output.line()
    active = stats.get("activeConsumerName")
    rows: list[list[Cell]] = [
        [
            each.get("consumerName", ""),
            each.get("address", ""),
            float(each.get("msgRateOut", 0)),
            each.get("availablePermits", 0),
            each.get("unackedMessages", 0),
            ", ".join(_consumer_notes(each, is_active=bool(active) and active == each.get("consumerName"))),
        ]
        for each in consumers[:MAX_CONSUMERS]
    ]
    output.table([f"CONSUMERS OF {subscription}", "ADDRESS", "OUT/S", "PERMITS", "UNACKED", "NOTE"], rows)
    _write_rest(output, len(consumers))


def _consumer_notes(consumer: dict[str, Any], *, is_active: bool) -> list[str]:
    notes = ["active"] if is_active else []
    if consumer.get("blockedConsumerOnUnackedMsgs"):
        notes.append("blocked: too many unacknowledged messages")
    if consumer.get("drainingHashesCount"):
        notes.append(f"{consumer['drainingHashesCount']} draining hashes")
    return notes


def _write_rest(output: Output, count: int) -> None:
    if count > MAX_CONSUMERS:
        output.line(f"and {count - MAX_CONSUMERS:,} more: --json shows all", YELLOW)


def _traffic(stats: dict[str, Any], direction: str) -> str:
    return f"{rate(float(stats.get(f'msgRate{direction}', 0)))}/s ({size(stats.get(f'msgThroughput{direction}', 0))}/s)"
