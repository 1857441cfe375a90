"""Messages per second decoded into Arrow columns: by the compiled scanner, by pure Python, and with protobuf objects.

    .venv/bin/python -m benchmarks.entries_to_columns [--rows 50000] [--value-bytes 1024] [--rounds 5]

One process, no broker. Rounds of the techniques alternate, and the best of each counts, in CPU time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pybroker.columns.decoder import MessageDecoder, schema_of
from pybroker.columns.entry_run import EntryRun
from pybroker.columns.message_columns import DEFAULT_COLUMNS, VALUE
from pybroker.columns.pure_python import python_scanner
from pybroker.columns.scanner import COMPILED, Scanner
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
COLUMNS = (VALUE, *DEFAULT_COLUMNS)
PER_ENTRY = 50
TIME_MS = 1_700_000_000_000


def run_of(entries: list[bytes]) -> EntryRun:
    lengths = np.array([len(entry) for entry in entries], np.int64)
    return EntryRun(3, 0, b"".join(entries), np.cumsum(lengths) - lengths, lengths)


def entry_of(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    header = metadata.SerializeToString()
    return b"\x0e\x01\0\0\0\0" + len(header).to_bytes(4, "big") + header + payload


def single_entries(rows: int, value: bytes) -> list[bytes]:
    entries = []
    for number in range(rows):
        metadata = pb.MessageMetadata(producer_name="standalone-0-1", sequence_id=number, publish_time=TIME_MS + number)
        metadata.partition_key = f"key-{number:06}"
        metadata.event_time = TIME_MS
        metadata.properties.add(key="origin", value="benchmark")
        metadata.properties.add(key="number", value=str(number))
        entries.append(entry_of(metadata, value))
    return entries


def batch_entries(rows: int, value: bytes) -> list[bytes]:
    entries = []
    for first in range(0, rows, PER_ENTRY):
        body = b""
        for number in range(first, first + PER_ENTRY):
            single = pb.SingleMessageMetadata(
                payload_size=len(value), partition_key=f"key-{number:06}", event_time=TIME_MS
            )
            single.properties.add(key="origin", value="benchmark")
            single.properties.add(key="number", value=str(number))
            header = single.SerializeToString()
            body += len(header).to_bytes(4, "big") + header + value
        metadata = pb.MessageMetadata(producer_name="standalone-0-1", sequence_id=first, publish_time=TIME_MS + first)
        metadata.num_messages_in_batch = PER_ENTRY
        entries.append(entry_of(metadata, body))
    return entries


def by_scanner(scanner: Scanner) -> Callable[[EntryRun], int]:
    def decode(run: EntryRun) -> int:
        decoder = MessageDecoder(TOPIC, -1, COLUMNS, scanner=scanner)
        return sum(batch.num_rows for batch in decoder.decode(run))

    return decode


def by_protobuf(run: EntryRun) -> int:
    """Decode with a protobuf object for each message. Return the number of messages."""
    lists: list[list[object]] = [[] for _ in COLUMNS]
    view = memoryview(run.data)
    for number, (start, length) in enumerate(zip(run.starts.tolist(), run.lengths.tolist(), strict=True)):
        entry = bytes(view[start + 6 : start + length])
        size = int.from_bytes(entry[:4], "big")
        metadata = pb.MessageMetadata.FromString(entry[4 : 4 + size])
        pos = 4 + size
        if not metadata.HasField("num_messages_in_batch"):
            add_row(lists, metadata, metadata, entry[pos:], pb.MessageIdData(ledgerId=3, entryId=number))
            continue
        for index in range(metadata.num_messages_in_batch):
            size = int.from_bytes(entry[pos : pos + 4], "big")
            single = pb.SingleMessageMetadata.FromString(entry[pos + 4 : pos + 4 + size])
            pos += 4 + size
            message_id = pb.MessageIdData(ledgerId=3, entryId=number, batch_index=index, batch_size=PER_ENTRY)
            add_row(lists, metadata, single, entry[pos : pos + single.payload_size], message_id)
            pos += single.payload_size
    schema = schema_of(COLUMNS)
    arrays = [pa.array(values, field.type) for values, field in zip(lists, schema, strict=True)]
    rows: int = pa.RecordBatch.from_arrays(arrays, schema=schema).num_rows
    return rows


def add_row(
    lists: list[list[object]],
    metadata: pb.MessageMetadata,
    own: pb.MessageMetadata | pb.SingleMessageMetadata,
    value: bytes,
    message_id: pb.MessageIdData,
) -> None:
    row = (
        value,
        own.partition_key.encode(),
        TOPIC,
        message_id.SerializeToString(),
        metadata.publish_time * 1000,
        own.event_time * 1000,
        [(each.key, each.value) for each in own.properties],
    )
    for column, field in zip(lists, row, strict=True):
        column.append(field)


def measure(
    techniques: dict[str, Callable[[EntryRun], int]], run: EntryRun, rows: int, rounds: int
) -> dict[str, float]:
    """Return thousands of messages per second for each technique."""
    best = dict.fromkeys(techniques, float("inf"))
    for _ in range(rounds):
        for name, technique in techniques.items():
            began = time.process_time()
            found = technique(run)
            best[name] = min(best[name], time.process_time() - began)
            assert found == rows, name
    return {name: rows / seconds / 1000 for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = arguments.rows // PER_ENTRY * PER_ENTRY
    value = os.urandom(arguments.value_bytes)
    techniques: dict[str, Callable[[EntryRun], int]] = {
        "plain Python": by_scanner(python_scanner),
        "protobuf objects": by_protobuf,
    }
    if COMPILED is not None:
        techniques = {"compiled": by_scanner(COMPILED), **techniques}
    print(f"{rows} messages of {arguments.value_bytes} bytes, {len(COLUMNS)} columns; load {os.getloadavg()[0]:.1f}")
    for kind, entries in (
        ("single", single_entries(rows, value)),
        (f"{PER_ENTRY} an entry", batch_entries(rows, value)),
    ):
        rates = measure(techniques, run_of(entries), rows, arguments.rounds)
        slowest = rates["protobuf objects"]
        for name, rate in rates.items():
            print(f"{kind:12} {name:17} {rate:7.0f} thousand/s  {rate / slowest:6.2f} of protobuf objects")


if __name__ == "__main__":
    main()
