"""Start and end of a query: from options, and from the offsets that Spark stores in its checkpoints.

An offset has one position between entries for each topic or partition:

    {"v": 1, "t": {"persistent://public/default/orders-partition-0": {"l": 5, "e": 120}}}

This means that all entries before entry 120 of ledger 5 were read. The end offset of a micro-batch also describes the
batch: `f`, the position where it began, and `r`, its ranges as `[ledger, first entry, end entry, bytes]`. A batch that
is planned again after a crash is therefore divided as before. `b`, only in the first offset of a query, is the batch
index at which reading of the first entry begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from pybroker.errors import InvalidTopicName, ProtocolViolation
from pybroker.model.names import TopicName
from pybroker.model.position import MAX_SIGNED_64, from_wire
from pybroker.reading.positions import Place
from pybroker.wire import pulsar_api_pb2 as pb

VERSION = 1
MAX_TEXT_CHARACTERS = 16 << 20
"""Limit of one offset as text, enough for about 100,000 topics."""


class InvalidOffsets(ValueError):
    """Offsets or times in an option or a checkpoint are invalid. The text contains the option or topic, and the
    expected form.
    """


_BEGINNING = Place(0, 0)


class BoundKind(Enum):
    """The kinds of a start or end: the forms in which an option can give it."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    PLACE = "place"


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of the read of one topic."""

    kind: BoundKind
    time_ms: int = 0
    place: Place = _BEGINNING
    batch_index: int = 0
    """In the entry at `place`, messages with a lower index are before the bound."""


EARLIEST = Bound(BoundKind.EARLIEST)
LATEST = Bound(BoundKind.LATEST)


@dataclass(frozen=True)
class Bounds:
    """The start or the end of the read of each topic."""

    otherwise: Bound
    by_topic: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, topic: str) -> Bound:
        own = self.by_topic.get(topic)
        if own is None and self.by_topic:
            own = self.by_topic.get(str(TopicName.parse(topic).partitioned_name))
        return self.otherwise if own is None else own

    def require_known(self, option: str, topics: Iterable[str]) -> None:
        """Raise InvalidOffsets if the option names a topic that the query does not read, which is probably a typing
        error.
        """
        known = {name for topic in topics for name in (topic, str(TopicName.parse(topic).partitioned_name))}
        unknown = sorted(set(self.by_topic) - known)
        if unknown:
            raise InvalidOffsets(
                f"{option} names {unknown[0]}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "") + ", "
                f"which this query does not read; it reads {', '.join(sorted(known)[:5]) or 'no topic'}"
            )


def parse_offsets(option: str, text: str, is_end: bool) -> Bounds:
    """Parse an option with positions: `earliest`, `latest`, or JSON with an offset of this connector or the byte arrays
    of the Scala connector.

    Topics that are missing in the JSON are read from their beginning, or to their end. A message id in the form of the
    Scala connector is inclusive, both as start and as end.
    """
    otherwise = LATEST if is_end else EARLIEST
    word = text.strip().lower()
    if word in {"earliest", "latest"}:
        return Bounds(EARLIEST if word == "earliest" else LATEST)
    expected = 'earliest, latest or JSON such as {"v": 1, "t": {"TOPIC": {"l": LEDGER, "e": ENTRY}}}'
    document = _json_object(option, text, expected)
    topics = _topics_of(option, document) if "v" in document else document
    return Bounds(otherwise, _by_topic(option, topics, lambda value: _bound(value, is_end), expected))


def parse_times(option: str, text: str, is_end: bool) -> Bounds:
    """Parse an option with a publish time for all topics, or JSON with one for each topic. A time is in milliseconds
    since 1970, or ISO 8601 with a time zone.
    """
    expected = 'milliseconds since 1970, a time such as 2026-01-31T08:00:00Z, or JSON such as {"TOPIC": 1767225600000}'
    word = text.strip()
    if not word.startswith("{"):
        return Bounds(_time_bound(option, word, expected))
    document = _json_object(option, word, expected)
    bounds = _by_topic(option, document, lambda value: _time_bound(option, str(value), expected), expected)
    return Bounds(LATEST if is_end else EARLIEST, bounds)


@dataclass(frozen=True, slots=True)
class CutRange:
    """Consecutive entries of one ledger for one task, and their approximate size."""

    ledger_id: int
    first_entry_id: int
    end_entry_id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The read position of one topic and, at the end of a micro-batch, the part of the batch in this topic."""

    place: Place
    batch_index: int = 0
    begun_at: Place | None = None
    """Start of the batch that ends here; None if the batch does not contain this topic."""
    ranges: tuple[CutRange, ...] = ()

    def settled(self) -> TopicOffset:
        """Return a copy with the position only, without the ranges of the micro-batch that ends there."""
        return TopicOffset(self.place, self.batch_index)


Offsets = dict[str, TopicOffset]


def to_json(offsets: Mapping[str, TopicOffset]) -> dict[str, Any]:
    """Convert offsets to JSON for Spark's checkpoint. Equal offsets give equal text."""
    return {"v": VERSION, "t": {topic: _topic_to_json(offsets[topic]) for topic in sorted(offsets)}}


