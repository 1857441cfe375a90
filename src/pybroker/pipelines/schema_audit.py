"""Audit of schema versions: finds messages that their own or the latest schema cannot decode. Only reads.

Exit codes: 0 success, 1 failure, 2 wrong options, 3 there are messages that cannot be decoded.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pybroker.columns.bad_records import BadRecords
from pybroker.columns.message_columns import ERROR_COLUMN, VALUE
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_decoder import value_decoder
from pybroker.pipelines.connecting import Connect
from pybroker.pipelines.topic_ranges import (
    EXIT_FINDINGS,
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
    watched,
    write_json,
    write_table,
)
from pybroker.reading.message_batches import MessageReader, MessageReading
from pybroker.reading.sources import open_source

if TYPE_CHECKING:
    from pybroker.columns.values.value_schema import SchemaInfo, ValueDecoder
    from pybroker.reading.entry_source import EntrySource

_COLUMNS = (VALUE, "__key", "__schemaVersion", "__publishTime", "__ledgerId", "__entryId", ERROR_COLUMN)
MAX_REASONS = 100
"""Limit of different reasons per version. Further ones are counted together."""
_OTHER_REASONS = "other reasons"


@dataclass
class OfVersion:
    """The messages of one topic with the same schema version; `version` is -1 for messages without a version."""

    version: int
    messages: int = 0
    size_bytes: int = 0
    first_publish_time: Any = None
    last_publish_time: Any = None
    first_id: str = ""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Counts of the reasons why messages do not match their own version."""
    unreadable_by_latest: Counter[str] = field(default_factory=Counter)
    """Counts of the reasons why the topic's latest schema cannot decode messages."""


class TopicAudit:
    """The audit of one topic with all its partitions."""

    def __init__(self, topic: str, source: EntrySource) -> None:
        self.topic = topic
        self.latest = source.schema(topic)
        self.problem = ""
        """Why no payload can be decoded."""
        self.versions: dict[int, OfVersion] = {}
        self._source = source
        self._known: dict[bytes, SchemaInfo | None] = {}
        self._own: dict[int, ValueDecoder | None] = {}
        self._by_latest = self._decoder(self.latest)

    def _of_version(self, version: bytes) -> SchemaInfo | None:
        if version not in self._known:
            self._known[version] = self._source.schema(self.topic, version)
        return self._known[version]

    def _decoder(self, info: SchemaInfo | None) -> ValueDecoder | None:
        if info is None:
            return None
        try:
            return value_decoder(info, self._of_version)
        except UnreadableSchema as error:
            self.problem = self.problem or str(error)
            return None

    def add(self, batch: pa.RecordBatch) -> None:
        versions = batch.column("__schemaVersion")
        for value in pc.unique(versions):
            raw = value.as_py()
            rows = batch.filter(pc.is_null(versions) if raw is None else pc.equal(versions, value))
            number = int.from_bytes(raw, "big", signed=True) if raw else -1
            self._add(self.versions.setdefault(number, OfVersion(number)), raw, rows)

    def _add(self, found: OfVersion, raw: bytes | None, rows: pa.RecordBatch) -> None:
        times = pc.min_max(rows.column("__publishTime")).as_py()
        if not found.messages:
            found.first_id = f"{rows.column('__ledgerId')[0]}:{rows.column('__entryId')[0]}"
            found.first_publish_time = times["min"]
        found.first_publish_time = min(found.first_publish_time, times["min"])
        found.last_publish_time = max(found.last_publish_time or times["max"], times["max"])
        found.messages += rows.num_rows
        found.size_bytes += pc.sum(pc.binary_length(rows.column(VALUE))).as_py() or 0
        entry_errors = rows.column(ERROR_COLUMN)
        _count(found.unreadable, entry_errors)
        readable = rows.filter(pc.is_null(entry_errors))
        if found.version not in self._own:
            info = self._of_version(raw) if raw else self.latest
            self._own[found.version] = self._decoder(info)
            if raw and info is None:
                found.unreadable[f"the broker does not know schema version {found.version}"] += 0
        self._try(self._own[found.version], readable, found.unreadable)
        self._try(self._by_latest, readable, found.unreadable_by_latest)

    @staticmethod
    def _try(decoder: ValueDecoder | None, rows: pa.RecordBatch, reasons: Counter[str]) -> None:
        if decoder is not None and rows.num_rows:
            decoded = decoder.decode(rows.column(VALUE), rows.column("__key"), rows.column("__schemaVersion"))
            if decoded.errors is not None:
                _count(reasons, decoded.errors)

    @property
    def unreadable(self) -> int:
        return sum(each.unreadable.total() + each.unreadable_by_latest.total() for each in self.versions.values())

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "latestSchemaType": None if self.latest is None else self.latest.type,
            "problem": self.problem or None,
            "versions": [
                {
                    "version": each.version if each.version >= 0 else None,
                    "messages": each.messages,
                    "bytes": each.size_bytes,
                    "firstPublishTime": each.first_publish_time,
                    "lastPublishTime": each.last_publish_time,
                    "firstMessageId": each.first_id,
                    "unreadable": dict(each.unreadable.most_common()),
                    "unreadableByLatest": dict(each.unreadable_by_latest.most_common()),
                }
                for _, each in sorted(self.versions.items())
            ],
        }


def _count(reasons: Counter[str], errors: pa.Array) -> None:
    for row in np.nonzero(np.asarray(errors.is_valid()))[0]:
        reason = str(errors[int(row)].as_py())
        reasons[reason if reason in reasons or len(reasons) < MAX_REASONS else _OTHER_REASONS] += 1


def add_options(parser: argparse.ArgumentParser) -> None:
    add_read_options(parser)


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, connect: Connect) -> int:
    return answered(lambda: _run(options, connect), parser)


def _run(options: argparse.Namespace, connect: Connect) -> int:
    part = part_of(options)
    audits = []
    with closing(open_source(source_options(options, connect, options.topics))) as source:
        reader = MessageReader(source, MessageReading(_COLUMNS, bad_records=BadRecords.COLUMN))
        for topic in options.topics:
            audit = TopicAudit(partitioned_name(topic), source)
            plans = plans_of(source, topic, part)
            for sentence in lost_of(plans):
                say(f"lost and not examined: {sentence}")
            for piece in watched(ranges_of(plans), audit.topic, is_silent=options.json):
                for batch in reader.read(piece):
                    audit.add(batch)
            audits.append(audit)
    if options.json:
        write_json({"topics": [audit.document() for audit in audits]})
    else:
        for audit in audits:
            _show(audit.document())
    return EXIT_FINDINGS if any(audit.unreadable for audit in audits) else EXIT_OK


def _show(document: Mapping[str, Any]) -> None:
    say(f"{document['topic']}: latest schema {document['latestSchemaType'] or 'none'}")
    if document["problem"]:
        say(f"payloads were not examined: {document['problem']}")
    head = ("version", "messages", "bytes", "first published", "last published", "first id", "unreadable", "by latest")
    rows = [
        (
            "none" if each["version"] is None else str(each["version"]),
            each["messages"],
            each["bytes"],
            f"{each['firstPublishTime']:%Y-%m-%d %H:%M:%S}",
            f"{each['lastPublishTime']:%Y-%m-%d %H:%M:%S}",
            each["firstMessageId"],
            sum(each["unreadable"].values()),
            sum(each["unreadableByLatest"].values()),
        )
        for each in document["versions"]
    ]
    write_table(head, rows)
    for each in document["versions"]:
        for what in ("unreadable", "unreadableByLatest"):
            for reason, count in each[what].items():
                say(f"version {each['version']}, {what}: {count} times: {reason}")
