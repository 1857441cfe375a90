"""Common parts of the pipelines that read ranges of topics: options, progress, and output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.progress import track

from pybroker.client.access import AccessRefused
from pybroker.client.failures import ClientError
from pybroker.columns.bad_records import BadEntry
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.errors import ProtocolViolation
from pybroker.model.names import TopicName
from pybroker.pipelines.connecting import Connect
from pybroker.reading.cutting import cut
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.positions import EntryRange, Place, TopicPlan
from pybroker.reading.quantities import time_ms
from pybroker.reading.read_options import MODES, SourceOptions

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_FINDINGS = 0, 1, 2, 3
SPLIT_BYTES = 64 << 20


class WrongOptions(ValueError):
    """Invalid options. The text contains the correction."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of each topic to read, from `start` to `end` (exclusive). Each is a time in milliseconds since 1970, a
    position, or None for the beginning or end of the topic.
    """

    start: int | Place | None
    end: int | Place | None


def add_read_options(parser: argparse.ArgumentParser, *, many: bool = True) -> None:
    """Add the options that select topics (one, or several if `many`) and ranges."""
    group = parser.add_argument_group("input")
    if many:
        group.add_argument(
            "--topic", action="append", dest="topics", required=True, metavar="T", help="topic to read; may be repeated"
        )
    group.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="W",
        help="earliest, a time (2026-11-23T04:00:00Z, or ms), LEDGER:ENTRY",
    )
    group.add_argument(
        "--to",
        dest="end",
        default="latest",
        metavar="W",
        help="latest (the current end), a time, LEDGER:ENTRY; exclusive",
    )
    group.add_argument("--read-mode", choices=MODES, default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def source_options(options: argparse.Namespace, connect: Connect, topics: Sequence[str]) -> SourceOptions:
    return SourceOptions(connect(topics), options.read_mode)


def part_of(options: argparse.Namespace) -> Part:
    start = None if options.start == "earliest" else _place_or_time("--from", options.start)
    end = None if options.end == "latest" else _place_or_time("--to", options.end)
    return Part(start, end)


def _place_or_time(option: str, text: str) -> int | Place:
    ledger, _, entry = text.partition(":")
    if ledger.isascii() and ledger.isdigit() and entry.isascii() and entry.isdigit():
        return Place(int(ledger), int(entry))
    try:
        return time_ms(text)
    except ValueError:
        raise WrongOptions(
            f"{option} {text} is invalid: use a time such as 2026-11-23T04:00:00Z, milliseconds since 1970, or "
            "LEDGER:ENTRY"
        ) from None


def plans_of(source: EntrySource, topic: str, part: Part) -> list[TopicPlan]:
    """Return a read plan for each partition of `topic`. Raises ReadingFailed, and WrongOptions if `part` contains a
    position and the topic has several partitions.
    """
    partitions = source.partitions(topic)
    if len(partitions) > 1 and (isinstance(part.start, Place) or isinstance(part.end, Place)):
        raise WrongOptions(
            f"topic {topic} has {len(partitions)} partitions: select one of them, or use times instead of LEDGER:ENTRY"
        )
    return source.plans(
        [(name, _place(source, name, part.start), _place(source, name, part.end)) for name in partitions]
    )


def _place(source: EntrySource, partition: str, where: int | Place | None) -> Place | None:
    return source.place_at_time(partition, where) if isinstance(where, int) else where


def lost_of(plans: Sequence[TopicPlan]) -> list[str]:
    """Return a description of each gap in the requested ranges. Deleted ledgers at the beginning of a topic are a gap
    only if a start was requested.
    """
    return [sentence for plan in plans for sentence in plan.lost]


def ranges_of(plans: Sequence[TopicPlan]) -> list[EntryRange]:
    return [piece for plan in plans for piece in cut(plan, SPLIT_BYTES)]


def watched(ranges: Sequence[EntryRange], what: str, *, is_silent: bool) -> Iterator[EntryRange]:
    console = Console(stderr=True)
    yield from track(ranges, what, console=console, disable=is_silent or not console.is_terminal)


def partitioned_name(topic: str) -> str:
    return str(TopicName.parse(topic).partitioned_name)


def say(text: str) -> None:
    sys.stderr.write(f"pybroker: {text}\n")


def write_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=2, default=_shown) + "\n")


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return text_of(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def text_of(value: bytes | None) -> str:
    """Return a key in readable form: printable text, else hexadecimal digits; `(none)` for a message without a key."""
    if value is None:
        return "(none)"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() else "0x" + value.hex()


def write_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    numbers = [all(isinstance(row[index], int | float) for row in rows) and bool(rows) for index in range(len(head))]
    for line in [list(head), *texts]:
        cells = [cell.rjust(w) if n else cell.ljust(w) for cell, w, n in zip(line, widths, numbers, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def answered(work: Any, parser: argparse.ArgumentParser) -> int:
    try:
        code: int = work()
        return code
    except WrongOptions as error:
        parser.print_usage(sys.stderr)
        say(str(error))
        return EXIT_USAGE
    except (ClientError, BadEntry, UnreadableSchema, AccessRefused, ProtocolViolation, OSError) as error:
        say(str(error))
        return EXIT_FAILED
