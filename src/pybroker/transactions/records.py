"""Records of a coordinator's log: one JSON document for each entry (`docs/reference/storage-format.md`).

Each contains `last`, the highest assigned id, so that no id is assigned twice. A record contains the complete state of
a transaction (`NEW`, `WHOLE`) or of a sink (`SINK`), or a change, which is ignored if its object does not exist any
more. `TOGETHER` contains the complete state of its sink, and changes of the transactions that it ends.
"""

from __future__ import annotations

import enum

import msgspec

from pybroker.errors import StoreError

FORMAT_VERSION = 2
"""The highest readable version."""
WITHOUT_SINKS = 1
"""The version of records without sinks, which older brokers read. They refuse a log with other records, instead of committing a
part of a batch alone."""


class Kind(enum.StrEnum):
    """The kind of a record."""

    NEW = "new"
    WHOLE = "whole"
    ADD = "add"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"
    TOGETHER = "together"
    SINK = "sink"
    SINK_GONE = "sink_gone"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of the log. `least`: low half of the transaction's id. Each kind uses some of the other fields."""

    v: int
    kind: Kind
    least: int
    last: int
    opened_ms: int = 0
    """When the transaction was opened, by the wall clock in milliseconds since 1970."""
    timeout_ms: int = 0
    owner: str | None = None
    """The role that may use the transaction; None for any role."""
    status: str = ""
    """The status in a `WHOLE` record."""
    partitions: tuple[str, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()
    as_sent: dict[str, str] = {}
    """Topic names as the client sent them, by full name. Older broker versions skip this field."""
    sink: str = ""
    """Of a transaction: its sink, or empty; of the last three kinds: the sink of the mark."""
    batch: int = 0
    """The number of the batch in that sink."""
    writer: str = ""
    """For a mark: the only writer that may move it."""
    run: str = ""
    """For a transaction of a sink: the run of its writer that opened it."""
    commits: tuple[int, ...] = ()
    """For `TOGETHER`: the `least` of committed transactions."""
    aborts: tuple[int, ...] = ()
    """For `TOGETHER`: the `least` of aborted transactions."""
    forgets: str = ""
    """Another sink whose mark is deleted to free capacity for this one."""
    marked_ms: int = 0
    """For a mark: when its batch was committed, by the wall clock."""


class _Version(msgspec.Struct):
    v: int


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)
_VERSION_DECODER = msgspec.json.Decoder(_Version)


def encode(record: Record) -> bytes:
    return _ENCODER.encode(record)


def decode(payload: bytes) -> Record:
    """Decode a record. Raises StoreError for an invalid record, or a record of a later version."""
    try:
        record = _DECODER.decode(payload)
    except msgspec.DecodeError as error:
        _require_known(payload)
        raise StoreError(f"a record in the log of the transaction coordinator is damaged: {error}") from error
    _require_version(record.v)
    return record


def _require_known(payload: bytes) -> None:
    try:
        version = _VERSION_DECODER.decode(payload).v
    except msgspec.DecodeError:
        return
    _require_version(version)


def _require_version(version: int) -> None:
    if not WITHOUT_SINKS <= version <= FORMAT_VERSION:
        raise StoreError(
            f"the log of the transaction coordinator has records of version {version}, but this broker reads only versions up "
            f"to {FORMAT_VERSION}: start the newer version that wrote it"
        )