def from_json(document: Mapping[str, Any]) -> Offsets:
    """Parse the result of `to_json`. Raises InvalidOffsets for other documents, such as another connector's checkpoint."""
    if "v" not in document:
        raise InvalidOffsets(
            "the checkpoint's offsets were not written by this connector. A query of the Scala connector cannot be continued: "
            "start a new query with a new checkpointLocation, and set startingOffsets to the last offsets"
        )
    topics = _topics_of("the checkpoint's offset", document)
    try:
        return {topic: _topic_from_json(value) for topic, value in topics.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOffsets(f"the offset in the checkpoint is damaged: {type(error).__name__} {error}") from error


def _topic_to_json(offset: TopicOffset) -> dict[str, Any]:
    value: dict[str, Any] = {"l": offset.place.ledger_id, "e": offset.place.entry_id}
    if offset.batch_index:
        value["b"] = offset.batch_index
    if offset.begun_at is not None:
        value["f"] = list(offset.begun_at)
        value["r"] = [[r.ledger_id, r.first_entry_id, r.end_entry_id, r.size_bytes] for r in offset.ranges]
    return value


def _topic_from_json(value: Mapping[str, Any]) -> TopicOffset:
    begun_at = value.get("f")
    return TopicOffset(
        Place(_whole(value["l"]), _whole(value["e"])),
        _whole(value.get("b", 0)),
        None if begun_at is None else Place(_whole(begun_at[0]), _whole(begun_at[1])),
        tuple(CutRange(*map(_whole, numbers)) for numbers in value.get("r", ())),
    )


def _topics_of(option: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    if document["v"] != VERSION:
        raise InvalidOffsets(
            f"{option} has version {document['v']!r}, but this version of pybroker reads only version {VERSION}: use a newer "
            "pybroker"
        )
    topics = document.get("t")
    if not isinstance(topics, dict):
        raise InvalidOffsets(f'{option} has no field "t", an object with a position for each topic')
    return topics


def _by_topic(
    option: str, topics: Mapping[str, Any], bound_of: Callable[[Any], Bound], expected: str
) -> dict[str, Bound]:
    bounds = {}
    for name, value in topics.items():
        try:
            topic = str(TopicName.parse(name))
        except InvalidTopicName as error:
            raise InvalidOffsets(f"{option}: {error}") from error
        try:
            bounds[topic] = bound_of(value)
        except (KeyError, TypeError, ValueError, ProtocolViolation) as error:
            raise InvalidOffsets(f"{option} of topic {topic} is invalid ({error}): use {expected}") from error
    return bounds


def _bound(value: object, is_end: bool) -> Bound:
    if isinstance(value, str):
        return {"earliest": EARLIEST, "latest": LATEST}[value.lower()]
    if isinstance(value, list):
        return _bound_of_message_id(bytes(_whole(number) & 0xFF for number in value), is_end)
    if not isinstance(value, dict):
        raise TypeError("the value is neither a JSON object nor a JSON array")
    unknown = set(value) - {"l", "e", "b", "i", "f", "r"}
    if unknown:
        raise ValueError(f"unknown {min(unknown)!r}")
    place = Place(_whole(value["l"]), _whole(value["e"]))
    if place.ledger_id < 0:
        return EARLIEST
    batch_index = _whole(value.get("b", 0))
    if place.entry_id < 0 or batch_index < 0:
        raise ValueError("the entry and the batch index must be 0 or more")
    return Bound(BoundKind.PLACE, place=place, batch_index=batch_index)


def _bound_of_message_id(serialised: bytes, is_end: bool) -> Bound:
    try:
        message_id = pb.MessageIdData.FromString(serialised)
    except Exception as error:  # protobuf's DecodeError has no public base but Exception
        raise ValueError("the bytes are not a message id") from error
    position = from_wire(message_id.ledgerId, message_id.entryId)
    if position.ledger_id < 0:
        return EARLIEST
    if position.ledger_id == MAX_SIGNED_64:
        return LATEST
    batch_index = message_id.batch_index
    place = Place(position.ledger_id, max(position.entry_id, 0))
    if not is_end:
        return Bound(BoundKind.PLACE, place=place, batch_index=max(batch_index, 0))
    if batch_index < 0:
        return Bound(BoundKind.PLACE, place=Place(place.ledger_id, position.entry_id + 1))
    return Bound(BoundKind.PLACE, place=place, batch_index=batch_index + 1)


def _time_bound(option: str, text: str, expected: str) -> Bound:
    try:
        time_ms = int(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise InvalidOffsets(f"{option} is {text[:40]!r}: use {expected}") from None
        time_ms = int(moment.timestamp() * 1000)
    if not 0 <= time_ms <= MAX_SIGNED_64:
        raise InvalidOffsets(f"{option} is {text[:40]!r}: use {expected}")
    return Bound(BoundKind.TIME, time_ms=time_ms)


def _json_object(option: str, text: str, expected: str) -> dict[str, Any]:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidOffsets(f"{option} is longer than {MAX_TEXT_CHARACTERS} characters")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidOffsets(f"{option} is {text[:40]!r}: use {expected}")
    return document


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    if not -MAX_SIGNED_64 - 1 <= value <= MAX_SIGNED_64:
        raise ValueError(f"{value} is out of range")
    return value
