"""Throughput of payload decoding and encoding, compared with fastavro and pyarrow: `python -m benchmarks.schemas`."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa

from pybroker.columns.values.encoding.value_encoder import value_encoder
from pybroker.columns.values.value_decoder import value_decoder

COUNT = 10_000
ROUNDS = 7
FLAT = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
NESTED = FLAT.append(pa.field("tags", pa.list_(pa.string()))).append(
    pa.field("inner", pa.struct([("a", pa.int32()), ("b", pa.string())]))
)


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"name-{number}",
        "ratio": number / 7 if number % 3 else None,
        "ok": number % 2 == 0,
        "text": "x" * 20,
        "at": datetime(2024, 1, 1, tzinfo=UTC).replace(microsecond=number),
        "tags": ["tag"] * (number % 4),
        "inner": {"a": number, "b": "y"} if number % 4 else None,
    }


def rate(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return COUNT / best / 1000


def main() -> None:
    for name, columns in (("flat", FLAT), ("nested", NESTED)):
        batch = pa.RecordBatch.from_pylist([row(number) for number in range(COUNT)], schema=columns)
        figures: dict[str, float] = {}
        for kind in ("AVRO", "JSON"):
            encoder = value_encoder(list(batch.schema), new="AVRO" if kind == "AVRO" else "JSON")
            payloads, _ = encoder.encode(batch)
            decoder = value_decoder(encoder.schema, lambda _: None)
            nothing = pa.nulls(COUNT, pa.binary())
            figures[f"{kind} to columns"] = rate(partial(decoder.decode, payloads, nothing, nothing))
            figures[f"columns to {kind}"] = rate(partial(encoder.encode, batch))
            if kind == "AVRO":
                figures |= by_fastavro(encoder.schema.data, payloads, batch)
            else:
                figures |= by_hand(payloads, batch)
        for what, found in figures.items():
            print(f"{name:7} {what:32} {found:8.0f} krow/s")


def by_fastavro(definition: bytes, payloads: pa.BinaryArray, batch: pa.RecordBatch) -> dict[str, float]:
    parsed = fastavro.parse_schema(json.loads(definition))
    values = payloads.to_pylist()

    def read() -> None:
        rows = [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in values]
        pa.RecordBatch.from_pylist(rows, schema=batch.schema)

    def write() -> None:
        for each in batch.to_pylist():
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, each)
            out.getvalue()

    return {"AVRO to columns, fastavro": rate(read), "columns to AVRO, fastavro": rate(write)}


def by_hand(payloads: pa.BinaryArray, batch: pa.RecordBatch) -> dict[str, float]:
    values = payloads.to_pylist()
    at = batch.schema.get_field_index("at")
    plain = batch.schema.set(at, pa.field("at", pa.int64()))
    return {
        "JSON to columns, json.loads": rate(
            lambda: pa.RecordBatch.from_pylist([json.loads(value) for value in values], schema=plain)
        )
    }


if __name__ == "__main__":
    main()
