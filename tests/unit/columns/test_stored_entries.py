"""The scanner in C and its twin in plain Python against the shared vectors of stored entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.stored_entries import ALL, READABLE, StoredEntryVector
from tests.unit.columns.entries import TOPIC, rows_of, run_of

from pybroker.columns.bad_records import BadRecords
from pybroker.columns.decoder import MessageDecoder
from pybroker.columns.message_columns import ERROR_COLUMN, METADATA_TYPES, VALUE
from pybroker.columns.pure_python import python_scanner
from pybroker.columns.scanner import COMPILED, Scanner
from pybroker.columns.scanner_layout import ENTRY, REASONS, Flag, ScanError

scanners = pytest.mark.parametrize(
    "scanner",
    [
        pytest.param(python_scanner, id="python"),
        pytest.param(
            COMPILED,
            id="compiled",
            marks=pytest.mark.skipif(COMPILED is None, reason="the scanner is not compiled here"),
        ),
    ],
)
OF_THE_ENTRY = frozenset({"metadata_too_long", "malformed_metadata", "missing_field", "bad_message_count", "bad_chunk"})
"""Errors that the record of the entry has; the records of its messages have the others."""


def record_of(scanner: Scanner, entry: bytes) -> np.void:
    run = run_of([entry], gap=b"\x80")
    records = np.zeros(1, ENTRY)
    scanner.scan_entries(run.data, run.starts, run.lengths, records)
    record: np.void = records[0]
    return record


@scanners
@pytest.mark.parametrize("vector", ALL, ids=str)
def test_entry_has_the_error_of_its_vector(scanner: Scanner, vector: StoredEntryVector) -> None:
    error = ScanError(int(record_of(scanner, vector.entry)["error"]))
    assert error == (ScanError[vector.error.upper()] if vector.error in OF_THE_ENTRY else ScanError.NONE)


@scanners
@pytest.mark.parametrize("vector", READABLE, ids=str)
def test_record_of_an_entry_has_the_fields_of_its_vector(scanner: Scanner, vector: StoredEntryVector) -> None:
    record = record_of(scanner, vector.entry)
    fields, flags = vector.fields, int(record["flags"])
    start = int(record["metadata_at"]) - 1
    assert (start, start + int(record["metadata_bytes"])) == vector.span
    assert int(record["payload_at"]) - 1 == vector.span[1]
    assert int(record["payload_bytes"]) == len(vector.entry) - vector.span[1]
    assert bool(flags & Flag.INDEX) == (vector.broker["index"] is not None)
    assert int(record["broker_index"]) == (vector.broker["index"] or 0)
    assert int(record["publish_time_ms"]) == fields["publish_time_ms"]
    assert int(record["sequence_id"]) == fields["sequence_id"]
    assert int(record["event_time_ms"]) == fields["event_time_ms"]
    assert int(record["compression"]) == fields["compression"]
    assert int(record["uncompressed_bytes"]) == fields["uncompressed_bytes"]
    assert bool(flags & Flag.BATCH) == (fields["message_count"] is not None)
    assert int(record["message_count"]) == (1 if fields["message_count"] is None else fields["message_count"])
    assert bool(flags & Flag.ENCRYPTED) == fields["is_encrypted"]
    assert bool(flags & Flag.MARKER) == fields["is_marker"]
    assert bool(flags & Flag.NULL_VALUE) == fields["is_null_value"]
    assert bool(flags & Flag.PROPERTIES) == bool(fields["properties"])
    assert [int(record["chunk_id"]), int(record["chunk_count"])] == (fields["chunk"] or [0, 0])


def is_decodable(vector: StoredEntryVector) -> bool:
    """Whether the entry stands for messages without a key for decryption, and without other chunks."""
    return not (vector.fields and (vector.fields["is_encrypted"] or vector.fields["chunk"]))


@scanners
@pytest.mark.parametrize("vector", [each for each in ALL if is_decodable(each)], ids=str)
def test_messages_are_decoded_up_to_the_error(scanner: Scanner, vector: StoredEntryVector) -> None:
    """A row without payload stands for the error and for the messages behind it."""
    columns = (VALUE, ERROR_COLUMN, *METADATA_TYPES)
    decoder = MessageDecoder(TOPIC, -1, columns, bad_records=BadRecords.COLUMN, scanner=scanner)
    rows = rows_of(list(decoder.decode(run_of([vector.entry]))))
    error = rows.pop() if vector.error is not None else None
    left = [(index, each) for index, each in enumerate(vector.messages) if not each["is_compacted_out"]]
    assert [shown(row) for row in rows] == [each for _, each in left]
    assert [row["__batchIndex"] for row in rows] == [index if vector.is_batch else -1 for index, _ in left]
    assert not any(row[ERROR_COLUMN] for row in rows)
    if error is not None and vector.error is not None:
        assert error["value"] is None
        reason = error[ERROR_COLUMN]
        assert isinstance(reason, str)
        assert reason if vector.error == "damaged_payload" else REASONS[ScanError[vector.error.upper()]] in reason


def shown(row: dict[str, Any]) -> dict[str, Any]:
    key, ordering_key, event_time = row["__key"], row["__orderingKey"], row["__eventTime"]
    return {
        "value": None if row["value"] is None else row["value"].hex(),
        "key": None if key is None else bytes(key).decode(),
        "ordering_key": None if ordering_key is None else ordering_key.hex(),
        "properties": [list(pair) for pair in row["__messageProperties"]],
        "event_time_ms": 0 if event_time is None else round(event_time.timestamp() * 1000),
        "sequence_id": row["__sequenceId"],
        "is_compacted_out": False,
    }
