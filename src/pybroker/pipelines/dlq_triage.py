"""Analysis of a dead letter topic: messages grouped by reason, original topic and key. Only reads.

The reason is a property that the application has set (--reason-property; else exception, error or reason). Without the
property, the reason is that the payload cannot be decoded with its schema, or else that the message was redelivered too
often.

Exit codes: 0 success, 1 failure, 2 wrong options.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from pybroker.columns.bad_records import BadRecords
from pybroker.columns.message_columns import ERROR_COLUMN, VALUE
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_decoder import value_decoder
from pybroker.columns.values.value_schema import SchemaInfo, ValueDecoder
from pybroker.pipelines.connecting import Connect
from pybroker.pipelines.topic_ranges import (
    EXIT_OK,
    add_read_options,
    answered,
    lost_of,
    part_of,
    partitioned_name,
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
from pybroker.reading.sources import open_source

_COLUMNS = (
    VALUE,
    "__key",
    "__schemaVersion",
    "__publishTime",
    "__ledgerId",
    "__entryId",
    "__messageProperties",
    ERROR_COLUMN,
)
REASON_PROPERTIES = ("exception", "error", "reason")
ORIGIN_TOPIC, ORIGIN_ID = "REAL_TOPIC", "ORIGIN_MESSAGE_ID"
"""Properties that dead letter policies of consumers set."""
MAX_GROUPS = 10_000
"""Limit for each kind of group. Later groups are counted together."""
MAX_TEXT = 200
"""Maximum length of a reason, because the text of an exception may be a page long."""
OTHERS = "(others)"
TOO_OFTEN = "redelivered too often (no reason given)"


@dataclass
class Group:
    """Dead letters with a common reason, origin or key."""

    messages: int = 0
    first: datetime | None = None
    last: datetime | None = None
    samples: list[str] = field(default_factory=list)

    def add(self, published: datetime, message_id: str, samples: int) -> None:
        self.messages += 1
        self.first = published if self.first is None else min(self.first, published)
        self.last = published if self.last is None else max(self.last, published)
        if len(self.samples) < samples:
            self.samples.append(message_id)


class Triage:
    """Groups dead letters by reason, origin and key."""

    def __init__(self, reason_property: str | None, samples: int) -> None:
        self.messages = 0
        self.by: dict[str, dict[str, Group]] = {"reason": {}, "origin": {}, "key": {}}
        self._reasons = (reason_property,) if reason_property else REASON_PROPERTIES
        self._samples = samples

    def add(self, rows: pa.RecordBatch, decode_errors: list[str | None]) -> None:
        """Add a batch of messages. `decode_errors` has for each row the reason why its payload does not match the
        schema, or None.
        """
        columns = (rows.column(name).to_pylist() for name in _COLUMNS[1:])
        for key, _, published, ledger_id, entry_id, pairs, error, decode_error in zip(
            *columns, decode_errors, strict=True
        ):
            properties = dict(pairs or ())
            message_id = f"{ledger_id}:{entry_id}"
            origin = properties.get(ORIGIN_TOPIC, "(unknown)")
            sample = f"{message_id} from {properties[ORIGIN_ID]}" if ORIGIN_ID in properties else message_id
            self.messages += 1
            self._group("reason", self._reason(properties, error or decode_error)).add(published, sample, self._samples)
            self._group("origin", origin).add(published, sample, self._samples)
            self._group("key", text_of(key)).add(published, sample, self._samples)

    def _reason(self, properties: Mapping[str, str], error: str | None) -> str:
        for name in self._reasons:
            if properties.get(name):
                return properties[name].strip().splitlines()[0][:MAX_TEXT] if properties[name].strip() else TOO_OFTEN
        return f"payload cannot be read: {error}"[:MAX_TEXT] if error else TOO_OFTEN

    def _group(self, kind: str, name: str) -> Group:
        groups = self.by[kind]
        if name not in groups and len(groups) >= MAX_GROUPS:
            name = OTHERS
        return groups.setdefault(name, Group())

    def document(self, top: int) -> dict[str, Any]:
        shown: dict[str, Any] = {"messages": self.messages}
        for kind, groups in self.by.items():
            largest = sorted(groups.items(), key=lambda item: (-item[1].messages, item[0]))[:top]
            shown[f"{kind}Count"] = len(groups)
            shown[f"by{kind.capitalize()}"] = [
                {
                    kind: name,
                    "messages": group.messages,
                    "firstPublishTime": group.first,
                    "lastPublishTime": group.last,
                    "samples": group.samples,
                }
                for name, group in largest
            ]
        return shown


def add_options(parser: argparse.ArgumentParser) -> None:
    add_read_options(parser)
    group = parser.add_argument_group("groups")
    group.add_argument(
        "--reason-property", metavar="NAME", help="property with the reason (default: exception, error, reason)"
    )
    group.add_argument("--top", type=int, default=20, metavar="N", help="groups of each kind to show")
    group.add_argument("--samples", type=int, default=3, metavar="N", help="message ids of each group")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, connect: Connect) -> int:
    return answered(lambda: _run(options, connect), parser)


def _run(options: argparse.Namespace, connect: Connect) -> int:
    part = part_of(options)
    triage = Triage(options.reason_property, options.samples)
    with closing(open_source(source_options(options, connect, options.topics))) as source:
        reader = MessageReader(source, MessageReading(_COLUMNS, bad_records=BadRecords.COLUMN))
        for topic in options.topics:
            name = partitioned_name(topic)

            def of_version(version: bytes, name: str = name) -> SchemaInfo | None:
                return source.schema(name, version)

            decoder = _decoder(source.schema(name), of_version)
            plans = plans_of(source, topic, part)
            for sentence in lost_of(plans):
                say(f"lost and not examined: {sentence}")
            for piece in watched(ranges_of(plans), name, is_silent=options.json):
                for batch in reader.read(piece):
                    triage.add(batch, _errors(decoder, batch))
    document = triage.document(options.top)
    if options.json:
        write_json(document)
    else:
        _show(document)
    return EXIT_OK


def _decoder(info: SchemaInfo | None, of_version: Any) -> ValueDecoder | None:
    try:
        return None if info is None else value_decoder(info, of_version)
    except UnreadableSchema as error:
        say(f"payloads are not examined: {error}")
        return None


def _errors(decoder: ValueDecoder | None, batch: pa.RecordBatch) -> list[str | None]:
    if decoder is not None:
        decoded = decoder.decode(batch.column(VALUE), batch.column("__key"), batch.column("__schemaVersion"))
        if decoded.errors is not None:
            errors: list[str | None] = decoded.errors.to_pylist()
            return errors
    return [None] * batch.num_rows


def _show(document: Mapping[str, Any]) -> None:
    say(f"{document['messages']:,} dead letters")
    for kind in ("reason", "origin", "key"):
        rows = [
            (
                group[kind],
                group["messages"],
                f"{group['firstPublishTime']:%Y-%m-%d %H:%M:%S}",
                f"{group['lastPublishTime']:%Y-%m-%d %H:%M:%S}",
                ", ".join(group["samples"]),
            )
            for group in document[f"by{kind.capitalize()}"]
        ]
        write_table((kind, "messages", "first", "last", "message ids"), rows)
