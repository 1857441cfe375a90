"""Binary format of the stored index of delayed entries of a subscription.

A record is (little-endian):

    version u8 | kind u8 | zero u16 | run count u32
    for each run:   ledger id i64 | first entry id u32 | n u32 | n numbers u64, rising
    version 2 only: change count u32, for each:  ledger id i64 | entry id u32 | due time in milliseconds u64

A number is the due time in milliseconds times 2^22 plus the entry id less the run's first one. A record of kind WHOLE
replaces all earlier records; kind MORE adds to them.

Version 2 is written if delivery times were changed. A changed time overrides the runs, the entry's own time, and
earlier records.

Outdated runs do no harm: the broker drops acknowledged entries after loading, and reads missing entries from the topic.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence

from pybroker.dispatch.delayed.delayed_entries import DelayedRun
from pybroker.errors import StoreError
from pybroker.model.position import Position

FORMAT_VERSION = 2
_WITHOUT_CHANGES = 1
_WHOLE = 0
_MORE = 1
_HEADER = struct.Struct("<BBHI")
_RUN = struct.Struct("<qII")
_COUNT = struct.Struct("<I")
_CHANGE = struct.Struct("<qIQ")
_IS_LITTLE_ENDIAN = array("H", [1]).tobytes()[0] == 1


def encode_whole(runs: Sequence[DelayedRun], changes: Iterable[tuple[Position, int]] = ()) -> bytes:
    return _encode(_WHOLE, runs, list(changes))


def encode_more(runs: Sequence[DelayedRun], changes: Iterable[tuple[Position, int]] = ()) -> bytes:
    return _encode(_MORE, runs, list(changes))


def _encode(kind: int, runs: Sequence[DelayedRun], changes: Sequence[tuple[Position, int]]) -> bytes:
    parts = [_HEADER.pack(FORMAT_VERSION if changes else _WITHOUT_CHANGES, kind, 0, len(runs))]
    for run in runs:
        left = run.packed[run.index :]
        parts.append(_RUN.pack(run.ledger_id, run.first_entry_id, len(left)))
        parts.append(_little_endian(left).tobytes())
    if changes:
        parts.append(_COUNT.pack(len(changes)))
        parts += [_CHANGE.pack(*position, due_ms) for position, due_ms in changes]
    return b"".join(parts)


def stored_runs(records: Sequence[bytes]) -> Iterator[DelayedRun]:
    """Decode the delayed entries in the records of a subscription. Yield one run at a time, oldest first, so that the
    caller can yield to the event loop. Raises StoreError for a damaged record or an unknown version.
    """
    try:
        for record in _valid(records):
            yield from _runs_in(record, {})
    except (struct.error, ValueError) as error:
        raise StoreError(f"the stored index of the delayed messages of a subscription is damaged: {error}") from error


def stored_changes(records: Sequence[bytes]) -> dict[Position, int]:
    """Decode the delivery times that an administrator has changed: milliseconds since 1970, by position. Raises
    StoreError for a damaged record or an unknown version.
    """
    changes: dict[Position, int] = {}
    try:
        for record in _valid(records):
            if record[0] > _WITHOUT_CHANGES:
                for _ in _runs_in(record, changes):
                    pass
    except (struct.error, ValueError) as error:
        raise StoreError(f"the stored index of the delayed messages of a subscription is damaged: {error}") from error
    return changes


def _valid(records: Sequence[bytes]) -> Sequence[bytes]:
    """Return the records from the last WHOLE one on."""
    for record in records:
        if _HEADER.unpack_from(record)[0] > FORMAT_VERSION:
            raise StoreError(
                f"the stored delivery times of the subscription have format version {record[0]}, but this broker reads "
                f"only versions up to {FORMAT_VERSION}: start the newer version that wrote it"
            )
    whole = [index for index, record in enumerate(records) if record[1] == _WHOLE]
    return records[whole[-1] if whole else 0 :]


def _runs_in(record: bytes, changes: dict[Position, int]) -> Iterator[DelayedRun]:
    *_, run_count = _HEADER.unpack_from(record)
    offset = _HEADER.size
    for _ in range(run_count):
        ledger_id, first_entry_id, count = _RUN.unpack_from(record, offset)
        offset += _RUN.size
        packed = array("Q")
        end = offset + count * packed.itemsize
        if not count or end > len(record):
            raise ValueError(
                f"the stored delivery times of ledger {ledger_id} are incomplete: {count} entries from entry id "
                f"{first_entry_id} on need {count * packed.itemsize} bytes, and {len(record) - offset} bytes are stored"
            )
        packed.frombytes(record[offset:end])
        offset = end
        yield DelayedRun(ledger_id, first_entry_id, _little_endian(packed))
    if record[0] > _WITHOUT_CHANGES:
        (count,) = _COUNT.unpack_from(record, offset)
        offset += _COUNT.size
        for _ in range(count):
            ledger_id, entry_id, due_ms = _CHANGE.unpack_from(record, offset)
            offset += _CHANGE.size
            changes[Position(ledger_id, entry_id)] = due_ms
    if offset != len(record):
        raise ValueError(f"the stored record has {len(record) - offset} bytes after its last delivery time")


def _little_endian(numbers: array[int]) -> array[int]:
    if not _IS_LITTLE_ENDIAN:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
