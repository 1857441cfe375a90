"""What the log of a coordinator says: one JSON document for each entry, which `docs/storage-format.md` describes.

Every record carries `last`, the highest id that was given so far, so that the last record of a log is enough to never give an
id twice. A record is either whole (`NEW`, `WHOLE`: it says all of a transaction, whatever was said before; `SINK`: all of a sink's
mark), or a change of one that may not exist any more, and then says nothing. `TOGETHER` is both: whole for its sink's mark, and the
change of all the transactions that it names, which is what makes them end together.
"""

from __future__ import annotations

import enum

import msgspec

from pybroker.errors import StoreError

FORMAT_VERSION = 2
"""The highest that is read."""
WITHOUT_SINKS = 1
"""Of all records that say nothing of sinks: brokers that know of none read a log of these. At another record they refuse the log,
instead of committing a part of a batch alone."""


class Kind(enum.StrEnum):
    """What a record says."""

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
    """`least` is the transaction's place; the other fields are those that its kind needs."""

    v: int
    kind: Kind
    least: int
    last: int
    opened_ms: int = 0
    """When it was opened, by the wall clock."""
    timeout_ms: int = 0
    owner: str | None = None
    """The role that may use it; None: everybody."""
    status: str = ""
    """Of `WHOLE`: the name of its status."""
    partitions: tuple[str, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()
    """Topic and subscription."""
    as_sent: dict[str, str] = {}
    """The client's spelling of topic names that it did not write in full. Older broker versions skip this field."""
    sink: str = ""
    """Of a transaction: the sink that it was opened for, empty for none; of the last three kinds: whose mark it is."""
    batch: int = 0
    """Of that sink."""
    writer: str = ""
    """Of a mark: who alone may move it."""
    run: str = ""
    """Of a transaction of a sink: which run of its writer opened it."""
    commits: tuple[int, ...] = ()
    """Of `TOGETHER`: the transactions that commit, by their `least`."""
    aborts: tuple[int, ...] = ()
    """And those that abort."""
    forgets: str = ""
    """And a sink whose mark makes room for this one."""
    marked_ms: int = 0
    """Of a mark: when its batch was committed, by the wall clock."""


class _Version(msgspec.Struct):
    v: int


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)
_VERSION_DECODER = msgspec.json.Decoder(_Version)


def encode(record: Record) -> bytes:
    """The entry that holds `record`."""
    return _ENCODER.encode(record)


def decode(payload: bytes) -> Record:
    """The record in an entry. Raises StoreError for one that cannot be read, or of a later version."""
    try:
        record = _DECODER.decode(payload)
    except msgspec.DecodeError as error:
        _require_known(payload)
        raise StoreError(f"a record of a transaction log cannot be read: {error}") from error
    _require_version(record.v)
    return record


def _require_known(payload: bytes) -> None:
    """What cannot be read may be of a later version, which is worth saying."""
    try:
        version = _VERSION_DECODER.decode(payload).v
    except msgspec.DecodeError:
        return
    _require_version(version)


def _require_version(version: int) -> None:
    if not WITHOUT_SINKS <= version <= FORMAT_VERSION:
        raise StoreError(
            f"a transaction log has records of version {version}, this broker reads up to {FORMAT_VERSION}: it was written by a "
            "newer one"
        )
